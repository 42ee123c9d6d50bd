package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planSurplus says what becomes of the copies of an image that no disk should
// have: those on disks that are not wanted, and those of other generations. A
// file that has to be settled first is, unless it goes anyway.
func (v imagePlanner) planSurplus(settling map[schema.DiskRef]Action) []Action {
	surplus := v.surplus()
	if len(surplus) == 0 {
		return nil
	}
	var actions []Action
	t := v.countReady()
	for _, key := range surplus {
		a := v.planSurplusCopy(key, t)
		if _, first := settling[key.Disk]; first && key.ID == v.image.ID {
			if v.mismatch[key] != "" || v.ix.suspects[key] || v.ix.desired.Verify[key] || a.Idle() && a.Until.IsZero() {
				continue
			}
			delete(settling, key.Disk)
		}
		actions = append(actions, a)
		if !a.Idle() {
			t = t.without(v, key)
		}
	}
	return actions
}

// surplus lists the copies of ours on this node's disks that nobody wants, the
// worst ranked first.
func (v imagePlanner) surplus() []CopyRef {
	var keys []CopyRef
	for _, key := range v.ix.ownByName[v.image.ID.Name] {
		if v.ix.copyAt(key).Owned && !(key.ID == v.image.ID && v.isTarget(key.Disk)) {
			keys = append(keys, key)
		}
	}
	v.Placement.ranked.order(keys)
	slices.Reverse(keys)
	return keys
}

// readyCount counts ready copies of the wanted generation that a deletion may count on:
// none that is suspected or leaving, none here with work under way, and those of other
// nodes only if these answer and have the same configuration.
type readyCount struct {
	total  int // wherever they are
	placed int // where they should be, or could: on ranked disks and those that the image names
}

func (v imagePlanner) countReady() readyCount {
	var t readyCount
	for _, key := range v.ready {
		if !v.countable(key) {
			continue
		}
		t.total++
		if v.isEligible(key.Disk) {
			t.placed++
		}
	}
	return t
}

// without is the tally when the copy key is not there.
func (t readyCount) without(v imagePlanner, key CopyRef) readyCount {
	if !v.counts(key) {
		return t
	}
	t.total--
	if v.isEligible(key.Disk) {
		t.placed--
	}
	return t
}

func (v imagePlanner) counts(key CopyRef) bool {
	return slices.Contains(v.ready, key) && v.countable(key)
}

// countable says of a copy that is ready whether it counts.
func (v imagePlanner) countable(key CopyRef) bool {
	if v.ix.copyAt(key).Leaving {
		return false
	}
	if v.ix.desired.Owns(key.Disk) {
		return !v.ix.suspects[key] && !v.ix.observed.Running[key]
	}
	return v.ix.sameConfig(key.Disk.Node) && !v.ix.observed.Peers[key.Disk.Node].unconfirmed
}

// sameConfig reports whether another node answers and has this node's configuration,
// which is wholly valid.
func (s *index) sameConfig(node string) bool {
	peer := s.observed.Peers[node]
	return peer.Responds() && peer.ConfigDigest == s.desired.Digest && s.desired.Digest != ""
}

// isTarget reports whether the disk should have a copy.
func (v imagePlanner) isTarget(ref schema.DiskRef) bool {
	return slices.Contains(v.Placement.Targets, ref)
}

// matches reports whether the disk is ranked for the image.
func (v imagePlanner) matches(ref schema.DiskRef) bool {
	declared, ok := v.ix.desired.Disk(ref)
	return ok && !v.ix.desired.evicting(ref) && hasAll(v.ix.desired.Config.Nodes[ref.Node].Tags, v.image.NodeSelector) && hasAll(declared.Tags, v.image.DiskSelector)
}

// isEligible reports whether a deletion may count on a ready copy on the disk.
func (v imagePlanner) isEligible(ref schema.DiskRef) bool {
	if v.matches(ref) {
		return true
	}
	_, declared := v.ix.desired.Disk(ref)
	return declared && !v.ix.desired.evicting(ref) && slices.Contains(v.image.Disks, ref)
}

// requiredCopies is how many ready copies have to stand for another one to be surplus.
func (v imagePlanner) requiredCopies() int {
	return max(1, min(v.Placement.copies, v.Placement.ranked.Len()))
}

