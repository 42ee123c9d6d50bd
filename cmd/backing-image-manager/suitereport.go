package main

import (
	"fmt"
	"io"
	"strings"
)

// outcome is how a scenario ended.
type outcome string

const (
	hasPassed  outcome = "ok"
	hasFailed  outcome = "FAIL"
	wasSkipped outcome = "skip"
)

// played is a scenario that was played.
type played struct {
	File    string  `json:"file"`
	Outcome outcome `json:"outcome"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"` // why it failed, with FILE:LINE, or was skipped
	Log     string  `json:"log,omitempty"`     // of the last part, or of all of it
}

// suiteReport is what all scenarios came to.
type suiteReport struct {
	Scenarios []played `json:"scenarios"`
	Passed    int      `json:"passed"`
	Failed    int      `json:"failed"`
	Skipped   int      `json:"skipped"`
}

func (r *suiteReport) add(p played) {
	r.Scenarios = append(r.Scenarios, p)
	switch p.Outcome {
	case hasPassed:
		r.Passed++
	case hasFailed:
		r.Failed++
	case wasSkipped:
		r.Skipped++
	}
}

func (r *suiteReport) summary() string {
	all := count(len(r.Scenarios), "scenario")
	text := all + " passed."
	if r.Failed > 0 {
		text = fmt.Sprintf("%d of %s failed.", r.Failed, all)
	} else if r.Skipped > 0 {
		text = fmt.Sprintf("%d of %s passed.", r.Passed, all)
	}
	if r.Skipped > 0 {
		text = fmt.Sprintf("%s, %d skipped.", strings.TrimSuffix(text, "."), r.Skipped)
	}
	return text
}

// write tells people of a scenario: in a line, and where it failed, or is to be told
// whole, with what it did.
func (p played) write(w io.Writer, whole bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-5s %s (%.3fs)", p.Outcome, p.File, p.Seconds)
	if p.Outcome == wasSkipped && p.Message != "" {
		fmt.Fprintf(&b, ": %s", p.Message)
	}
	b.WriteByte('\n')
	if p.Log != "" && (whole || p.Outcome == hasFailed) {
		indent(&b, p.Log)
	}
	if p.Outcome == hasFailed {
		indent(&b, p.Message)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func indent(b *strings.Builder, text string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimRight(line, " \n"); line != "" {
			fmt.Fprintf(b, "      %s", line)
		}
		b.WriteByte('\n')
	}
}
