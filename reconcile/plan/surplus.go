package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planSurplus returns what happens to the surplus copies of the image on this node: those on
// disks that are not targets, and those of other generations. It removes the inspection of a
// file that is deleted or kept for a known time anyway.
func (p imagePlanner) planSurplus(inspections map[schema.DiskRef]Action) []Action {
	surplus := p.surplus()
	if len(surplus) == 0 {
		return nil
	}
	var actions []Action
	count := p.countReady()
	for _, ref := range surplus {
		a := p.planSurplusCopy(ref, count)
		if _, inspected := inspections[ref.Disk]; inspected && ref.ID == p.image.ID {
			if !p.mismatch[ref].IsZero() || p.ix.suspects[ref] || p.ix.desired.Verify[ref] || a.Idle() && a.Until.IsZero() {
				continue
			}
			delete(inspections, ref.Disk)
		}
		actions = append(actions, a)
		if !a.Idle() {
			count = count.without(p, ref)
		}
	}
	return actions
}

// surplus returns the owned copies on this node's disks that are not desired, the worst ranked
// ones first.
func (p imagePlanner) surplus() []CopyRef {
	var refs []CopyRef
	for _, ref := range p.ix.ownByName[p.image.ID.Name] {
		if p.ix.copyAt(ref).Owned && !(ref.ID == p.image.ID && p.isTarget(ref.Disk)) {
			refs = append(refs, ref)
		}
	}
	p.placement.ranked.order(refs)
	slices.Reverse(refs)
	return refs
}

// readyCount counts the ready copies of the declared generation on which a deletion may count.
type readyCount struct {
	total  int // on any disk
	placed int // on ranked disks and disks that the image names
}

func (p imagePlanner) countReady() readyCount {
	var n readyCount
	for _, ref := range p.ready {
		if !p.countable(ref) {
			continue
		}
		n.total++
		if p.isEligible(ref.Disk) {
			n.placed++
		}
	}
	return n
}

// without returns the count after the copy ref is deleted.
func (n readyCount) without(p imagePlanner, ref CopyRef) readyCount {
	if !p.counts(ref) {
		return n
	}
	n.total--
	if p.isEligible(ref.Disk) {
		n.placed--
	}
	return n
}

func (p imagePlanner) counts(ref CopyRef) bool {
	return slices.Contains(p.ready, ref) && p.countable(ref)
}

// countable reports whether a deletion may count on a ready copy: it is not leaving, not a
// suspect, no job works on it, and its node responds and has the same configuration.
func (p imagePlanner) countable(ref CopyRef) bool {
	if p.ix.copyAt(ref).Leaving {
		return false
	}
	if p.ix.desired.Owns(ref.Disk) {
		return !p.ix.suspects[ref] && !p.ix.observed.Running[ref]
	}
	return p.ix.sameConfig(ref.Disk.Node) && !p.ix.observed.Peers[ref.Disk.Node].unconfirmed
}

// requiredCopies returns how many copies must be ready elsewhere before one is deleted (S4).
func (p imagePlanner) requiredCopies() int {
	return max(1, min(p.placement.copies, p.placement.ranked.len()))
}

// planSurplusCopy returns the deletion of a surplus copy, or why it is kept. count includes
// the copy. This is where it is decided whether a copy of a declared image may be deleted: add
// a rule to the second switch.
func (p imagePlanner) planSurplusCopy(ref CopyRef, count readyCount) Action {
	d, c := p.ix.desired, p.ix.copyAt(ref)
	op, reason := Cleanup, Reason{CodeSurplus, "surplus copy"}
	oldPart := ref.ID != p.image.ID && c.State == disk.Pending // nobody resumes it
	switch {
	case oldPart:
		reason = Reason{CodeOldGeneration, "partial file of an older generation"}
	case ref.ID != p.image.ID:
		reason = Reason{CodeOldGeneration, "older generation"}
	case d.evicting(ref.Disk):
		op, reason = Evict, Reason{CodeEviction, "eviction of the disk is requested"}
	case !p.matches(ref.Disk):
		reason = Reason{CodeSurplus, "the disk does not match the selectors"}
	case c.State == disk.Pending:
		reason = Reason{CodeIncomplete, "partial file on a disk that is not desired"}
	}
	rest, ready := count.without(p, ref), slices.Contains(p.ready, ref)
	end := d.intervalEnd(p.ix.observed, ref)
	switch {
	case d.Allowed != schema.Everything:
		return keep(ref, d.deletionsOff(reason)).asWaitFor(op, true)
	case c.UsedBy != "":
		return p.ix.keepInUse(ref, reason.with(CodeInUse, ", but %s", c.UsedBy)).asWaitFor(op, true)
	case p.placement.ranked.len() == 0:
		none := p.noRankedDisk()
		return NewAction(Blocked, ref, none.with(none.Code, ": every copy is kept"), 0).asWaitFor(op, true)
	case oldPart: // no image counts on it
	case rest.placed < p.requiredCopies(), ready && rest.total < p.placement.copies:
		return p.keepNeeded(ref, op, reason).asWaitFor(op, p.placement.missing > 0)
	case op == Cleanup && !d.Cleanup[ref] && end.After(p.ix.observed.Now):
		return keepUntil(ref, reason.with(CodeCleanupInterval, "; deleted after the clean-up interval"), end).asWaitFor(op, false)
	}
	return p.ix.planDeletion(op, ref, reason)
}

