package plan

import (
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// methodFor is the kind of action by which a wanted disk that waits gets its copy in the end.
func (v imagePlanner) methodFor(ref schema.DiskRef) Op {
	if len(v.ready) == 0 && v.Placement.Targets[0] == ref {
		return v.firstCopyOp()
	}
	return Sync
}

// waitsForUpload reports whether a person has to send the image first.
func (v imagePlanner) waitsForUpload() bool { return v.firstCopyOp() == Upload && len(v.ready) == 0 }

// planTarget says how the wanted disk ref gets its copy. There is nothing to do when
// it has one.
func (v imagePlanner) planTarget(ref schema.DiskRef, settling map[schema.DiskRef]Action) (a Action, needed bool) {
	c := v.ix.copyAt(CopyRef{ref, v.image.ID})
	if c.State == disk.Ready {
		return Action{}, false
	}
	reason := "no copy on this disk"
	switch {
	case c.State == disk.Failed:
		reason = "the copy failed: " + c.Message
	case c.PartBytes > 0:
		reason = fmt.Sprintf("resumes at %s", FormatBytes(c.PartBytes))
	}
	first := v.Placement.Targets[0]
	here, there := v.ownSources(), v.peerSources()
	switch {
	case len(v.ready) == 0 && first != ref:
		if from, ok := v.interruptedSource(ref); ok && v.ix.observed.Syncing[CopyRef{ref, v.image.ID}] { // a download yields to a better disk
			return v.withSource(NewAction(Sync, CopyRef{ref, v.image.ID}, reason, UnknownBytes), from), true
		}
		return v.waitForFirstCopy(first, ref), true
	case v.digestDeclared() && v.clonesLocally():
		return v.planClone(ref, reason), true // whoever is silent
	case len(here) > 0 && v.digestKnown():
		return v.sync(ref, here, reason), true
	case len(there) > 0 && v.digestKnown():
		return v.sync(ref, there, reason), true
	case len(v.ready) > 0:
		return v.wait(ref, fmt.Sprintf("the file on %s is looked at first", v.ready[0].Disk)), true
	}
	for _, other := range slices.SortedFunc(maps.Keys(settling), CompareDisks) {
		if a := settling[other]; !a.Idle() && v.ix.observed.Failures[a.CopyRef()].Attempts == 0 {
			return v.wait(ref, fmt.Sprintf("the file on %s is looked at first", other)), true
		}
	}
	return v.planFirstCopy(ref, reason), true
}

// waitForFirstCopy waits for the first copy, which another disk makes.
func (v imagePlanner) waitForFirstCopy(first, ref schema.DiskRef) Action {
	if t := v.sourceFailure(); t.Delays(v.firstCopyOp(), v.ix.observed.Now) {
		return v.backOff(ref, t)
	}
	if key := (CopyRef{first, v.image.ID}); v.firstCopyOp() == Upload && !v.ix.observed.Running[key] && !v.ix.desired.Uploads[key] {
		return v.waitForUpload(ref)
	}
	a := v.wait(ref, fmt.Sprintf("the first copy is made on %s", first))
	peer, asking := v.ix.observed.Peers[first.Node]
	switch {
	case v.ix.desired.Owns(first), peer.Responds():
	case !asking:
		a.Reason += ", which was not asked"
	default:
		a.Reason = fmt.Sprintf("the first copy is for %s to make, which does not answer: %s", first, peer.Problem)
		a.Until = v.ix.giveUpAt(peer)
	}
	return a
}

// sync copies from the best of the copies, if they are on this node, and else from
// all of them.
func (v imagePlanner) sync(ref schema.DiskRef, from []CopyRef, reason string) Action {
	if len(v.ready) > 0 && v.ix.desired.Config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		return v.blocked(ref, "concurrentReplenishPerNodeLimit is 0: only first copies are made")
	}
	a := v.attempt(Sync, ref, reason, max(0, v.ix.copyAt(from[0]).Size-v.ix.copyAt(CopyRef{ref, v.image.ID}).PartBytes))
	return v.withSource(a, from[0])
}

// withSource notes which copy an action reads.
func (v imagePlanner) withSource(a Action, from CopyRef) Action {
	if a.Idle() {
		return a
	}
	a.From, a.SourceDigest = from, v.ix.copyAt(from).SHA512
	if v.ix.desired.Owns(from.Disk) {
		a.LocalSource = from
	}
	return a
}

// repairable reports whether the chunks of a failed copy that are damaged can be had
// from somewhere: they have to be what the copy's own manifest says. One
// that could not be repaired is replaced instead, if it can be.
func (v imagePlanner) repairable(key CopyRef) bool {
	c := v.ix.copyAt(key)
	if c.ManifestDigest.IsZero() || c.SHA512.IsZero() {
		return false
	}
	if declared := v.image.Checksum; !declared.IsZero() && declared != c.SHA512 && declared != c.SHA256 {
		return false
	}
	if c.UsedBy == "" && v.otherBytesReady(c) {
		return false
	}
	if v.ix.observed.Failures[key].Unrepairable && c.UsedBy == "" && v.rejectsForSpace(key.Disk, v.requiredBytes()).Reason == "" {
		return false
	}
	return len(v.intact(key)) > 0 || v.hasRanges()
}

// otherBytesReady reports whether the image, whose bytes nobody declared, has others by now than
// the copy had: repaired it would be in conflict with them.
func (v imagePlanner) otherBytesReady(c Copy) bool {
	return !v.digestDeclared() && len(v.ready) > 0 &&
		!slices.ContainsFunc(v.ready, func(key CopyRef) bool { return v.ix.copyAt(key).SHA512 == c.SHA512 })
}

// intact are ready copies with the bytes that a failed one should have, those of this
// node first.
func (v imagePlanner) intact(key CopyRef) []CopyRef {
	sum := v.ix.copyAt(key).SHA512
	if here := v.ix.ownByDigest[sum]; len(here) > 0 {
		return here
	}
	return v.ix.peerByDigest[sum]
}

// hasRanges reports whether any chunk can be had from the source, and will be what it
// has to be.
func (v imagePlanner) hasRanges() bool {
	d := v.image.Source.Download
	return d != nil && d.Unpack == schema.UnpackNone && !v.image.Checksum.IsZero()
}

// repair rewrites the damaged chunks of a failed copy in their place.
func (v imagePlanner) repair(key CopyRef) Action {
	a := v.attempt(Repair, key.Disk, v.ix.copyAt(key).Message, disk.ChunkSize)
	if from := v.intact(key); len(from) > 0 {
		return v.withSource(a, from[0])
	}
	return a
}
