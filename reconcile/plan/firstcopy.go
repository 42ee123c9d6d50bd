package plan

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// firstCopyOp returns the operation that creates the first copy from the declared source.
func (p imagePlanner) firstCopyOp() Op {
	switch p.image.Source.Kind() {
	case schema.KindUpload:
		return Upload
	case schema.KindExportFromVolume:
		return Export
	case schema.KindRestore:
		return Restore
	case schema.KindClone:
		return Clone
	}
	return Download
}

// planFirstCopy returns how the first copy on ref is created, or what it waits for (F1 to F5).
func (p imagePlanner) planFirstCopy(ref schema.DiskRef, reason Reason) Action {
	op := p.firstCopyOp()
	if f := p.sourceFailure(); op != Upload && f.delays(op, p.ix.observed.Now) {
		return p.backOff(ref, f)
	}
	if why, until := p.waitForPeers(); !why.IsZero() {
		if from, ok := p.interruptedSource(ref); ok {
			return p.withSource(NewAction(Sync, p.on(ref), reason, UnknownBytes), from)
		}
		a := p.wait(ref, why)
		a.Until = until
		return a
	}
	switch op {
	case Upload:
		return p.planUpload(ref, reason)
	case Clone:
		return p.planClone(ref, reason)
	}
	return p.newFirstCopy(op, ref, reason)
}

// newFirstCopy returns the action that creates the first copy from the source.
func (p imagePlanner) newFirstCopy(op Op, ref schema.DiskRef, reason Reason) Action {
	bytes := int64(UnknownBytes)
	if c := p.ix.copyAt(p.on(ref)); c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	a := p.attempt(op, ref, reason, bytes)
	a.Pinned = p.pinnedDigest()
	return a
}

// planUpload receives an upload that a client has started, or waits for one. An earlier
// failure does not delay it: the next file may be another one.
func (p imagePlanner) planUpload(ref schema.DiskRef, reason Reason) Action {
	on := p.on(ref)
	c := p.ix.copyAt(on)
	started, requested := c.PartSourceID == disk.PartFromUpload, p.ix.desired.Uploads[on]
	if p.ix.desired.Uploads == nil || !(started || requested || p.ix.observed.Running[on]) {
		return p.waitForUpload(ref)
	}
	bytes := int64(UnknownBytes)
	if started && c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	if c.PartBytes == 0 && c.State != disk.Failed {
		reason = Reason{CodeUploadActive, "a client uploads it"}
	}
	reason = reason.with(reason.Code, "; if the client has stopped, resume with: %s", p.uploadCommand())
	a := NewAction(Upload, on, reason, bytes)
	if !requested {
		a = p.attempt(Upload, ref, reason, bytes) // the rest of an upload that no client sends
	}
	a.Pinned = p.pinnedDigest()
	return a
}

func (p imagePlanner) uploadCommand() string {
	return "backing-image-manager backing-image upload " + p.image.ID.Name + " FILE"
}

// waitForUpload waits until a client starts an upload, to whatever node.
func (p imagePlanner) waitForUpload(ref schema.DiskRef) Action {
	on := p.on(ref)
	c := p.ix.copyAt(on)
	command := p.uploadCommand()
	if p.hadCopy() {
		detail := ""
		if c.State == disk.Failed {
			detail = " (" + c.Message + ")"
		}
		return p.blocked(ref, because(CodeUploadLost, "no copy is ready any more%s, and an upload cannot be fetched again: "+
			"bring back a disk that has a copy, or upload the file again: %s", detail, command))
	}
	if f := p.ix.observed.Failures[on]; f.Attempts > 0 && f.AppliesTo(Upload) {
		return p.wait(ref, because(CodeUploadFailed, "the upload failed: %s; waiting for another one: %s", f.Message, command))
	}
	return p.wait(ref, because(CodeAwaitingUpload, "waiting for upload: %s", command))
}

// maxClockSkew is how far in the future a recorded time may be that still counts as now.
const maxClockSkew = 24 * time.Hour

// pinnedDigest returns the digest that a new first copy must have although none is declared:
// that of a copy that failed less than the recovery interval ago (F7).
func (p imagePlanner) pinnedDigest() (latest PinnedDigest) {
	if d := p.image.Source.Download; p.digestDeclared() || d != nil && d.ChecksumURL != "" {
		return PinnedDigest{} // the declaration says which digest is right
	}
	now := p.ix.observed.Now
	for _, ref := range p.ix.copiesNamed(p.image.ID.Name) {
		c := p.ix.copyAt(ref)
		since := c.DamagedAt
		if ref.ID != p.image.ID || c.State != disk.Failed || c.SHA512.IsZero() || since.Before(earliestTime) || since.Sub(now) > maxClockSkew {
			continue
		}
		if since.After(now) {
			since = now // by a clock that was set back since, or by a fast one
		}
		end := since.Add(p.ix.desired.Config.Settings.RecoveryWaitInterval)
		if end.After(now) && end.After(latest.Until) {
			latest = PinnedDigest{Digest: c.SHA512, Until: end}
		}
	}
	return latest
}

// sourceFailure returns the failure that delays the source the longest. A failure of the source
// belongs to the image: no other disk or node retries it (F4). A network failure counts only
// on the node where it happened.
func (p imagePlanner) sourceFailure() Failure {
	var worst Failure
	for name, node := range p.ix.desired.Config.Nodes {
		for diskName := range node.Disks {
			f := p.ix.observed.Failures[p.on(schema.DiskRef{Node: name, Disk: diskName})]
			switch {
			case f.Attempts == 0, f.Fault == FaultDisk, f.NeedsSpace > 0, !f.AppliesTo(p.firstCopyOp()), worst.Final && !f.Final,
				f.Fault == FaultNetwork && name != p.ix.desired.Node:
			case f.Final && !worst.Final, f.RetryAt.After(worst.RetryAt), f.RetryAt.Equal(worst.RetryAt) && f.Message < worst.Message:
				worst = f
			}
		}
	}
	return worst
}
