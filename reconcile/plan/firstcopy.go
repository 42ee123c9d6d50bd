package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// firstCopyOp returns the operation that creates the first copy from the declared source.
func firstCopyOp(image schema.Image) model.Op {
	switch image.Source.Kind() {
	case schema.KindUpload:
		return model.Upload
	case schema.KindExportFromVolume:
		return model.Export
	case schema.KindRestore:
		return model.Restore
	case schema.KindClone:
		return model.Clone
	}
	return model.Download
}

// planFirstCopy returns how the first copy is created, or what it waits for (F1 to F7).
func (t targetPlanner) planFirstCopy() Action {
	op := firstCopyOp(t.state.image)
	if reason := t.state.lacksVerify(); !reason.IsZero() {
		return blocked(t.copy, reason)
	}
	if f := t.state.sourceFailure(t.first); op != model.Upload && f.Delays(op, t.ix.Observed.Now) {
		return backOff(t.copy, f)
	}
	if why, until := waitForPeers(t.state); !why.IsZero() {
		return waitUntil(t.copy, why, until)
	}
	switch op {
	case model.Upload:
		return t.planUpload()
	case model.Clone:
		return t.planClone()
	}
	return t.createFirstCopy(op)
}

// lacksVerify returns a reason if the settings require a signature that the image does not declare. The reason does
// not apply to existing copies.
func (s *imageState) lacksVerify() model.Reason {
	image := s.image.ID.Name
	switch {
	case !s.ix.Desired.Config.LacksVerify(image):
		return model.Reason{}
	case s.image.Source.Download != nil:
		return model.Reason{Code: CodeVerifyRequired, Text: "settings.verify requires a signature: declare verify, or add the image to settings.verify.exempt"}
	case s.image.Source.Clone != nil:
		return because(CodeVerifyRequired, "settings.verify requires a signature of image %s, which it is cloned from: declare verify there, or add one of the two to settings.verify.exempt",
			s.image.Source.Clone.BackingImage)
	}
	return model.Reason{Code: CodeVerifyRequired, Text: "settings.verify requires a signature, which only a download has: add the image to settings.verify.exempt"}
}

