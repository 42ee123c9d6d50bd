package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// inUseRetry is the delay after a deletion that failed because the copy is in use.
const inUseRetry = time.Minute

// maxRepairs is how many repairs in a row may fail because no source responds. After that, the
// copy is replaced if that is possible.
const maxRepairs = 2

// If a server sends a file that cannot be the image (other bytes, a damaged packed file, another format, no valid
// signature), the declaration is usually wrong, and a person must correct it. Sometimes the cause is a proxy, or a server
// that replaces its file. So, after all mirrors have failed, the manager tries again after an hour. The delay then doubles
// up to a day, so that a large image is not transferred in vain again and again.
var rareRetry = backoff.Doubling{First: time.Hour, Max: 24 * time.Hour}

// rareBackoff returns the delay after a file that cannot be the image. attempts is the number of earlier
// failed attempts. rnd spreads the attempts over a tenth of the delay.
func rareBackoff(attempts int, rnd float64) time.Duration {
	wait := rareRetry.After(attempts)
	return wait + time.Duration(rnd*float64(wait)/10)
}

// NextFailure returns the failure of a copy after its action a ended with the error err. last is the
// previous failure of the copy; zero: there was none. rnd, from [0, 1), spreads the retries of many
// nodes.
func NextFailure(last model.Failure, a plan.Action, err error, now time.Time, rnd float64) model.Failure {
	previous := last // of the same operation
	if !last.AppliesTo(a.Op) {
		previous = model.Failure{}
	}
	c := classify(err, previous.Attempts, rnd)
	next := model.Failure{
		Op: a.Op, Attempts: previous.Attempts + 1, Since: previous.Since, Message: errorText(err),
		Suspects: slices.Clone(last.Suspects), Unrepairable: last.Unrepairable && a.Op != model.Sync,
	}
	// The planner repairs a failed copy, or replaces an unrepairable copy by a sync. If the sync
	// fails, the planner tries the repair again.
	if a.Op == model.Repair && (c.fault != model.FaultNetwork || last.Attempts >= maxRepairs) {
		next.Unrepairable = true
	}
	if sourceIsDamaged(a, err) && a.LocalSource != (ident.CopyRef{}) {
		next.Suspects = append(next.Suspects, a.LocalSource) // no other job reads it until it is verified
	}
	c.adjust(a, err)
	next.Fault, next.Final = c.fault, c.final
	// If a fault of the disk or the network lasts for the recovery interval, another disk or node
	// creates the copy. The interval starts again if the kind of fault changes.
	if next.Since.IsZero() || c.fault != model.FaultSource && c.fault != previous.Fault {
		next.Since = now
	}
	if isA[*disk.ChecksumError](err) && c.final && !a.Pinned.Digest.IsZero() {
		next.Final, next.RetryAt = false, now.Add(a.Pinned.Until.Sub(now))
		next.Message += "; after the recovery interval other bytes are accepted, because no checksum is declared"
		return next
	}
	if c.final {
		if a.Op == model.Download || a.Op == model.Restore {
			next.RetryAt = now.Add(rareBackoff(previous.Attempts, rnd))
		}
		return next
	}
	if lack, ok := errors.AsType[*disk.NoSpaceError](err); ok {
		next.NeedsSpace = max(lack.Need, previous.NeedsSpace) // the first attempt may not know the full size
	}
	if a.Op == model.Verify && errors.Is(err, disk.ErrNoSpace) {
		next.NeedsSpace = last.NeedsSpace // the file exists, but the disk still lacks the space that the transfer needed
	}
	if c.wait == 0 {
		c.wait, _ = fetch.Backoff(fetch.Network, previous.Attempts, rnd)
	}
	next.RetryAt = now.Add(c.wait)
	return next
}

// sourceIsDamaged reports whether err shows that the source copy of a sync or a clone does not match
// its digest, or cannot be read. If only the clone has other bytes than declared, its source is not
// damaged.
func sourceIsDamaged(a plan.Action, err error) bool {
	wrong, isChecksum := errors.AsType[*disk.ChecksumError](err)
	switch a.Op {
	case model.Sync:
		return isChecksum || errors.Is(err, disk.ErrDamaged)
	case model.Clone:
		return isChecksum && wrong.Want == a.SourceDigest || errors.Is(err, disk.ErrDamaged)
	}
	return false
}

// errorText returns the text of err with its hint, if it has one.
func errorText(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok && e.Hint != "" {
		return fmt.Sprintf("%v (%s)", err, e.Hint)
	}
	return err.Error()
}

// cause has what the cause of an error decides about the next attempt.
type cause struct {
	fault model.Fault
	final bool          // the action fails again until the declaration or the source changes
	wait  time.Duration // the delay before the next attempt; 0: NextFailure computes the delay
}

// adjust corrects the classification of err by what is known about the action, for example that it has
// other sources.
func (c *cause) adjust(a plan.Action, err error) {
	switch {
	case sourceIsDamaged(a, err):
		c.final = false // another copy, or the upstream, may have the right bytes
		if a.Op == model.Clone || errors.Is(err, disk.ErrDamaged) {
			c.fault = model.FaultNetwork // another node may have a better copy
		}
	case a.Op == model.Repair:
		c.final = false // another copy may have the chunks
	case a.Op == model.Export && c.fault == model.FaultSource && !c.final:
		c.fault = model.FaultNetwork // another node may have a better replica
	}
	if c.fault == model.FaultDisk && c.final {
		c.fault = model.FaultSource // the action would fail on any disk until the declaration changes
	}
}

// classify returns the cause of err. attempts is the number of earlier failed attempts.
func classify(err error, attempts int, rnd float64) cause {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		if e.Class == fetch.BadConfig {
			// It is not final: an operator can correct credentials without a change of the declaration. It counts as a
			// network fault, because another node may have the right credentials.
			wait, _ := fetch.Backoff(fetch.Refused, 0, rnd)
			return cause{fault: model.FaultNetwork, wait: wait}
		}
		wait, final := e.Backoff(attempts, rnd)
		fault := model.FaultSource
		switch {
		case e.Class == fetch.Network, e.Class == fetch.Dropped:
			fault = model.FaultNetwork
		case errors.Is(err, disk.ErrNoSpace):
			fault = model.FaultDisk
		}
		return cause{fault, final, wait}
	}
	switch {
	case isA[*disk.ChecksumError](err), isA[*disk.FormatError](err), isA[*disk.SignatureError](err), errors.Is(err, disk.ErrTooLarge):
		return cause{fault: model.FaultSource, final: true}
	case isA[*disk.InUseError](err), errors.Is(err, disk.ErrModified):
		return cause{fault: model.FaultSource, wait: inUseRetry}
	case errors.Is(err, context.DeadlineExceeded):
		return cause{fault: model.FaultNetwork}
	}
	return cause{fault: model.FaultDisk}
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
	if classify(err, 0, 0).fault != model.FaultDisk {
		return fetch.BadSource.String()
	}
	return "disk"
}
