package load

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/errors"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/schema"
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

	// One of these three has the valid part of the definition: all of it, if there are no problems. If there are any, the
	// part is only used to find further problems, and may be nil.
	settings *schema.Settings
	node     *schema.Node
	image    *schema.Image
	// followReplicas is the value that the image declares. nil: it declares none.
	followReplicas *bool
}

// task is a definition to validate. The validation fills in checked.
type task struct {
	key
	kind    *manifest.Kind // nil for the native form
	value   *document.Value
	checked *checked
}

const (
	// batchSize is how many definitions are checked in one CUE context, which keeps everything that it evaluated.
	batchSize = 100
	workers   = 2
)

// checkAll validates the tasks while the process has used less processor time than the argument until. The tasks that
// are left over then are unfinished. The error is why ctx ended.
func (l *Loader) checkAll(ctx context.Context, tasks []task, until time.Duration) error {
	batches := make(chan []task)
	most := max(1, min(maxProblems, 10*maxErrors/max(1, len(tasks))))
	var wait sync.WaitGroup
	for range workers {
		wait.Go(func() {
			for batch := range batches {
				c := checker{}
				for _, t := range batch {
					if ctx.Err() != nil || processorTime() > until {
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
		panic(fmt.Sprintf("load: read the processor time: %v", err)) // only wrong arguments make it fail
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// notFinished is the result of a task for which no time was left.
func notFinished() checked {
	return checked{unfinished: true, problems: []document.Problem{{AtName: true,
		Message: fmt.Sprintf("is not checked yet: the files of the directory take more than %v of processor time", loadTime), Hint: "wait, or declare less in one directory"}}}
}

// checker validates definitions one after the other, in one CUE context.
type checker struct {
	context *cue.Context // nil until it is needed
	schema  cue.Value    // in that context
}

// check validates one definition: by CUE, and then what only Go can check.
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
	if p, ok := misplacedField(readSpecs()[sectionDefinitions[t.section]], t); ok {
		return checked{problems: []document.Problem{p}}
	}
	result = c.checkNative(t)
	if err := checkName(t.key); err != nil { // report the other problems, too
		result.problems = append([]document.Problem{{AtName: true, Message: err.Error()}}, result.problems...)
	}
	return result
}

// misplacedField returns the problem of a field that is not indented and looks like another image or node. The field has
// the name of a field of images or nodes, and contains no such field.
func misplacedField(sp *spec, t task) (document.Problem, bool) {
	if t.section == settingsSection || sp.fields[t.name] == nil || knownFields(t.value, sp) > 0 || t.value.Kind == document.Map && len(t.value.Fields) == 0 {
		return document.Problem{}, false
	}
	return document.Problem{AtName: true, Message: fmt.Sprintf("is a field of %s, but is at the place of a name", article[t.section]),
		Hint: fmt.Sprintf("indent %q like the other fields", t.name)}, true
}

// article has the word for an entry of a section, with its article.
var article = [sections]string{nodesSection: "a node", imagesSection: "an image"}

// checkNative validates a definition in the native form, without its name. What is valid of a definition with
// mistakes is checked further, so that all mistakes are reported at once.
func (c *checker) checkNative(t task) checked {
	name := sectionDefinitions[t.section]
	values, s := c.validate(name, t.value)
	if len(s.problems) > 0 && len(values) == 0 {
		return checked{problems: s.problems}
	}
	result := fields{place{decoder: &decoder{value: t.value}}, readSpecs()[name], values}.decode(t.key)
	others := slices.DeleteFunc(result.problems, func(p document.Problem) bool { return s.explains(p.Path) })
	result.problems = append(s.problems, others...)
	return result
}

// checkManifest validates the manifest, and then its native form.
func (c *checker) checkManifest(t task) checked {
	_, s := c.validate(t.kind.Definition, manifest.Own(t.value))
	if kind, class := manifest.ClassOf(t.value); class != nil {
		_, of := c.validate(kind.Definition, class)
		for _, p := range of.problems {
			p.Path = append(document.Path{kind.Name}, p.Path...)
			s.problems = append(s.problems, p)
		}
	}
	if len(s.problems) > 0 {
		return checked{problems: s.problems}
	}
	conversion := t.kind.Convert(t.value)
	conversion.Warnings = append(conversion.Warnings, s.warnings...)
	if len(conversion.Problems) > 0 {
		return checked{problems: conversion.Problems}
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

// validate validates v with a definition of the schema. It returns the fields of v in which it found no problem.
func (c *checker) validate(definition string, v *document.Value) (valid map[string]any, s *structure) {
	sp := readSpecs()[definition]
	s = &structure{root: sp}
	plain, _ := s.plain(v, sp, nil)
	valid, _ = plain.(map[string]any)
	if len(valid) == 0 && len(s.problems) > 0 {
		return nil, s
	}
	if c.context == nil {
		c.context = cuecontext.New()
		c.schema = compile(c.context)
	}
	value := c.schema.LookupPath(cue.ParsePath(definition)).Unify(c.context.Encode(valid))
	for _, at := range errorPaths(value.Validate(cue.Concrete(true), cue.Final()), v) {
		if !s.explains(at) {
			s.report(explain(sp, v, at))
		}
		leaveOut(valid, at)
	}
	return valid, s
}

// leaveOut removes the field at a path, or the nearest field around it, and then each mapping that has become empty.
func leaveOut(fields map[string]any, at document.Path) {
	if len(at) == 0 {
		return
	}
	below, _ := fields[at[0]].(map[string]any)
	if len(at) > 1 && below != nil {
		leaveOut(below, at[1:])
	}
	if len(at) == 1 || len(below) == 0 {
		delete(fields, at[0])
	}
}

// errorPaths returns the paths of the errors of CUE, each once. The messages of CUE contain the schema, so the function
// explain replaces them.
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
