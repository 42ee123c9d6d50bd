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

// inUseRetry is how long after a refused deletion the users are looked at again.
const inUseRetry = time.Minute

// maxRepairs is how many repairs in a row may fail for want of an answer before the
// copy is replaced, if it can be.
const maxRepairs = 2

// NextFailure returns the failure to remember after a failed with err and t was remembered
// before. rnd, from [0, 1), spreads the retries of a fleet.
func NextFailure(t plan.Failure, a plan.Action, err error, now time.Time, rnd float64) plan.Failure {
	suspects := slices.Clone(t.Suspects)
	attempts := t.Attempts
	if !t.AppliesTo(a.Op) {
		attempts = 0
	}
	class, final, after := classify(err, attempts, rnd)
	unrepairable := t.Unrepairable && a.Op != plan.Sync // which failed too: they take turns
	if a.Op == plan.Repair && (class != networkFault || t.Attempts >= maxRepairs) {
		unrepairable = true
	}
	if !t.AppliesTo(a.Op) {
		t = plan.Failure{}
	}
	wrong, ok := errors.AsType[*disk.ChecksumError](err)
	unreadable := errors.Is(err, disk.ErrDamaged) && (a.Op == plan.Sync || a.Op == plan.Clone)
	if ok && (a.Op == plan.Sync || a.Op == plan.Clone && wrong.Want == a.SourceDigest) || unreadable {
		final = false // another copy, or the source, may have the right bytes
		if a.LocalSource != (plan.CopyRef{}) {
			suspects = append(suspects, a.LocalSource)
		}
		if a.Op == plan.Clone || unreadable {
			class = networkFault // another node may have a better copy
		}
	}
	if a.Op == plan.Repair {
		final = false // another copy may have the chunks
	}
	if a.Op == plan.Export && class == sourceFault && !final {
		class = networkFault // or a better replica
	}
	next := plan.Failure{Suspects: suspects, Unrepairable: unrepairable, Op: a.Op, Attempts: t.Attempts + 1, Since: t.Since, Message: explain(err), Final: final}
	next.Disk, next.Link = class == diskFault && !final, class == networkFault
	if next.Since.IsZero() || next.Disk && !t.Disk || next.Link && !t.Link {
		next.Since = now
	}
	if isA[*disk.ChecksumError](err) && final && !a.Pinned.Digest.IsZero() {
		next.Final, next.RetryAt = false, now.Add(a.Pinned.Until.Sub(now))
		next.Message += "; after the recovery interval other bytes will do, as no checksum is declared"
		return next
	}
	if final {
		return next
	}
	if lack, ok := errors.AsType[*disk.NoSpaceError](err); ok {
		next.NeedsSpace = max(lack.Need, t.NeedsSpace)
	}
	wait := after
	if wait == 0 {
		wait, _ = fetch.Backoff(fetch.Network, t.Attempts, rnd)
	}
	next.RetryAt = now.Add(wait)
	return next
}

// explain is err for people, with what to do about it where that is known.
func explain(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok && e.Hint != "" {
		return fmt.Sprintf("%v (%s)", err, e.Hint)
	}
	return err.Error()
}

type fault uint8

const (
	sourceFault  fault = iota
	networkFault       // or the source's: from here it cannot be told
	diskFault
)

// classify says whose fault err is, whether anything but another declaration helps,
// and how long to wait, if the error knows, after that many attempts before.
func classify(err error, attempts int, rnd float64) (whose fault, final bool, after time.Duration) {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		if e.Class == fetch.BadConfig {
			// Credentials are mended outside of the declaration.
			wait, _ := fetch.Backoff(fetch.Refused, 0, rnd)
			return networkFault, false, wait // another node may have them
		}
		wait, final := e.Backoff(attempts, rnd)
		switch {
		case e.Class == fetch.Network, e.Class == fetch.Dropped:
			return networkFault, final, wait
		case errors.Is(err, disk.ErrNoSpace):
			return diskFault, final, wait
		}
		return sourceFault, final, wait
	}
	switch {
	case isA[*disk.ChecksumError](err), isA[*disk.FormatError](err), errors.Is(err, disk.ErrTooLarge):
		return sourceFault, true, 0
	case isA[*disk.InUseError](err), errors.Is(err, disk.ErrModified):
		return sourceFault, false, inUseRetry
	case errors.Is(err, context.DeadlineExceeded):
		return networkFault, false, 0
	}
	return diskFault, false, 0
}

func isA[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

// FailureClass names the class of a failure: those of fetch, and "disk" and "in use".
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
	if whose, _, _ := classify(err, 0, 0); whose != diskFault {
		return fetch.BadSource.String()
	}
	return "disk"
}
