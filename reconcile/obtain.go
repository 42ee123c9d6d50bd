package reconcile

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// way is the kind of action by which a wanted disk that waits gets its copy in the end.
func (v imageView) way(ref schema.DiskRef) Kind {
	if len(v.ready) == 0 && v.places.want[0] == ref {
		return v.preparation()
	}
	return Sync
}

// waitsForFile reports whether a person has to send the image first.
func (v imageView) waitsForFile() bool { return v.preparation() == Upload && len(v.ready) == 0 }

// obtain says how the wanted disk ref gets its copy. There is nothing to do when
// it has one.
func (v imageView) obtain(ref schema.DiskRef, settling map[schema.DiskRef]Action) (a Action, needed bool) {
	c := v.copy(Key{ref, v.image.ID})
	if c.State == disk.Ready {
		return Action{}, false
	}
	reason := "no copy on this disk"
	switch {
	case c.State == disk.Failed:
		reason = "the copy failed: " + c.Message
	case c.PartBytes > 0:
		reason = fmt.Sprintf("resumes at %s", bytesText(c.PartBytes))
	}
	first := v.places.want[0]
	here, there := v.sameHere(), v.sameThere()
	switch {
	case len(v.ready) == 0 && first != ref:
		if from, ok := v.interrupted(ref); ok && v.o.Syncing[Key{ref, v.image.ID}] { // a download yields to a better disk
			return v.reading(newAction(Sync, Key{ref, v.image.ID}, reason, UnknownBytes), from), true
		}
		return v.waitFor(first, ref), true
	case v.established() && v.clonesHere():
		return v.clone(ref, reason), true // whoever is silent
	case len(here) > 0 && v.known():
		return v.sync(ref, here, reason), true
	case len(there) > 0 && v.known():
		return v.sync(ref, there, reason), true
	case len(v.ready) > 0:
		return v.wait(ref, fmt.Sprintf("the file on %s is looked at first", v.ready[0].Disk)), true
	}
	for _, other := range slices.SortedFunc(maps.Keys(settling), compareRefs) {
		if a := settling[other]; !a.Idle() && v.o.Tries[a.Key()].Attempts == 0 {
			return v.wait(ref, fmt.Sprintf("the file on %s is looked at first", other)), true
		}
	}
	return v.prepare(ref, reason), true
}

// waitFor waits for the first copy, which another disk makes.
func (v imageView) waitFor(first, ref schema.DiskRef) Action {
	if t := v.sourceTry(); t.puts(v.preparation(), v.o.Now) {
		return v.putOff(ref, t)
	}
	if key := (Key{first, v.image.ID}); v.preparation() == Upload && !v.o.Running[key] && !v.Uploads[key] {
		return v.awaitFile(ref)
	}
	a := v.wait(ref, fmt.Sprintf("the first copy is made on %s", first))
	peer, asking := v.o.Peers[first.Node]
	switch {
	case v.mine(first), peer.answers():
	case !asking:
		a.Reason += ", which was not asked"
	default:
		a.Reason = fmt.Sprintf("the first copy is for %s to make, which does not answer: %s", first, peer.Problem)
		a.Until = v.returns(peer)
	}
	return a
}

// sync copies from the best of the copies, if they are on this node, and else from
// all of them.
func (v imageView) sync(ref schema.DiskRef, from []Key, reason string) Action {
	if len(v.ready) > 0 && v.Config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		return v.blocked(ref, "concurrentReplenishPerNodeLimit is 0: only first copies are made")
	}
	a := v.try(Sync, ref, reason, max(0, v.copy(from[0]).Size-v.copy(Key{ref, v.image.ID}).PartBytes))
	return v.reading(a, from[0])
}

// reading notes which copy an action reads.
func (v imageView) reading(a Action, from Key) Action {
	if a.Idle() {
		return a
	}
	a.From, a.sum = from, v.copy(from).SHA512
	if v.mine(from.Disk) {
		a.from = from
	}
	return a
}
