package plan

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// targetPlanner plans how one target of this node gets its copy. A target is a desired disk
// without a ready copy of the image. firstcopy.go has the methods for the first copy.
type targetPlanner struct {
	ix    *Round
	state *imageState
	// first is the best target of all nodes, which creates the first copy.
	first  ident.DiskRef
	copy   ident.CopyRef // the copy to create
	reason model.Reason  // why it must be created
	// need is the need of replicas for the copy, if needed is true. needOnly: the disk is a target
	// only because of this need.
	need             model.Need
	needed, needOnly bool
}

func newTargetPlanner(p imagePlanner, ref ident.CopyRef) targetPlanner {
	t := targetPlanner{ix: p.ix, state: p.state, first: p.placement.targets[0], copy: ref, reason: model.Reason{Code: CodeNoCopy, Text: "no copy on this disk"}}
	switch c := p.ix.copyAt(ref); {
	case c.State == model.Failed:
		t.reason = because(CodeCopyFailed, "the copy failed: %s", c.Message)
	case c.PartBytes > 0 && (c.PartKind == model.PartFromPeers || !downloadBeginsAnew(p.state.image)):
		t.reason = because(CodeResume, "resumes at %s", FormatBytes(c.PartBytes))
	}
	if t.need, t.needed = p.state.needOn(ref.Disk); t.needed {
		t.reason, t.needOnly = t.reasonWithNeed(), slices.Contains(p.placement.needed, ref.Disk)
	}
	return t
}

// downloadBeginsAnew reports whether a download of the image never resumes: a packed file is unpacked from its beginning.
func downloadBeginsAnew(image schema.Image) bool {
	d := image.Source.Download
	return d != nil && d.Unpack != schema.UnpackNone && d.Index == ""
}

// plan returns the action that creates the copy, or what it waits for.
func (t targetPlanner) plan(inspections map[ident.DiskRef]Action) Action {
	op := model.Sync
	if len(t.state.ready) == 0 && t.first == t.copy.Disk {
		op = firstCopyOp(t.state.image)
	}
	needsUpload := firstCopyOp(t.state.image) == model.Upload && len(t.state.ready) == 0
	a := t.choose(inspections).asWaitFor(op, needsUpload)
	if a.Needed = t.needed; t.needed && a.Idle() {
		a.Text = needReason(t.need).Text + "; " + a.Text
	}
	return a
}

// choose selects where the bytes come from. Existing bytes come before the source (F2): a
// ready copy on this node, then copies on other nodes. Only the first target uses the source,
// and only when no peer can have a ready copy.
func (t targetPlanner) choose(inspections map[ident.DiskRef]Action) Action {
	if reason, end := delay(t.state, t.copy.Disk); !reason.IsZero() { // nothing can be written to the disk
		return waitUntil(t.copy, reason.With(reason.Code, "; if this lasts for the recovery interval, the next ranked disk gets the copy"), end)
	}
	if t.needed {
		if reason, end := t.waitForReplica(); !reason.IsZero() {
			return waitUntil(t.copy, reason, end)
		}
	}
	own, peers := t.state.sources()
	switch {
	case len(t.state.ready) == 0 && t.first != t.copy.Disk:
		return t.waitForFirstCopy()
	case t.state.digestDeclared() && t.state.clonesLocally():
		return t.planClone() // a local clone depends on no other node
	case len(own) > 0 && t.state.digestKnown():
		return t.sync(own)
	case len(peers) > 0 && t.state.digestKnown():
		return t.sync(peers)
	case len(t.state.ready) > 0:
		return wait(t.copy, because(CodeVerifyFirst, "the file on %s is verified first", t.state.ready[0].Disk))
	}
	for _, other := range slices.SortedFunc(maps.Keys(inspections), ident.DiskRef.Compare) {
		if a := inspections[other]; !a.Idle() && t.ix.Observed.Failures[a.CopyRef()].Attempts == 0 {
			return wait(t.copy, because(CodeVerifyFirst, "the file on %s is verified first", other))
		}
	}
	return t.planFirstCopy()
}

// sync returns the action that copies the image from the ready copies in the list from, best first. If
// they are on this node, the job reads the first copy. If they are on other nodes, it reads all of them.
func (t targetPlanner) sync(from []ident.CopyRef) Action {
	if len(t.state.ready) > 0 && t.ix.Desired.Config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		return blocked(t.copy, model.Reason{Code: CodeReplenishOff, Text: "concurrentReplenishPerNodeLimit is 0: only first copies are created"})
	}
	a := t.ix.attempt(model.Sync, t.copy, t.reason, max(0, t.ix.copyAt(from[0]).Size-t.ix.copyAt(t.copy).PartBytes))
	return t.ix.withSource(a, from[0])
}

// waitForFirstCopy returns the wait for the first copy, which the first target creates.
func (t targetPlanner) waitForFirstCopy() Action {
	op := firstCopyOp(t.state.image)
	if f := t.state.sourceFailure(t.first); f.Delays(op, t.ix.Observed.Now) {
		return backOff(t.copy, f)
	}
	if on := t.state.on(t.first); op == model.Upload && !t.ix.Observed.Running[on] && !t.ix.Desired.Uploads[on] {
		return t.waitForUpload()
	}
	peer, queried := t.ix.Observed.Peers[t.first.Node]
	if reason, end := delay(t.state, t.first); !reason.IsZero() {
		return waitUntil(t.copy, because(reason.Code, "the first copy is created on %s, but %s; if this lasts for the recovery interval, the next ranked disk creates it", t.first, reason.Text), end)
	}
	switch {
	case t.ix.Desired.Owns(t.first), peer.Responds():
		return wait(t.copy, because(CodeFirstCopy, "the first copy is created on %s", t.first))
	case !queried:
		return wait(t.copy, because(CodeFirstCopy, "the first copy is created on %s, which was not queried", t.first))
	}
	reason := because(CodePeerUnreachable, "the first copy is created on %s, which does not respond: %s", t.first, peer.Problem)
	return waitUntil(t.copy, reason, t.ix.giveUpAt(peer))
}