// planSurplusCopy says whether a surplus copy may go now, and if not, what for it is kept.
// now is the tally with the copy.
func (v imagePlanner) planSurplusCopy(key CopyRef, now readyCount) Action {
	c, kind, reason := v.ix.copyAt(key), Cleanup, "surplus copy"
	if c.State == disk.Pending {
		reason = "unfinished copy"
	}
	switch {
	case key.ID != v.image.ID:
		reason = "older generation"
	case v.ix.desired.evicting(key.Disk):
		kind, reason = Evict, "eviction of the disk is requested"
	case !v.matches(key.Disk):
		reason = "the disk does not match the selectors"
	}
	then, ready := now.without(v, key), slices.Contains(v.ready, key)
	part := key.ID != v.image.ID && c.State == disk.Pending // nobody goes on with it any more
	if part {
		reason = "part of an older generation"
	}
	switch {
	case v.ix.desired.Allowed != schema.Everything:
		return v.ix.keep(key, reason+", but nothing is deleted "+v.ix.desired.whyNoDeletions()).asWaitFor(kind, true)
	case c.UsedBy != "":
		return v.ix.keepInUse(key, reason+", but "+c.UsedBy).asWaitFor(kind, true)
	case v.Placement.ranked.Len() == 0:
		return NewAction(Blocked, key, v.noRankedDisk()+": every copy is kept", 0).asWaitFor(kind, true)
	case part: // no image counts on it
	case then.placed < v.requiredCopies(), ready && then.total < v.Placement.copies:
		return v.keepNeeded(key, kind, reason).asWaitFor(kind, v.Placement.missing > 0)
	case kind == Cleanup && !v.ix.desired.Cleanup[key] && v.ix.desired.intervalEnd(v.ix.observed, key).After(v.ix.observed.Now):
		return v.ix.keepUntil(key, reason+"; goes after the clean-up interval", v.ix.desired.intervalEnd(v.ix.observed, key)).asWaitFor(kind, false)
	}
	return v.ix.planDeletion(kind, key, reason)
}

// keepNeeded keeps a copy that the image needs as long as there are no others. An
// eviction that no disk can take the copy of does not come about by itself.
func (v imagePlanner) keepNeeded(key CopyRef, kind Op, reason string) Action {
	a := v.ix.keep(key, "")
	switch {
	case key.ID != v.image.ID:
		a.Reason = fmt.Sprintf("%s; kept until %s of the declared one", reason, readyText(v.requiredCopies()))
	case v.Placement.missing > 0:
		a.Reason = fmt.Sprintf("%s; kept, because no disk can take %d of %d copies", reason, v.Placement.missing, v.Placement.copies)
		if kind == Evict {
			a.Op = Blocked
		}
	default:
		a.Reason = fmt.Sprintf("%s; kept until %s on other disks", reason, readyText(v.requiredCopies()))
	}
	a.Reason += v.ix.ignoredPeers()
	return a
}

func readyText(copies int) string {
	if copies == 1 {
		return "one copy is ready"
	}
	return fmt.Sprintf("%d copies are ready", copies)
}

// planDeletion is the deletion, or what it has to wait for because it failed before.
func (s *index) planDeletion(kind Op, key CopyRef, reason string) Action {
	if t := s.observed.Failures[key]; t.AppliesTo(kind) && t.RetryAt.After(s.observed.Now) {
		return s.keepUntil(key, t.Message, t.RetryAt).asWaitFor(kind, false)
	}
	if s.observed.BeingRead[key] { // whatever its reader would read if it began now
		return s.keep(key, reason+", but work under way reads it").asWaitFor(kind, false)
	}
	if image := s.neededBySuspended(key); image != "" {
		return s.keep(key, fmt.Sprintf("%s, but image %s, which is suspended, is to be made of it", reason, image))
	}
	c := s.copyAt(key)
	return NewAction(kind, key, reason, c.RealSize+c.PartBytes)
}

func (s *index) keep(key CopyRef, reason string) Action { return NewAction(Wait, key, reason, 0) }

// keepInUse keeps a copy for its users. They may leave by themselves, but what
// cannot be told does not become clear by itself.
func (s *index) keepInUse(key CopyRef, reason string) Action {
	a := s.keep(key, reason)
	if s.observed.Disks[key.Disk].UsageUnknown != "" {
		a.Op = Blocked
	}
	return a
}

func (s *index) keepUntil(key CopyRef, reason string, until time.Time) Action {
	a := s.keep(key, reason)
	a.Until = until
	return a
}

// intervalEnd is when the clean-up interval of a copy is over: it begins with the
// later of its last use and its first being unwanted. Where one of these is not
// recorded or cannot be right it begins now; Marks writes it down.
func (d Desired) intervalEnd(o Observed, key CopyRef) time.Time {
	c, stepped := o.Disks[key.Disk].Copies[key.ID], o.Disks[key.Disk].ClockStepped
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

// EarliestTime is before any time that this program can have recorded.
var EarliestTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func implausible(recorded, now time.Time) bool {
	return recorded.After(now) || recorded.Before(EarliestTime)
}
