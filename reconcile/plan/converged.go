package plan

import (
	"errors"
	"fmt"
	"strings"
)

// CheckConverged returns an error if a run did not converge: p is the plan that remains
// after it. The error counts the reasons. Clean-ups that wait for their interval do not
// count, nor does a lack of disks.
func CheckConverged(d Desired, o Observed, p Plan) error {
	failed := ownFailures(d, o)
	var reasons []string
	if n := len(failed); n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d failed", n))
	}
	if n := countBlocked(p, failed); n > 0 && len(reasons) > 0 {
		reasons = append(reasons, fmt.Sprintf("%d more are blocked", n))
	} else if n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d blocked", n))
	}
	if n := d.missing(o); len(reasons) == 0 && n > 0 {
		reasons = append(reasons, fmt.Sprintf("%d not ready", n))
	}
	if len(reasons) == 0 && !p.Empty() {
		reasons = append(reasons, "the plan is not empty")
	}
	if len(reasons) == 0 {
		return nil
	}
	return errors.New("the disks do not match the configuration yet: " + strings.Join(reasons, ", "))
}

// CheckExecuted returns an error if a run did not execute all of the saved plan s: p is the
// plan that remains after it.
func CheckExecuted(s SavedPlan, d Desired, o Observed, p Plan) error {
	failed := 0
	for _, ref := range ownFailures(d, o) {
		if s.contains(ref) {
			failed++
		}
	}
	remaining := len(s.remaining(p).Actions)
	switch {
	case failed > 0:
		return fmt.Errorf("the saved plan was not executed: %d failed", failed)
	case remaining == 1:
		return errors.New("the saved plan was not executed: 1 action remains")
	case remaining > 0:
		return fmt.Errorf("the saved plan was not executed: %d actions remain", remaining)
	}
	return nil
}

// ownFailures returns the copies on the disks of this node whose last attempt failed.
func ownFailures(d Desired, o Observed) []CopyRef {
	var refs []CopyRef
	for ref, f := range o.Failures {
		if ref.Disk.Node == d.Node && f.Attempts > 0 {
			refs = append(refs, ref)
		}
	}
	return refs
}

// countBlocked counts the blocked actions, except those of images that failed: a final
// failure is blocked, too, and must not count twice.
func countBlocked(p Plan, failed []CopyRef) int {
	names := map[string]bool{}
	for _, ref := range failed {
		names[ref.ID.Name] = true
	}
	n := 0
	for _, a := range p.Actions {
		if a.Op == Blocked && !names[a.Image] {
			n++
		}
	}
	return n
}