// keepNeeded keeps a copy until enough others are ready. It is blocked when no disk can take
// the copy of an evicted disk.
func (p imagePlanner) keepNeeded(ref CopyRef, op Op, reason Reason) Action {
	required := fmt.Sprintf("%d copies are ready", p.requiredCopies())
	if p.requiredCopies() == 1 {
		required = "one copy is ready"
	}
	ignored := p.ix.ignoredPeers()
	switch {
	case ref.ID != p.image.ID:
		return keep(ref, reason.with(CodeTooFewReady, "; kept until %s of the declared generation%s", required, ignored))
	case p.placement.missing > 0:
		a := keep(ref, reason.with(CodeTooFewDisks, "; kept, because no disk can take %d of %d copies%s", p.placement.missing, p.placement.copies, ignored))
		if op == Evict {
			a.Op = Blocked
		}
		return a
	}
	return keep(ref, reason.with(CodeTooFewReady, "; kept until %s on other disks%s", required, ignored))
}

// planDeletion returns the deletion of a copy, or what it must wait for: an earlier failure, or
// a reader of the copy.
func (ix *index) planDeletion(op Op, ref CopyRef, reason Reason) Action {
	if f := ix.observed.Failures[ref]; f.AppliesTo(op) && f.RetryAt.After(ix.observed.Now) {
		return keepUntil(ref, because(CodeRetry, "%s", f.Message), f.RetryAt).asWaitFor(op, false)
	}
	if ix.observed.BeingRead[ref] { // even by a job that would read another copy if it started now
		return keep(ref, reason.with(CodeBeingRead, ", but a running job reads it")).asWaitFor(op, false)
	}
	if image, needed := ix.neededBySuspended(ref); needed {
		return keep(ref, reason.with(CodeSourceOfSuspended, ", but image %s, which is suspended, will be created from it", image))
	}
	c := ix.copyAt(ref)
	return NewAction(op, ref, reason, c.RealSize+c.PartBytes)
}

func keep(ref CopyRef, reason Reason) Action { return NewAction(Wait, ref, reason, 0) }

func keepUntil(ref CopyRef, reason Reason, until time.Time) Action {
	a := keep(ref, reason)
	a.Until = until
	return a
}

// keepInUse keeps a copy that is in use. A use may end without help. Unreadable replica metadata
// needs a person, so that the copy is blocked (R1).
func (ix *index) keepInUse(ref CopyRef, reason Reason) Action {
	a := keep(ref, reason)
	if ix.observed.Disks[ref.Disk].UsageUnknown != "" {
		a.Op, a.Code = Blocked, CodeUsageUnknown
	}
	return a
}

// intervalEnd returns when the clean-up interval of a copy ends. It starts with the last use or
// when the copy became surplus, whichever is later. It restarts now when a recorded time is
// missing or implausible, or by another clock (S4); UsageUpdates records that.
func (d Desired) intervalEnd(o Observed, ref CopyRef) time.Time {
	c, stepped := o.Disks[ref.Disk].Copies[ref.ID], o.Disks[ref.Disk].ClockStepped
	since := c.SurplusSince
	switch {
	case since.IsZero(), stepped, d.otherClock(c), implausible(since, o.Now),
		c.InUseRecorded && c.UsedBy == "", // the use has just ended
		!c.LastUsed.IsZero() && implausible(c.LastUsed, o.Now):
		since = o.Now
	case c.LastUsed.After(since):
		since = c.LastUsed
	}
	return since.Add(d.Config.Settings.CleanupWaitInterval)
}

// earliestTime is before any time that this program can have recorded.
var earliestTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func implausible(recorded, now time.Time) bool {
	return recorded.After(now) || recorded.Before(earliestTime)
}
