package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"

	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// verdict is what the schema says of one thing, wherever it stands.
type verdict struct {
	// translation is what a manifest says natively, nil where it is wrong itself.
	translation *translation
	faults      []document.Problem
	// loopback are faults only where allowLoopbackSources is off.
	loopback []document.Problem

	// One of them is set when there are no faults.
	settings *Settings
	node     *Node
	image    *Image
}

// task is a thing to check: verdict is filled in.
type task struct {
	key
	form    *form // nil: value is native
	value   *document.Value
	verdict *verdict
}

const (
	// batchSize is how many things one CUE context checks before it is dropped.
	batchSize = 200
	workers   = 2
)

// checkAll checks the tasks, a few contexts at a time.
func (l *Loader) checkAll(ctx context.Context, tasks []task) error {
	batches := make(chan []task)
	var wait sync.WaitGroup
	for range min(workers, 1+len(tasks)/batchSize) {
		wait.Go(func() {
			for batch := range batches {
				l.checkBatch(batch)
			}
		})
	}
	for batch := range slices.Chunk(tasks, batchSize) {
		if ctx.Err() != nil {
			break
		}
		batches <- batch
	}
	close(batches)
	wait.Wait()
	return ctx.Err()
}

func (l *Loader) checkBatch(batch []task) {
	c := compile()
	for _, t := range batch {
		*t.verdict = c.check(l.shapes, t)
	}
}

// check judges one thing: first its structure, then by CUE what is left of it,
// then what only Go can tell.
func (c compiled) check(all shapes, t task) (result verdict) {
	defer func() {
		// Whatever a file says, it must not end a manager.
		if p := recover(); p != nil {
			result = verdict{faults: []document.Problem{{AtName: true, Message: document.Printable(fmt.Sprintf("cannot be checked: %v", p))}}}
		}
	}()
	if t.form != nil {
		return c.checkManifest(all, t)
	}
	result = c.whole(all.things[t.section], t)
	if err := checkThingName(t.key); err != nil { // which is no reason to say nothing of the rest
		name := document.Problem{AtName: true, Message: err.Error()}
		return verdict{faults: append([]document.Problem{name}, result.faults...), loopback: result.loopback}
	}
	return result
}

// whole judges a thing as it is, without its name. What is left of it beside mistakes of
// its structure is told about, too.
func (c compiled) whole(sh *shape, t task) verdict {
	v, s, complete := c.valid(c.things[t.section], sh, t.value)
	if !complete {
		return verdict{faults: s.faults}
	}
	result := decode(t, v)
	if len(s.faults) == 0 {
		return result
	}
	beside := slices.DeleteFunc(result.faults, func(f document.Problem) bool { return s.explains(f.Path, sh, t.value) })
	return verdict{faults: append(s.faults, beside...), loopback: result.loopback}
}

// checkManifest judges a manifest by itself, and then what it says natively.
func (c compiled) checkManifest(all shapes, t task) verdict {
	if _, s, _ := c.valid(c.manifests[t.form.definition], all.manifests[t.form.definition], ownManifest(t.value)); len(s.faults) > 0 {
		return verdict{faults: s.faults}
	}
	tr := newTranslation(t.value)
	if t.form.translate == nil {
		return verdict{translation: tr}
	}
	t.form.translate(tr)
	if len(tr.faults) > 0 {
		return verdict{faults: tr.faults}
	}
	result := c.check(all, task{key: t.key, value: tr.value})
	result.translation = tr
	tr.toldAll(result.faults)
	tr.toldAll(result.loopback)
	return result
}

// valid returns v as the schema has it, with every default, what is wrong with it, and
// whether what is left beside that is as it should be.
func (c compiled) valid(definition cue.Value, sh *shape, v *document.Value) (cue.Value, *structure, bool) {
	s := &structure{root: sh}
	plain, ok := s.plain(v, sh, nil)
	if !ok {
		return cue.Value{}, s, false
	}
	unified, wrong := c.unify(definition, plain, v)
	if len(wrong) == 0 {
		return unified, s, true
	}
	for _, at := range wrong {
		if !s.explains(at, sh, v) {
			s.fault(explain(sh, v, at))
		}
		prune(plain, at)
	}
	unified, wrong = c.unify(definition, plain, v)
	return unified, s, len(wrong) == 0
}

// unify returns what the schema makes of plain, and the paths where it is wrong.
func (c compiled) unify(definition cue.Value, plain any, v *document.Value) (cue.Value, []document.Path) {
	unified := definition.Unify(c.context.Encode(plain))
	return unified, mistakes(unified.Validate(cue.Concrete(true), cue.Final()), v)
}

// prune removes the field at a path, or the nearest one around it.
func prune(plain any, at document.Path) {
	for i, step := range at {
		fields, is := plain.(map[string]any)
		if !is {
			return
		}
		if _, deeper := fields[step].(map[string]any); !deeper || i == len(at)-1 {
			delete(fields, step)
			return
		}
		plain = fields[step]
	}
}

// explains reports whether what CUE says of a path follows from a fault that
// is known already: a source whose only field is misspelled is empty, too.
func (s *structure) explains(at document.Path, root *shape, v *document.Value) bool {
	found, _ := v.Find(at, document.Position{})
	if found != nil && knownFields(found, root.at(at)) > 1 {
		return false // it has too many, whatever is wrong with them
	}
	return slices.ContainsFunc(s.faults, func(f document.Problem) bool {
		if found == nil {
			return slices.Equal(f.Path.Parent(), at.Parent())
		}
		return f.Path.Within(at)
	})
}

func knownFields(v *document.Value, sh *shape) int {
	n := 0
	for _, f := range v.Fields {
		if sh.fields[f.Name] != nil {
			n++
		}
	}
	return n
}

// mistakes returns the paths that a CUE error is about, each once. The
// messages of CUE speak of the schema, so we say it ourselves.
func mistakes(err error, root *document.Value) []document.Path {
	var paths []document.Path
	for _, e := range errors.Errors(err) {
		paths = append(paths, userPath(e.Path(), root))
	}
	slices.SortFunc(paths, func(a, b document.Path) int { return slices.Compare(a, b) })
	paths = slices.CompactFunc(paths, slices.Equal)
	// A mapping is wrong because of what is in it: that alone is told.
	return slices.DeleteFunc(slices.Clone(paths), func(p document.Path) bool {
		return slices.ContainsFunc(paths, func(q document.Path) bool { return len(q) > len(p) && q.Within(p) })
	})
}

// userPath drops the definition that CUE's path begins with, and marks the
// elements of lists.
func userPath(p []string, v *document.Value) document.Path {
	if len(p) > 0 && strings.HasPrefix(p[0], "#") {
		p = p[1:]
	}
	at := make(document.Path, 0, len(p))
	for _, step := range p {
		if v != nil && v.Kind == document.List {
			step = fmt.Sprintf("[%s]", step)
		}
		at = append(at, strings.Trim(step, `"`))
		if v != nil {
			v, _ = v.Element(at[len(at)-1])
		}
	}
	return at
}
