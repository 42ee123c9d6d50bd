package schema

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/errors"
	"golang.org/x/sys/unix"

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

	// unfinished: there was no time for the validation, and problems says so.
	unfinished bool

	// One of them is set if there are no problems.
	settings *Settings
	node     *Node
	image    *Image
	// rest is, of an image with problems, what is valid of it. It is nil if nothing is known. It
	// is only used to find further problems.
	rest *Image
}

// task is a definition to validate. checked is filled in.
type task struct {
	key
	kind    *manifest.Kind // nil for the native form
	value   *document.Value
	checked *checked
}

const (
	// contextSize is how many values one CUE context checks before it is dropped.
	contextSize = 200
	// batchSize is how many definitions a worker takes at once.
	batchSize = 200
	workers   = 2
)

// checkAll validates the tasks. A few CUE contexts exist at a time. The error is why ctx ended.
// Tasks for which there is no time are unfinished.
func (l *Loader) checkAll(ctx context.Context, tasks []task, used *timer) error {
	batches := make(chan []task)
	most := max(1, min(maxProblems, 10*maxErrors/max(1, len(tasks))))
	var wait sync.WaitGroup
	for range min(workers, 1+len(tasks)/batchSize) {
		wait.Go(func() {
			c := checker{specs: l.specs}
			for batch := range batches {
				for _, t := range batch {
					if ctx.Err() != nil || used.expired() {
						*t.checked = notFinished()
						continue
					}
					*t.checked = c.check(t)
					t.checked.problems = slices.Clip(t.checked.problems[:min(most, len(t.checked.problems))])
				}
			}
		})
	}
	for batch := range slices.Chunk(tasks, batchSize) {
		batches <- batch
	}
	close(batches)
	wait.Wait()
	return ctx.Err()
}

// processorTime returns the processor time that the process has used.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(fmt.Sprintf("schema: read the processor time: %v", err)) // it fails only for other arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// notFinished is the result of a task for which no time was left.
func notFinished() checked {
	return checked{unfinished: true, problems: []document.Problem{{AtName: true,
		Message: fmt.Sprintf("is not checked yet: the files of the directory take more than %v of processor time", loadTime), Hint: "wait, or declare less in one directory"}}}
}

// checker validates definitions one after the other. It compiles the schema only for a
// definition that CUE has to check, and again when the last context has grown: a file of invalid
// definitions costs little.
type checker struct {
	specs  specs
	schema *compiled
	uses   int // of schema
}

// check validates one definition: first its structure, then by CUE the rest of it,
// and then what only Go can check.
func (c *checker) check(t task) (result checked) {
	defer func() {
		// A panic of CUE must not end the manager, whatever the file contains.
		if p := recover(); p != nil {
			result = checked{problems: []document.Problem{{AtName: true, Message: document.Printable(fmt.Sprintf("cannot be checked: %v", p))}}}
		}
	}()
	if t.kind != nil {
		return c.checkManifest(t)
	}
	if p, ok := misplacedField(c.specs.sections[t.section], t); ok {
		return checked{problems: []document.Problem{p}}
	}
	result = c.checkNative(c.specs.sections[t.section], t)
	if err := checkName(t.key); err != nil { // report the other problems, too
		name := document.Problem{AtName: true, Message: err.Error()}
		return checked{problems: append([]document.Problem{name}, result.problems...), loopback: result.loopback, rest: cmp.Or(result.image, result.rest)}
	}
	return result
}

// misplacedField returns the problem of a field that is not indented, so that it looks like another image or node:
// it has the name of a field, and nothing in it that an image or node has.
func misplacedField(sp *spec, t task) (document.Problem, bool) {
	if t.section == settingsSection || sp.fields[t.name] == nil || knownFields(t.value, sp) > 0 || t.value.Kind == document.Map && len(t.value.Fields) == 0 {
		return document.Problem{}, false
	}
	return document.Problem{AtName: true, Message: fmt.Sprintf("is a field of %s, and has the place of a name", article[t.section]),
		Hint: fmt.Sprintf("indent %q like the other fields", t.name)}, true
}

// article names what a section declares.
var article = [sections]string{nodesSection: "a node", imagesSection: "an image"}

// checkNative validates a definition in the native form, without its name. If it has
// mistakes of structure, the rest is validated, too.
func (c *checker) checkNative(sp *spec, t task) checked {
	if raw := newRaw(t.section); sp.rule.accept(t.value, reflect.ValueOf(raw).Elem()) {
		return decode(t, raw)
	}
	return c.evaluateNative(sp, t)
}

// evaluateNative is checkNative with CUE alone.
func (c *checker) evaluateNative(sp *spec, t task) checked {
	v, s, valid := c.validate(func(schema *compiled) cue.Value { return schema.sections[t.section] }, sp, t.value, stands)
	if !valid {
		return checked{problems: s.problems}
	}
	raw := newRaw(t.section)
	mustDecode(v, raw)
	result := decode(t, raw)
	if len(s.problems) == 0 {
		return result
	}
	others := slices.DeleteFunc(result.problems, func(p document.Problem) bool { return s.explains(p.Path, sp, t.value) })
	return checked{problems: append(s.problems, others...), loopback: result.loopback, rest: cmp.Or(result.image, result.rest)}
}

