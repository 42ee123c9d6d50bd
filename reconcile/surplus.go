package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planSurplus says what becomes of the copies of an image that no disk should
// have: those on disks that are not wanted, and those of other generations.
func (v imageView) planSurplus(wanted disk.ID) []Action {
	var actions []Action
	left := v.count()
	for _, key := range v.surplus(wanted) {
		a, goes := v.drop(key, left)
		if a.Kind != "" {
			actions = append(actions, a)
		}
		if goes && key.ID == wanted {
			left--
		}
	}
	return actions
}

// surplus lists the copies of ours on this node's disks that nobody wants, the
// worst ranked first.
func (v imageView) surplus(wanted disk.ID) []Key {
	var keys []Key
	for _, ref := range v.ownDisks() {
		for id, c := range v.o.Disks[ref].Copies {
			if id.Name != v.image.ID.Name || !c.Owned || id == wanted && slices.Contains(v.places.want, ref) {
				continue
			}
			keys = append(keys, Key{ref, id})
		}
	}
	slices.SortFunc(keys, func(a, b Key) int {
		if n := v.compareRank(b.Disk, a.Disk); n != 0 {
			return n
		}
		return compareIDs(a.ID, b.ID)
	})
	return keys
}

// count is how many ready copies of the wanted generation there are that a
// deletion may count on: all on disks that should have one.
func (v imageView) count() int {
	n := 0
	for _, key := range v.ready {
		if slices.Contains(v.places.ranked, key.Disk) || slices.Contains(v.image.Disks, key.Disk) {
			n++
		}
	}
	return n
}

// enough is how many ready copies have to remain on ranked disks. Without a
// ranked disk it cannot be reached.
func (v imageView) enough() int {
	n := v.image.Copies
	if v.image.AllDisks {
		n = len(v.places.ranked)
	}
	return max(1, min(n, len(v.places.ranked)))
}

// drop says whether a surplus copy may go now, and if not, what for it is kept.
// left is how many ready copies on ranked disks there are, this one included when
// its disk is ranked.
func (v imageView) drop(key Key, left int) (a Action, goes bool) {
	c := v.copy(key)
	counted := key.ID == v.image.ID && c.State == disk.Ready && slices.Contains(v.places.ranked, key.Disk)
	if counted {
		left--
	}
	kind, reason := Cleanup, "surplus copy"
	if key.ID != v.image.ID {
		reason = "older generation"
	} else if v.evicting(key.Disk) {
		kind, reason = Evict, "eviction of the disk is requested"
	} else if !slices.Contains(v.places.ranked, key.Disk) {
		reason = "the disk does not match the selectors"
	}
	switch {
	case v.May != schema.Everything:
		return v.keep(key, "nothing is deleted while the configuration has errors"), false
	case c.Using != "":
		return v.keep(key, reason+", but "+c.Using), false
	case len(v.places.ranked) == 0:
		return newAction(Blocked, key, "no disk matches the selectors: every copy is kept", 0), false
	case left < v.enough():
		return v.keep(key, fmt.Sprintf("%s; kept until %s on other disks", reason, readyText(v.enough()))), false
	}
	if kind == Cleanup {
		if until := v.expires(v.o, c); until.After(v.o.Now) {
			a := v.keep(key, reason+"; goes after the clean-up interval")
			a.Until = until
			return a, false
		}
	}
	if t := v.o.Tries[key]; t.Until.After(v.o.Now) {
		a := v.keep(key, t.Message)
		a.Until = t.Until
		return a, false
	}
	return newAction(kind, key, reason, c.RealSize), counted
}

func readyText(n int) string {
	if n == 1 {
		return "one is ready"
	}
	return fmt.Sprintf("%d are ready", n)
}

func (d Desired) keep(key Key, reason string) Action { return newAction(Wait, key, reason, 0) }

func (d Desired) evicting(ref schema.DiskRef) bool {
	node := d.Config.Nodes[ref.Node]
	return node.EvictionRequested || node.Disks[ref.Disk].EvictionRequested
}

// expires is when the clean-up interval of a copy is over: it begins with the
// later of its last use and its first being unwanted. A copy without a recorded
// beginning begins now; Marks writes it down.
func (d Desired) expires(o Observed, c Copy) time.Time {
	since := o.Now
	if !c.UnwantedSince.IsZero() && !o.ClockStepped {
		since = c.UnwantedSince
	}
	if c.LastUsed.After(since) {
		since = c.LastUsed
	}
	if implausible(since, o.Now) {
		since = o.Now
	}
	return since.Add(d.Config.Settings.CleanupWaitInterval)
}

// epoch is before any time that this program can have recorded.
var epoch = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func implausible(recorded, now time.Time) bool {
	return recorded.After(now) || recorded.Before(epoch)
}

// planVanished says what becomes of our copies of images that are not declared
// any more.
func (d Desired) planVanished(o Observed) []Action {
	vanished := d.vanished(o)
	names := map[string]bool{}
	for _, key := range vanished {
		names[key.ID.Name] = true
	}
	held := d.Config.Settings.PruneLimit.Holds(len(d.Config.Images), len(names))
	actions := []Action{}
	for _, key := range vanished {
		actions = append(actions, d.dropVanished(o, key, held, len(names)))
	}
	return actions
}

func (d Desired) vanished(o Observed) []Key {
	var keys []Key
	for _, ref := range d.ownDisks(o) {
		for _, id := range slices.SortedFunc(maps.Keys(o.Disks[ref].Copies), compareIDs) {
			_, declared := d.Config.Images[id.Name]
			if o.Disks[ref].Copies[id].Owned && !declared {
				keys = append(keys, Key{ref, id})
			}
		}
	}
	return keys
}

func (d Desired) dropVanished(o Observed, key Key, held bool, vanished int) Action {
	const reason = "not in the configuration any more"
	c := o.Disks[key.Disk].Copies[key.ID]
	confirmed := slices.Contains(d.Config.Settings.PruneConfirmed, key.ID)
	t := o.Tries[key]
	switch {
	case d.May != schema.Everything:
		return d.keep(key, reason+"; nothing is deleted while the configuration has errors")
	case !d.gone(key.ID.Name):
		return d.keep(key, reason+"; another look has to confirm it")
	case c.Using != "":
		return d.keep(key, reason+", but "+c.Using)
	case held && !confirmed:
		return newAction(Blocked, key, fmt.Sprintf("%d images left the configuration at once, more than pruneLimit %s allows: if that is meant, add %q to pruneConfirmed",
			vanished, d.Config.Settings.PruneLimit, key.ID), 0)
	case d.expires(o, c).After(o.Now):
		a := d.keep(key, reason+"; goes after the clean-up interval")
		a.Until = d.expires(o, c)
		return a
	case t.Until.After(o.Now):
		a := d.keep(key, t.Message)
		a.Until = t.Until
		return a
	}
	return newAction(Cleanup, key, reason, c.RealSize)
}
