package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// inUseRetry is the delay after a deletion that failed because the copy is in use.
const inUseRetry = time.Minute

// maxRepairs is how many repairs in a row may fail because no source responds before the copy
// is replaced instead, if it can be.
const maxRepairs = 2

// NextFailure returns the failure after the action a failed with err. last is the failure before
// it, the zero value if there was none. rnd, from [0, 1), spreads the retries of a fleet.
func NextFailure(last plan.Failure, a plan.Action, err error, now time.Time, rnd float64) plan.Failure {
	suspects := slices.Clone(last.Suspects)
	attempts := last.Attempts
	if !last.AppliesTo(a.Op) {
		attempts = 0
	}
	fault, final, wait := classify(err, attempts, rnd)
	// A failed copy is repaired, or replaced by a sync if it is unrepairable. When the sync fails,
	// the repair is tried again.
	unrepairable := last.Unrepairable && a.Op != plan.Sync
	if a.Op == plan.Repair && (fault != plan.FaultNetwork || last.Attempts >= maxRepairs) {
		unrepairable = true
	}
	if !last.AppliesTo(a.Op) {
		last = plan.Failure{}
	}
	wrong, isChecksum := errors.AsType[*disk.ChecksumError](err)
	unreadable := errors.Is(err, disk.ErrDamaged) && (a.Op == plan.Sync || a.Op == plan.Clone)
	if isChecksum && (a.Op == plan.Sync || a.Op == plan.Clone && wrong.Want == a.SourceDigest) || unreadable {
		final = false // another copy, or the source, may have the right bytes
		if a.LocalSource != (plan.CopyRef{}) {
			suspects = append(suspects, a.LocalSource) // no other job reads it until it is verified
		}
		if a.Op == plan.Clone || unreadable {
			fault = plan.FaultNetwork // another node may have a better copy
		}
	}
	if a.Op == plan.Repair {
		final = false // another copy may have the chunks
	}
	if a.Op == plan.Export && fault == plan.FaultSource && !final {
		fault = plan.FaultNetwork // another node may have a better replica
	}
	if fault == plan.FaultDisk && final {
		fault = plan.FaultSource // only another declaration helps, and not another disk
	}
	next := plan.Failure{
		Op: a.Op, Fault: fault, Attempts: last.Attempts + 1, Since: last.Since, Message: errorText(err),
		Final: final, Unrepairable: unrepairable, Suspects: suspects,
	}
	// Other nodes take over when a fault of the disk or the network has lasted for the recovery
	// interval, so that the time begins again with another kind of fault.
	if next.Since.IsZero() || fault != plan.FaultSource && fault != last.Fault {
		next.Since = now
	}
	if isChecksum && final && !a.Pinned.Digest.IsZero() {
		next.Final, next.RetryAt = false, now.Add(a.Pinned.Until.Sub(now))
		next.Message += "; after the recovery interval other bytes are accepted, since no checksum is declared"
		return next
	}
	if final {
		return next
	}
	if lack, ok := errors.AsType[*disk.NoSpaceError](err); ok {
		next.NeedsSpace = max(lack.Need, last.NeedsSpace) // the first attempt knows less about the size
	}
	if wait == 0 {
		wait, _ = fetch.Backoff(fetch.Network, last.Attempts, rnd)
	}
	next.RetryAt = now.Add(wait)
	return next
}

// errorText returns the text of err with its hint, if it has one.
func errorText(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok && e.Hint != "" {
		return fmt.Sprintf("%v (%s)", err, e.Hint)
	}
	return err.Error()
}

// classify returns where the cause of err lies, whether only another declaration helps, and how
// long to wait after that many earlier attempts, 0 if the error does not say.
func classify(err error, attempts int, rnd float64) (fault plan.Fault, final bool, wait time.Duration) {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		if e.Class == fetch.BadConfig {
			// Credentials are corrected outside of the declaration, and another node may have them.
			wait, _ := fetch.Backoff(fetch.Refused, 0, rnd)
			return plan.FaultNetwork, false, wait
		}
		wait, final := e.Backoff(attempts, rnd)
		switch {
		case e.Class == fetch.Network, e.Class == fetch.Dropped:
			return plan.FaultNetwork, final, wait
		case errors.Is(err, disk.ErrNoSpace):
			return plan.FaultDisk, final, wait
		}
		return plan.FaultSource, final, wait
	}
	switch {
	case isA[*disk.ChecksumError](err), isA[*disk.FormatError](err), errors.Is(err, disk.ErrTooLarge):
		return plan.FaultSource, true, 0
	case isA[*disk.InUseError](err), errors.Is(err, disk.ErrModified):
		return plan.FaultSource, false, inUseRetry
	case errors.Is(err, context.DeadlineExceeded):
		return plan.FaultNetwork, false, 0
	}
	return plan.FaultDisk, false, 0
}

// isA reports whether an error in the tree of err has the type E.
func isA[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

// FailureClass returns the class of a failure for metrics: a class of package fetch, "disk" or
// "in use".
func FailureClass(err error) string {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		return e.Class.String()
	}
	switch {
	case errors.Is(err, disk.ErrNoSpace):
		return fetch.NoSpace.String()
	case isA[*disk.InUseError](err):
		return "in use"
	}
	if fault, _, _ := classify(err, 0, 0); fault != plan.FaultDisk {
		return fetch.BadSource.String()
	}
	return "disk"
}
