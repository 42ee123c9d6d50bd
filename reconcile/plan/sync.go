package plan

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// methodFor returns the operation that creates the copy on a target, now or after a wait.
func (p imagePlanner) methodFor(ref schema.DiskRef) Op {
	if len(p.ready) == 0 && p.placement.targets[0] == ref {
		return p.firstCopyOp()
	}
	return Sync
}

// waitsForUpload reports whether a person must upload the image first.
func (p imagePlanner) waitsForUpload() bool { return p.firstCopyOp() == Upload && len(p.ready) == 0 }

// planTarget returns how the target ref gets its copy. needed is false if it has a ready copy.
// Existing bytes come before the source (F2): a ready copy on this node, then copies on other
// nodes. Only the first target uses the source, and only after no peer can have a ready copy.
func (p imagePlanner) planTarget(ref schema.DiskRef, inspections map[schema.DiskRef]Action) (a Action, needed bool) {
	c := p.ix.copyAt(p.on(ref))
	if c.State == disk.Ready {
		return Action{}, false
	}
	reason := Reason{CodeNoCopy, "no copy on this disk"}
	switch {
	case c.State == disk.Failed:
		reason = because(CodeCopyFailed, "the copy failed: %s", c.Message)
	case c.PartBytes > 0:
		reason = because(CodeResume, "resumes at %s", FormatBytes(c.PartBytes))
	}
	first := p.placement.targets[0]
	own, peers := p.ownSources(), p.peerSources()
	switch {
	case len(p.ready) == 0 && first != ref:
		// A running sync goes on while its source does not respond for a moment. A running
		// download yields to a better disk.
		if from, ok := p.interruptedSource(ref); ok && p.ix.observed.Syncing[p.on(ref)] {
			return p.withSource(NewAction(Sync, p.on(ref), reason, UnknownBytes), from), true
		}
		return p.waitForFirstCopy(first, ref), true
	case p.digestDeclared() && p.clonesLocally():
		return p.planClone(ref, reason), true // a local clone depends on no other node
	case len(own) > 0 && p.digestKnown():
		return p.sync(ref, own, reason), true
	case len(peers) > 0 && p.digestKnown():
		return p.sync(ref, peers, reason), true
	case len(p.ready) > 0:
		return p.wait(ref, because(CodeVerifyFirst, "the file on %s is verified first", p.ready[0].Disk)), true
	}
	for _, other := range slices.SortedFunc(maps.Keys(inspections), CompareDisks) {
		if a := inspections[other]; !a.Idle() && p.ix.observed.Failures[a.CopyRef()].Attempts == 0 {
			return p.wait(ref, because(CodeVerifyFirst, "the file on %s is verified first", other)), true
		}
	}
	return p.planFirstCopy(ref, reason), true
}

// waitForFirstCopy returns the wait of the target ref for the first copy, which the target
// first creates.
func (p imagePlanner) waitForFirstCopy(first, ref schema.DiskRef) Action {
	if f := p.sourceFailure(); f.delays(p.firstCopyOp(), p.ix.observed.Now) {
		return p.backOff(ref, f)
	}
	if on := p.on(first); p.firstCopyOp() == Upload && !p.ix.observed.Running[on] && !p.ix.desired.Uploads[on] {
		return p.waitForUpload(ref)
	}
	peer, queried := p.ix.observed.Peers[first.Node]
	switch {
	case p.ix.desired.Owns(first), peer.Responds():
		return p.wait(ref, because(CodeFirstCopy, "the first copy is created on %s", first))
	case !queried:
		return p.wait(ref, because(CodeFirstCopy, "the first copy is created on %s, which was not queried", first))
	}
	a := p.wait(ref, because(CodePeerUnreachable, "the first copy is created on %s, which does not respond: %s", first, peer.Problem))
	a.Until = p.ix.giveUpAt(peer)
	return a
}

// sync copies the image to ref from the copies from, best first: from one copy on this node,
// or from all copies on other nodes.
func (p imagePlanner) sync(ref schema.DiskRef, from []CopyRef, reason Reason) Action {
	if len(p.ready) > 0 && p.ix.desired.Config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		return p.blocked(ref, Reason{CodeReplenishOff, "concurrentReplenishPerNodeLimit is 0: only first copies are created"})
	}
	a := p.attempt(Sync, ref, reason, max(0, p.ix.copyAt(from[0]).Size-p.ix.copyAt(p.on(ref)).PartBytes))
	return p.withSource(a, from[0])
}

// withSource notes in an action which copy it reads.
func (p imagePlanner) withSource(a Action, from CopyRef) Action {
	if a.Idle() {
		return a
	}
	a.From, a.SourceDigest = from, p.ix.copyAt(from).SHA512
	if p.ix.desired.Owns(from.Disk) {
		a.LocalSource = from
	}
	return a
}

// repair rewrites the damaged chunks of a failed copy in place.
func (p imagePlanner) repair(ref CopyRef) Action {
	a := p.attempt(Repair, ref.Disk, because(CodeCopyFailed, "%s", p.ix.copyAt(ref).Message), disk.ChunkSize)
	if from := p.intact(ref); len(from) > 0 {
		return p.withSource(a, from[0])
	}
	return a
}
