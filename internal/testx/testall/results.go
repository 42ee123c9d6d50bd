package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
)

// event is one line of the output of "go test -json" (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of build-output
	Test       string
	Elapsed    float64 // seconds
	Output     string
}

// results collects the results of several runs of go test and prints them.
type results struct {
	out                     io.Writer
	passed, failed, skipped int
	failures                []failure
	unsteady                []string            // tests that failed once, and passed alone
	skips                   map[string][]string // tests, by reason
	running                 map[string]*pkg     // by import path
	builds                  map[string][]string // output of failed builds, by import path
}

// pkg is a package with tests that have not ended yet.
type pkg struct {
	tests   []*test // in the order of their start
	byName  map[string]*test
	output  []string // output that does not belong to a test
	skipped int
}

type test struct {
	name   string
	output []string
	passed bool // passed or skipped
}

// failure is a test that failed, or a package in which no test failed.
type failure struct {
	pkg   string // as short returns it
	test  string // "": the package
	final bool   // to run it again would prove nothing
}

func (f failure) String() string {
	if f.test == "" {
		return f.pkg
	}
	return f.pkg + "." + f.test
}

// final are texts in the output of failures that no second run takes back.
var final = []string{"DATA RACE", "race detected", "panic:", "fatal error:", "signal: "}

// random has the packages whose tests look for violations of rules in many runs. A second run that finds none
// proves nothing.
var random = []string{"internal/testx/chaos", "reconcile/simulation"}

// isFinal reports whether a test failed in a way that no second run takes back.
func isFinal(output []string) bool {
	return slices.ContainsFunc(output, func(line string) bool {
		return slices.ContainsFunc(final, func(text string) bool { return strings.Contains(line, text) })
	})
}

func newResults(out io.Writer) *results {
	return &results{out: out, skips: map[string][]string{}, running: map[string]*pkg{}, builds: map[string][]string{}}
}

// read reads the output of one go test run until its end.
func (r *results) read(stream io.Reader) error {
	lines := bufio.NewReader(stream)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) != nil {
				fmt.Fprintf(r.out, "%s", line)
			} else {
				r.add(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
	}
}

func (r *results) add(e event) {
	if strings.HasPrefix(e.Action, "build-") {
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], e.Output)
		return
	}
	p := r.running[e.Package]
	if p == nil {
		p = &pkg{byName: map[string]*test{}}
		r.running[e.Package] = p
	}
	if e.Test == "" {
		r.addToPackage(p, e)
		return
	}
	t := p.byName[e.Test]
	if t == nil {
		t = &test{name: e.Test}
		p.byName[e.Test] = t
		p.tests = append(p.tests, t)
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
	case "pass":
		t.passed = true
		r.passed++
	case "skip":
		t.passed = true
		p.skipped++
		r.skip(t.reason(), short(e.Package)+"."+t.name)
	}
	if t.passed {
		t.output = nil // otherwise hours of output would stay in memory
	}
}

// addToPackage handles an event of a package, not of a single test.
func (r *results) addToPackage(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output = append(p.output, e.Output)
		return
	case "pass":
		note := ""
		if p.skipped > 0 {
			note = fmt.Sprintf("  (%d skipped)", p.skipped)
		}
		if slices.ContainsFunc(p.output, func(line string) bool { return strings.Contains(line, "\t(cached)") }) {
			note += "  (cached)"
		}
		fmt.Fprintf(r.out, "ok    %s  %.1fs%s\n", short(e.Package), e.Elapsed, note)
	case "skip": // the package has no tests
	case "fail":
		r.printFailure(p, e)
	default:
		return
	}
	delete(r.running, e.Package)
}

// printFailure prints the output of a package and of its tests that did not pass. A test that ended
// with a panic has no event.
func (r *results) printFailure(p *pkg, e event) {
	before := r.failed
	for _, t := range p.tests {
		if t.passed {
			continue
		}
		r.failed++
		r.failures = append(r.failures, failure{pkg: short(e.Package), test: t.name, final: isFinal(t.output) || isFinal(p.output)})
		for _, line := range t.output {
			if !strings.HasPrefix(line, "=== ") {
				fmt.Fprint(r.out, line)
			}
		}
	}
	if r.failed == before {
		r.failed++
		r.failures = append(r.failures, failure{pkg: short(e.Package), final: true})
	}
	for _, path := range slices.Sorted(maps.Keys(r.builds)) {
		fmt.Fprint(r.out, strings.Join(r.builds[path], ""))
		delete(r.builds, path)
	}
	fmt.Fprint(r.out, strings.Join(p.output, ""))
	fmt.Fprintf(r.out, "FAIL  %s  %.1fs\n", short(e.Package), e.Elapsed)
}

