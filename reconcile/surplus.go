package reconcile

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
func (v imageView) planSurplus(settling map[schema.DiskRef]Action) []Action {
	surplus := v.surplus()
	if len(surplus) == 0 {
		return nil
	}
	var actions []Action
	t := v.tally()
	for _, key := range surplus {
		a := v.drop(key, t)
		if _, first := settling[key.Disk]; first && key.ID == v.image.ID {
			if v.wrong[key] != "" || v.suspect[key] || v.Verify[key] || a.Idle() && a.Until.IsZero() {
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
func (v imageView) surplus() []Key {
	var keys []Key
	for _, key := range v.named[v.image.ID.Name] {
		if v.copy(key).Owned && !(key.ID == v.image.ID && v.wants(key.Disk)) {
			keys = append(keys, key)
		}
	}
	v.places.ranked.order(keys)
	slices.Reverse(keys)
	return keys
}

// tally counts ready copies of the wanted generation that a deletion may count on:
// none that is suspected or leaving, none here with work under way, and those of other
// nodes only if these answer and have the same configuration.
type tally struct {
	all   int // wherever they are
	stand int // where they should be, or could: on ranked disks and those that the image names
}

func (v imageView) tally() tally {
	var t tally
	for _, key := range v.ready {
		if !v.reliable(key) {
			continue
		}
		t.all++
		if v.stands(key.Disk) {
			t.stand++
		}
	}
	return t
}

// without is the tally when the copy key is not there.
func (t tally) without(v imageView, key Key) tally {
	if !v.counts(key) {
		return t
	}
	t.all--
	if v.stands(key.Disk) {
		t.stand--
	}
	return t
}

func (v imageView) counts(key Key) bool {
	return slices.Contains(v.ready, key) && v.reliable(key)
}

// reliable says of a copy that is ready whether it counts.
func (v imageView) reliable(key Key) bool {
	if v.copy(key).Leaving {
		return false
	}
	if v.mine(key.Disk) {
		return !v.suspect[key] && !v.o.Running[key]
	}
	return v.agrees(key.Disk.Node) && !v.o.Peers[key.Disk.Node].unasked
}

// agrees reports whether another node answers and has this node's configuration,
// which is wholly valid.
func (s *scene) agrees(node string) bool {
	peer := s.o.Peers[node]
	return peer.answers() && peer.Config == s.Digest && s.Digest != ""
}

// wants reports whether the disk should have a copy.
func (v imageView) wants(ref schema.DiskRef) bool { return slices.Contains(v.places.want, ref) }

// matches reports whether the disk is ranked for the image.
func (v imageView) matches(ref schema.DiskRef) bool {
	declared, ok := v.disk(ref)
	return ok && !v.evicting(ref) && hasAll(v.Config.Nodes[ref.Node].Tags, v.image.NodeSelector) && hasAll(declared.Tags, v.image.DiskSelector)
}

// stands reports whether a deletion may count on a ready copy on the disk.
func (v imageView) stands(ref schema.DiskRef) bool {
	if v.matches(ref) {
		return true
	}
	_, declared := v.disk(ref)
	return declared && !v.evicting(ref) && slices.Contains(v.image.Disks, ref)
}

// enough is how many ready copies have to stand for another one to be surplus.
func (v imageView) enough() int {
	return max(1, min(v.places.copies, v.places.ranked.len()))
}

// drop says whether a surplus copy may go now, and if not, what for it is kept.
// now is the tally with the copy.
func (v imageView) drop(key Key, now tally) Action {
	c, kind, reason := v.copy(key), Cleanup, "surplus copy"
	if c.State == disk.Pending {
		reason = "unfinished copy"
	}
	switch {
	case key.ID != v.image.ID:
		reason = "older generation"
	case v.evicting(key.Disk):
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
	case v.May != schema.Everything:
		return v.keep(key, reason+", but nothing is deleted "+v.whyNot()).wouldBe(kind, true)
	case c.Using != "":
		return v.keepUsed(key, reason+", but "+c.Using).wouldBe(kind, true)
	case v.places.ranked.len() == 0:
		return newAction(Blocked, key, v.noDisk()+": every copy is kept", 0).wouldBe(kind, true)
	case part: // no image counts on it
	case then.stand < v.enough(), ready && then.all < v.places.copies:
		return v.needed(key, kind, reason).wouldBe(kind, v.places.short > 0)
	case kind == Cleanup && !v.Cleanup[key] && v.expires(v.o, key).After(v.o.Now):
		return v.keepUntil(key, reason+"; goes after the clean-up interval", v.expires(v.o, key)).wouldBe(kind, false)
	}
	return v.remove(kind, key, reason)
}

// needed keeps a copy that the image needs as long as there are no others. An
// eviction that no disk can take the copy of does not come about by itself.
func (v imageView) needed(key Key, kind Kind, reason string) Action {
	a := v.keep(key, "")
	switch {
	case key.ID != v.image.ID:
		a.Reason = fmt.Sprintf("%s; kept until %s of the declared one", reason, readyText(v.enough()))
	case v.places.short > 0:
		a.Reason = fmt.Sprintf("%s; kept, because no disk can take %d of %d copies", reason, v.places.short, v.places.copies)
		if kind == Evict {
			a.Kind = Blocked
		}
	default:
		a.Reason = fmt.Sprintf("%s; kept until %s on other disks", reason, readyText(v.enough()))
	}
	a.Reason += v.uncounted()
	return a
}

func readyText(copies int) string {
	if copies == 1 {
		return "one copy is ready"
	}
	return fmt.Sprintf("%d copies are ready", copies)
}

// remove is the deletion, or what it has to wait for because it failed before.
func (s *scene) remove(kind Kind, key Key, reason string) Action {
	if t := s.o.Tries[key]; t.of(kind) && t.Until.After(s.o.Now) {
		return s.keepUntil(key, t.Message, t.Until).wouldBe(kind, false)
	}
	if s.o.Read[key] { // whatever its reader would read if it began now
		return s.keep(key, reason+", but work under way reads it").wouldBe(kind, false)
	}
	if image := s.awaited(key); image != "" {
		return s.keep(key, fmt.Sprintf("%s, but image %s, which is suspended, is to be made of it", reason, image))
	}
	c := s.copy(key)
	return newAction(kind, key, reason, c.RealSize+c.PartBytes)
}

func (s *scene) keep(key Key, reason string) Action { return newAction(Wait, key, reason, 0) }

// keepUsed keeps a copy for its users. They may leave by themselves, but what
// cannot be told does not become clear by itself.
func (s *scene) keepUsed(key Key, reason string) Action {
	a := s.keep(key, reason)
	if s.o.Disks[key.Disk].Unclear != "" {
		a.Kind = Blocked
	}
	return a
}

func (s *scene) keepUntil(key Key, reason string, until time.Time) Action {
	a := s.keep(key, reason)
	a.Until = until
	return a
}

// expires is when the clean-up interval of a copy is over: it begins with the
// later of its last use and its first being unwanted. Where one of these is not
// recorded or cannot be right it begins now; Marks writes it down.
func (d Desired) expires(o Observed, key Key) time.Time {
	c, stepped := o.Disks[key.Disk].Copies[key.ID], o.Disks[key.Disk].ClockStepped
	since := c.SurplusSince
	switch {
	case since.IsZero(), stepped, d.otherClock(c), implausible(since, o.Now),
		c.InUseRecorded && c.Using == "", // the use has just ended
		!c.LastUsed.IsZero() && implausible(c.LastUsed, o.Now):
		since = o.Now
	case c.LastUsed.After(since):
		since = c.LastUsed
	}
	return since.Add(d.Config.Settings.CleanupWaitInterval)
}

// epoch is before any time that this program can have recorded.
var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func implausible(recorded, now time.Time) bool {
	return recorded.After(now) || recorded.Before(epoch)
}