// checkManifest validates the manifest, and then its native form.
func (c *checker) checkManifest(t task) checked {
	problems, warnings := c.manifestProblems(t.kind, manifest.Own(t.value))
	if len(problems) > 0 {
		return checked{problems: problems}
	}
	if !t.kind.Declares() {
		return checked{}
	}
	conversion := t.kind.Convert(t.value)
	conversion.Warnings = append(conversion.Warnings, warnings...)
	if len(conversion.Problems) > 0 {
		return checked{problems: conversion.Problems}
	}
	if conversion.Declined != "" {
		return checked{conversion: conversion}
	}
	result := c.check(task{key: t.key, value: conversion.Value})
	result.conversion = conversion
	for _, problems := range [][]document.Problem{result.problems, result.loopback} {
		for i := range problems {
			problems[i] = conversion.ToManifest(problems[i])
		}
	}
	return result
}

// manifestProblems validates a manifest by the CUE definition of its kind.
func (c *checker) manifestProblems(k *manifest.Kind, v *document.Value) (problems, warnings []document.Problem) {
	sp := c.specs.manifests[k]
	if sp.rule.accept(v, reflect.Value{}) {
		return nil, nil
	}
	return c.evaluateManifest(sp, k, v)
}

// evaluateManifest is manifestProblems with CUE alone.
func (c *checker) evaluateManifest(sp *spec, k *manifest.Kind, v *document.Value) (problems, warnings []document.Problem) {
	_, s, _ := c.validate(func(schema *compiled) cue.Value { return schema.manifests[k] }, sp, v, nil)
	return s.problems, s.warnings
}

// maxPasses limits how often a definition is validated again without its wrong parts.
const maxPasses = 8

// validate unifies v with a definition of the schema. It returns the value with
// all defaults, the problems, and whether the value is valid when the wrong parts are left out or
// have one of the stands in their place.
func (c *checker) validate(definition func(*compiled) cue.Value, sp *spec, v *document.Value, stands map[string]any) (cue.Value, *structure, bool) {
	s := &structure{root: sp}
	plain, ok := s.plain(v, sp, nil)
	if !ok {
		return cue.Value{}, s, false
	}
	if fields, is := plain.(map[string]any); is && len(fields) == 0 && len(s.problems) > 0 {
		return cue.Value{}, s, false // nothing is left to check
	}
	if c.schema == nil || c.uses >= contextSize {
		c.schema, c.uses = compile(), 0
	}
	// CUE does not find every mistake at once: that a source has no field, for example, only when
	// no value beside it is wrong. So each pass leaves out what the one before has found.
	var found []document.Path
	for range maxPasses {
		c.uses++
		unified, wrong := c.schema.unify(definition(c.schema), plain, v)
		if len(wrong) == 0 {
			return unified, s, true
		}
		for _, at := range wrong {
			switch {
			case slices.ContainsFunc(found, func(p document.Path) bool { return p.Within(at) }):
				at = at.Parent() // the definition needs what was left out
			case !s.explains(at, sp, v):
				s.report(explain(sp, v, at))
			}
			found = append(found, at)
			leaveOut(plain, at, stands)
		}
	}
	return cue.Value{}, s, false
}

// unify returns the unified value, and the paths where it is wrong.
func (c *compiled) unify(definition cue.Value, plain any, v *document.Value) (cue.Value, []document.Path) {
	unified := definition.Unify(c.context.Encode(plain))
	return unified, errorPaths(unified.Validate(cue.Concrete(true), cue.Final()), v)
}

// They stand for a URL and for the name of an image that are wrong or missing.
const (
	unknownURL   = "https://unknown.invalid/"
	unknownImage = "unknown-source-of-an-invalid-clone"
)

// stands are valid values for the fields that the schema requires. They stand for values that
// are wrong or missing while the rest of a definition is validated.
var stands = map[string]any{
	"source": map[string]any{"upload": map[string]any{}}, "url": unknownURL, "backupURL": "s3://unknown@unknown/?backingImage=unknown",
	"target": "s3://unknown@unknown/", "backingImage": unknownImage, "path": "/unknown", "reason": "unknown", "keys": "unknown",
}

// leaveOut removes the field at a path, or the nearest one around it. A field that the schema
// requires gets a valid value.
func leaveOut(plain any, at document.Path, stands map[string]any) {
	for i, step := range at {
		fields, is := plain.(map[string]any)
		if !is {
			return
		}
		if _, deeper := fields[step].(map[string]any); !deeper || i == len(at)-1 {
			if stand, required := stands[step]; required {
				fields[step] = stand
			} else {
				delete(fields, step)
			}
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