var logged = regexp.MustCompile(`^\s+(\S+\.go):\d+: (.*)\n`)

// reason returns the last line that the test logged, which is the argument of Skip. It ignores the
// log of a scenario, which testscript prints after this line.
func (t *test) reason() string {
	for _, line := range slices.Backward(t.output) {
		if m := logged.FindStringSubmatch(line); m != nil && m[1] != "testscript.go" {
			return m[2]
		}
	}
	return "no reason given"
}

func (r *results) skip(reason, test string) {
	r.skipped++
	if !slices.Contains(r.skips[reason], test) { // the runs with and without the race detector skip the same tests
		r.skips[reason] = append(r.skips[reason], test)
	}
}

// retry is a package with the tests to run again: those that failed, and no subtest of them did.
type retry struct {
	pkg   string // as short returns it
	tests []string
}

// pattern returns the value of the flag -run that selects these tests.
func (r retry) pattern() string {
	patterns := make([]string, len(r.tests))
	for i, name := range r.tests {
		levels := strings.Split(name, "/")
		for j, level := range levels {
			levels[j] = "^" + regexp.QuoteMeta(level) + "$"
		}
		patterns[i] = strings.Join(levels, "/")
	}
	return strings.Join(patterns, "|")
}

// retriable returns the tests that failed, if a run without the others can show that only the load of the
// machine made them fail. Otherwise it returns nothing: a failure is final, a package has not ended, or
// so many packages failed that the load is not the reason.
func (r *results) retriable() []retry {
	const most = 3
	failed := map[string][]string{}
	for _, f := range r.failures {
		if f.final || slices.Contains(random, f.pkg) {
			return nil
		}
		failed[f.pkg] = append(failed[f.pkg], f.test)
	}
	if len(failed) > most || len(r.running) > 0 {
		return nil
	}
	var found []retry
	for _, pkg := range slices.Sorted(maps.Keys(failed)) {
		all := failed[pkg]
		leaves := slices.DeleteFunc(slices.Clone(all), func(name string) bool {
			return slices.ContainsFunc(all, func(other string) bool { return strings.HasPrefix(other, name+"/") })
		})
		found = append(found, retry{pkg, leaves})
	}
	return found
}

// passedAlone takes all failures back: these tests have passed in a second run.
func (r *results) passedAlone() {
	for _, f := range r.failures {
		r.unsteady = append(r.unsteady, f.String())
	}
	r.failures, r.failed = nil, 0
}

// notRun adds tests that testall did not start.
func (r *results) notRun(reason, tests string) { r.skips[reason] = append(r.skips[reason], tests) }

// summary prints the reasons for skips, the failures, and the counts.
func (r *results) summary() {
	if len(r.skips) > 0 {
		fmt.Fprintln(r.out, "\nSkipped:")
	}
	for _, reason := range slices.Sorted(maps.Keys(r.skips)) {
		fmt.Fprintf(r.out, "  %s\n    %s\n", reason, strings.Join(firstFew(slices.Sorted(slices.Values(r.skips[reason]))), ", "))
	}
	if len(r.unsteady) > 0 {
		fmt.Fprintln(r.out, "\nFailed beside other packages, and passed alone:")
	}
	for _, name := range r.unsteady {
		fmt.Fprintf(r.out, "  %s\n", name)
	}
	if len(r.failures) > 0 {
		fmt.Fprintln(r.out, "\nFailed:")
	}
	for _, f := range r.failures {
		fmt.Fprintf(r.out, "  %s\n", f)
	}
	fmt.Fprintf(r.out, "\n%d passed, %d failed, %d skipped\n", r.passed, r.failed, r.skipped)
}

// firstFew returns at most ten names, and the number of omitted names.
func firstFew(names []string) []string {
	const most = 10
	if len(names) <= most {
		return names
	}
	return append(slices.Clone(names[:most]), fmt.Sprintf("and %d more", len(names)-most))
}

// short returns an import path without the name of the module.
func short(importPath string) string {
	const module = "github.com/seed-26586806/backing-image-manager"
	if rest, ours := strings.CutPrefix(importPath, module+"/"); ours {
		return rest
	}
	return path.Base(importPath)
}
