package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// report has what happened, with times, and what was wrong. It is written to the test log and to a file
// in the folder of the run.
type report struct {
	t     testing.TB
	start time.Time

	mu         sync.Mutex
	file       *os.File
	violations []string
	seen       map[string]bool // violations, so that each is reported once
	faults     map[Kind]int    // events that happened
	skipped    int             // events that found nothing to happen to
	excused    map[string]int
}

func newReport(t testing.TB, dir string) (*report, error) {
	f, err := os.Create(filepath.Join(dir, "events.log"))
	return &report{
		t: t, start: time.Now(), file: f, seen: map[string]bool{}, faults: map[Kind]int{}, excused: map[string]int{},
	}, err
}

// note adds a line.
func (r *report) note(format string, args ...any) {
	r.t.Helper()
	line := fmt.Sprintf("%7.2fs  %s", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
	r.mu.Lock()
	fmt.Fprintln(r.file, line)
	r.mu.Unlock()
	r.t.Log(line)
}

// violation adds a broken promise. It is noted once for each key.
func (r *report) violation(key, format string, args ...any) {
	r.t.Helper()
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	known := r.seen[key]
	r.seen[key] = true
	if !known {
		r.violations = append(r.violations, fmt.Sprintf("%.2fs: %s", time.Since(r.start).Seconds(), text))
	}
	r.mu.Unlock()
	if !known {
		r.note("VIOLATION: %s", text)
	}
}

// excuse counts something that would be a violation if the suite had not done something itself.
func (r *report) excuse(what, format string, args ...any) {
	r.t.Helper()
	r.mu.Lock()
	r.excused[what]++
	r.mu.Unlock()
	r.note("excused (%s): %s", what, fmt.Sprintf(format, args...))
}

// happened counts an event.
func (r *report) happened(e Event, detail string) {
	r.t.Helper()
	r.mu.Lock()
	r.faults[e.Kind]++
	r.mu.Unlock()
	if e.For > 0 {
		detail += fmt.Sprintf(" for %.1fs", e.For.Seconds())
	}
	r.note("%s %s", e.Kind, detail)
}

func (r *report) skip() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.skipped++
}

// broken reports whether there is a violation.
func (r *report) broken() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.violations) > 0
}

// summary returns the number of events, and the violations.
func (r *report) summary() (events int, violations []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range r.faults {
		events += n
	}
	return events, r.violations
}
