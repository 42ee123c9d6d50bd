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
	"github.com/seed-26586806/backing-image-manager/schema/manifest"
)

// checked is the result of validating one definition. It does not depend on the position of
// the definition.
type checked struct {
	// conversion is the native form of a manifest. It is nil if the manifest is invalid.
	conversion *manifest.Conversion
	problems   []document.Problem
	// loopback has the problems that count only while allowLoopbackSources is off.
	loopback []document.Problem

	// One of them is set if there are no problems.
	settings *Settings
	node     *Node
	image    *Image
}

// task is a definition to validate. checked is filled in.
type task struct {
	key
	kind    *manifest.Kind // nil for the native form
	value   *document.Value
	checked *checked
}

const (
	// batchSize is how many definitions one CUE context checks before it is dropped.
	batchSize = 200
	workers   = 2
)

// checkAll validates the tasks in batches. A few contexts exist at a time.
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
		*t.checked = c.check(l.specs, t)
	}
}

// check validates one definition: first its structure, then by CUE the rest of it,
// and then what only Go can check.
func (c compiled) check(all specs, t task) (result checked) {
	defer func() {
		// A panic of CUE must not end the manager, whatever the file contains.
		if p := recover(); p != nil {
			result = checked{problems: []document.Problem{{AtName: true, Message: document.Printable(fmt.Sprintf("cannot be checked: %v", p))}}}
		}
	}()
	if t.kind != nil {
		return c.checkManifest(all, t)
	}
	result = c.checkNative(all.sections[t.section], t)
	if err := checkName(t.key); err != nil { // report the other problems, too
		name := document.Problem{AtName: true, Message: err.Error()}
		return checked{problems: append([]document.Problem{name}, result.problems...), loopback: result.loopback}
	}
	return result
}

// checkNative validates a definition in the native form, without its name. If it has
// mistakes of structure, the rest is validated, too.
func (c compiled) checkNative(sp *spec, t task) checked {
	v, s, valid := c.validate(c.sections[t.section], sp, t.value)
	if !valid {
		return checked{problems: s.problems}
	}
	result := decode(t, v)
	if len(s.problems) == 0 {
		return result
	}
	others := slices.DeleteFunc(result.problems, func(p document.Problem) bool { return s.explains(p.Path, sp, t.value) })
	return checked{problems: append(s.problems, others...), loopback: result.loopback}
}

// checkManifest validates the manifest, and then its native form.
func (c compiled) checkManifest(all specs, t task) checked {
	if _, s, _ := c.validate(c.manifests[t.kind], all.manifests[t.kind], manifest.Own(t.value)); len(s.problems) > 0 {
		return checked{problems: s.problems}
	}
	if !t.kind.Declares() {
		return checked{}
	}
	conversion := t.kind.Convert(t.value)
	if len(conversion.Problems) > 0 {
		return checked{problems: conversion.Problems}
	}
	result := c.check(all, task{key: t.key, value: conversion.Value})
	result.conversion = conversion
	for _, problems := range [][]document.Problem{result.problems, result.loopback} {
		for i := range problems {
			problems[i] = conversion.ToManifest(problems[i])
		}
	}
	return result
}

// validate unifies v with a definition of the schema. It returns the value with
// all defaults, the problems, and whether the value without the wrong parts is valid.
func (c compiled) validate(definition cue.Value, sp *spec, v *document.Value) (cue.Value, *structure, bool) {
	s := &structure{root: sp}
	plain, ok := s.plain(v, sp, nil)
	if !ok {
		return cue.Value{}, s, false
	}
	unified, wrong := c.unify(definition, plain, v)
	if len(wrong) == 0 {
		return unified, s, true
	}
	for _, at := range wrong {
		if !s.explains(at, sp, v) {
			s.report(explain(sp, v, at))
		}
		removeField(plain, at)
	}
	unified, wrong = c.unify(definition, plain, v)
	return unified, s, len(wrong) == 0
}

// unify returns the unified value, and the paths where it is wrong.
func (c compiled) unify(definition cue.Value, plain any, v *document.Value) (cue.Value, []document.Path) {
	unified := definition.Unify(c.context.Encode(plain))
	return unified, errorPaths(unified.Validate(cue.Concrete(true), cue.Final()), v)
}

// removeField removes the field at a path, or the nearest one around it.
func removeField(plain any, at document.Path) {
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

// errorPaths returns the paths of the errors of CUE, each once. The messages of CUE
// contain the schema, so explain writes others.
func errorPaths(err error, root *document.Value) []document.Path {
	var paths []document.Path
	for _, e := range errors.Errors(err) {
		paths = append(paths, userPath(e.Path(), root))
	}
	slices.SortFunc(paths, func(a, b document.Path) int { return slices.Compare(a, b) })
	paths = slices.CompactFunc(paths, slices.Equal)
	// A mapping is wrong because of a value in it: report only that value.
	return slices.DeleteFunc(slices.Clone(paths), func(p document.Path) bool {
		return slices.ContainsFunc(paths, func(q document.Path) bool { return len(q) > len(p) && q.Within(p) })
	})
}

// userPath removes the definition at the beginning of CUE's path, and puts the
// indexes of lists in brackets.
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
