package schema

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// verdict is what the schema says of one thing, wherever it stands.
type verdict struct {
	// translation is what a manifest says natively, nil where it is wrong itself.
	translation *translation
	faults      []fault
	// loopback are faults only where allowLoopbackSources is off.
	loopback []fault

	// One of them is set when there are no faults.
	settings *Settings
	node     *Node
	image    *Image
}

// task is a thing to check: verdict is filled in.
type task struct {
	key
	form    *form // nil: value is native
	value   *value
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
			result = verdict{faults: []fault{{atName: true, msg: printable(fmt.Sprintf("cannot be checked: %v", p))}}}
		}
	}()
	if t.form != nil {
		return c.checkManifest(all, t)
	}
	result = c.whole(all.things[t.section], t)
	if err := checkThingName(t.key); err != nil { // which is no reason to say nothing of the rest
		name := fault{atName: true, msg: err.Error()}
		return verdict{faults: append([]fault{name}, result.faults...), loopback: result.loopback}
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
	beside := slices.DeleteFunc(result.faults, func(f fault) bool { return s.explains(f.path, sh, t.value) })
	return verdict{faults: append(s.faults, beside...), loopback: result.loopback}
}

// checkManifest judges a manifest by itself, and then what it says natively.
func (c compiled) checkManifest(all shapes, t task) verdict {
	if _, s, _ := c.valid(c.manifests[t.form.definition], all.manifests[t.form.definition], t.value.own()); len(s.faults) > 0 {
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