// createFirstCopy returns the action that creates the first copy from the source.
func (t targetPlanner) createFirstCopy(op model.Op) Action {
	bytes := int64(UnknownBytes)
	if c := t.ix.copyAt(t.copy); c.PartTotal > 0 && !downloadBeginsAnew(t.state.image) {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	reason := t.reason
	if v := t.state.image.Verify; v != nil {
		reason = reason.With(reason.Code, "; it needs a signature (%s) by a key in %s", v.Scheme, v.Keys)
	}
	a := t.ix.attempt(op, t.copy, reason, bytes)
	a.Pinned = t.pinnedDigest()
	return a
}

// planUpload returns the action that receives a started upload, or the wait for an upload. An
// earlier failure does not delay the action: the next file may be another file.
func (t targetPlanner) planUpload() Action {
	c := t.ix.copyAt(t.copy)
	started, requested := c.PartKind == model.PartFromUpload, t.ix.Desired.Uploads[t.copy]
	if t.ix.Desired.Uploads == nil || !(started || requested) {
		return t.waitForUpload()
	}
	bytes := int64(UnknownBytes)
	if started && c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	reason := t.reason
	if c.PartBytes == 0 && c.State != model.Failed {
		reason = model.Reason{Code: CodeUploadActive, Text: "a client uploads it"}
	}
	reason = reason.With(reason.Code, "; if the client has stopped, resume with: %s, and --restart for a pipe or a packed file", uploadCommand(t.copy.ID.Name))
	a := NewAction(model.Upload, t.copy, reason, bytes)
	if !requested {
		a = t.ix.attempt(model.Upload, t.copy, reason, bytes) // the rest of an upload that no client sends
	}
	a.Pinned = t.pinnedDigest()
	return a
}

func uploadCommand(image string) string {
	return "backing-image-manager backing-image upload " + image + " FILE"
}

// waitForUpload returns the wait until a client starts an upload to any node.
func (t targetPlanner) waitForUpload() Action {
	c := t.ix.copyAt(t.copy)
	command := uploadCommand(t.copy.ID.Name)
	if t.state.hadCopy() {
		detail := ""
		if c.State == model.Failed {
			detail = " (" + c.Message + ")"
		}
		return blocked(t.copy, because(CodeUploadLost, "no copy is ready any more%s, and an upload cannot be fetched again: "+
			"bring back a disk that has a copy, or upload the file again: %s", detail, command))
	}
	if f := t.ix.Observed.Failures[t.copy]; f.Attempts > 0 && f.AppliesTo(model.Upload) {
		return wait(t.copy, because(CodeUploadFailed, "the upload failed: %s; waiting for another upload: %s", f.Message, command))
	}
	return wait(t.copy, because(CodeAwaitingUpload, "waiting for upload: %s", command))
}

// planClone returns the action that creates the first copy from a ready copy of the clone's
// source on this node, or what it waits for. A plain clone may also be synced from other nodes.
func (t targetPlanner) planClone() Action {
	image := t.state.image
	source := image.Source.Clone.BackingImage
	own, peers := t.state.cloneSources()
	if len(own) == 0 && !(isPlainClone(image) && len(peers) > 0) {
		if _, declared := t.ix.Desired.Config.Images[source]; !declared {
			return blocked(t.copy, because(CodeCloneUndeclared, "image %s, which it is cloned from, is not declared: declare it", source))
		}
		return wait(t.copy, because(CodeCloneNotReady, "image %s, which it is cloned from, is not ready yet", source))
	}
	if reason := t.state.cloneConflict(); !reason.IsZero() {
		return wait(t.copy, reason)
	}
	if a, pinned := t.waitForPinned(); pinned {
		return a
	}
	if _, from := t.state.sources(); len(own) == 0 && len(from) > 0 {
		return t.sync(from)
	}
	a := t.createFirstCopy(model.Clone)
	if len(own) > 0 {
		from := nearest(own, t.copy.Disk)
		if a.Bytes == UnknownBytes && isPlainClone(image) {
			a.Bytes = t.ix.copyAt(from).Size
		}
		a = t.ix.withSource(a, from)
	}
	return a
}

// nearest returns the copy on the disk at ref, because the new copy can share its extents. If there
// is no copy on that disk, it returns the first copy.
func nearest(copies []ident.CopyRef, ref ident.DiskRef) ident.CopyRef {
	for _, c := range copies {
		if c.Disk == ref {
			return c
		}
	}
	return copies[0]
}

// waitForPinned returns the wait while the clone would have other bytes than the image had;
// pinned is false if there is no wait. An encrypted clone always has other bytes. The digest
// of a decrypted clone is known only after cloning, so the job compares it.
func (t targetPlanner) waitForPinned() (a Action, pinned bool) {
	last := t.pinnedDigest()
	if last.Digest.IsZero() || t.state.image.Source.Clone.Encryption == schema.Decrypt || isPlainClone(t.state.image) && t.state.knownDigest() == last.Digest {
		return Action{}, false
	}
	reason := model.Reason{Code: CodeDigestPinned, Text: "a new clone has other bytes, which may replace the lost ones only after the recovery interval"}
	return waitUntil(t.copy, reason, last.Until), true
}

// maxClockSkew is how far in the future a recorded time may be that still counts as now.
const maxClockSkew = 24 * time.Hour

// pinnedDigest returns the digest that a new first copy must have although no checksum is
// declared: the digest of a copy that failed less than the recovery interval ago (F7).
func (t targetPlanner) pinnedDigest() (latest PinnedDigest) {
	if d := t.state.image.Source.Download; t.state.digestDeclared() || d != nil && d.ChecksumURL != "" {
		return PinnedDigest{} // the declaration says which digest is right
	}
	now := t.ix.Observed.Now
	for _, ref := range t.ix.copiesNamed(t.copy.ID.Name) {
		c := t.ix.copyAt(ref)
		since := c.DamagedAt
		if ref.ID != t.copy.ID || c.State != model.Failed || c.SHA512.IsZero() || since.Before(earliestTime) || since.Sub(now) > maxClockSkew {
			continue
		}
		if since.After(now) {
			since = now // the clock was fast, or was set back later
		}
		end := since.Add(t.ix.Desired.Config.Settings.RecoveryWaitInterval)
		if end.After(now) && end.After(latest.Until) {
			latest = PinnedDigest{Digest: c.SHA512, Until: end}
		}
	}
	return latest
}

// waitForPeers returns what the first copy must wait for, and until when: copies that may turn
// out to be ready, an unreachable node that had a ready copy, and without a checksum every
// node and disk that may have a copy (F5).
func waitForPeers(s *imageState) (reason model.Reason, until time.Time) {
	if reason := unsettledCopy(s); !reason.IsZero() {
		return reason, time.Time{}
	}
	if reason, until = waitForNode(s); !reason.IsZero() || s.digestDeclared() {
		return reason, until
	}
	return waitForDisk(s.ix.Desired, s.ix.Observed)
}

// unsettledCopy returns a reason when a copy on another node may be ready in a moment.
func unsettledCopy(s *imageState) model.Reason {
	for _, ref := range s.ix.peerCopies(s.image.ID.Name) {
		c := s.ix.copyAt(ref)
		switch {
		case ref.ID != s.image.ID || !s.ix.isCurrent(ref.Disk) || c.Unproven || isOverdue(s, ref.Disk):
		case c.State == model.Ready && c.Leaving:
			return because(CodePeerUnsettled, "the copy on %s has a pending deletion", ref.Disk)
		case c.State == model.Unknown && s.ix.Observed.Failures[ref].Attempts == 0 && idleReason(s, ref.Disk).IsZero():
			return because(CodeVerifyFirst, "the file on %s is verified first", ref.Disk)
		}
	}
	return model.Reason{}
}

// waitForNode returns why the first copy waits for another node, and until when: the longest wait.
func waitForNode(s *imageState) (reason model.Reason, until time.Time) {
	for _, name := range s.ix.others {
		peer, queried := s.ix.Observed.Peers[name]
		if peer.Outdated {
			return because(CodePeerUnqueried, "node %s has not responded yet under this configuration", name), time.Time{}
		}
		if !queried || peer.Responds() {
			continue // with --offline no node is queried
		}
		end := s.ix.giveUpAt(peer)
		switch {
		case !peer.Queried:
			return because(CodePeerUnqueried, "node %s has not responded yet", name), time.Time{}
		case !end.After(s.ix.Observed.Now), until.After(end):
		case hadReady(s, name):
			reason, until = because(CodePeerUnreachable, "node %s, which has a copy, does not respond: %s", name, peer.Problem), end
		case !s.digestDeclared():
			reason, until = because(CodePeerUnreachable, "without a checksum nothing is fetched while node %s may have a copy and does not respond: %s", name, peer.Problem), end
		}
	}
	return reason, until
}

// hadReady reports whether an unreachable node had a ready copy when it last responded.
func hadReady(s *imageState, node string) bool {
	return slices.ContainsFunc(s.ix.peerCopies(s.image.ID.Name), func(ref ident.CopyRef) bool {
		return ref.Disk.Node == node && ref.ID == s.image.ID && s.ix.copyAt(ref).State == model.Ready
	})
}

// waitForDisk returns why the first copy waits for a disk, and until when: the disk cannot be used, this process
// does not manage it, or its node has another configuration and does not publish it.
func waitForDisk(d Desired, o Observed) (reason model.Reason, until time.Time) {
	const format = "without a checksum nothing is fetched while disk %s, %s, may have a copy: declare a checksum, or remove the disk from the configuration"
	for _, name := range slices.Sorted(maps.Keys(d.Config.Nodes[d.Node].Disks)) {
		if ref := (ident.DiskRef{Node: d.Node, Disk: name}); !d.Owns(ref) && len(o.Peers) > 0 {
			return because(CodeDiskNotManaged, format, ref, "which this process does not manage"), time.Time{}
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		_, declared := d.Disk(ref)
		seen := o.Disks[ref]
		if end := o.Now.Add(d.Config.Settings.RecoveryWaitInterval - seen.ProblemFor(o.Now)); declared && seen.Problem != "" && end.After(o.Now) {
			return because(CodeDiskUnavailable, format, ref, "which cannot be used ("+seen.Problem+")"), end
		}
	}
	for _, ref := range d.unpublishedDisks(o) {
		if end := o.Now.Add(d.Config.Settings.RecoveryWaitInterval - o.Peers[ref.Node].OtherConfigFor(o.Now)); end.After(o.Now) {
			return because(CodeDiskUnpublished, format, ref, "which its node does not publish, since it has another configuration or none"), end
		}
	}
	return model.Reason{}, time.Time{}
}

// unpublishedDisks returns the disks of nodes that respond, have another configuration, and do not
// publish these disks, sorted. A node without a configuration publishes no disk.
func (d Desired) unpublishedDisks(o Observed) (refs []ident.DiskRef) {
	for name, peer := range o.Peers {
		if !peer.Responds() || !d.differsFrom(peer) {
			continue
		}
		for diskName := range d.Config.Nodes[name].Disks {
			ref := ident.DiskRef{Node: name, Disk: diskName}
			if _, known := o.Disks[ref]; !known {
				refs = append(refs, ref)
			}
		}
	}
	slices.SortFunc(refs, ident.DiskRef.Compare)
	return refs
}
