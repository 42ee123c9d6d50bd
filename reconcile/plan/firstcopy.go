package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// firstCopyOp is the kind of action that makes the first copy.
func (v imagePlanner) firstCopyOp() Op {
	switch v.image.Source.Kind() {
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

// planFirstCopy is how the first copy comes to be.
func (v imagePlanner) planFirstCopy(ref schema.DiskRef, reason string) Action {
	kind := v.firstCopyOp()
	if t := v.sourceFailure(); kind != Upload && t.Delays(kind, v.ix.observed.Now) {
		return v.backOff(ref, t)
	}
	if why, until := v.waitForPeers(); why != "" {
		if from, ok := v.interruptedSource(ref); ok {
			return v.withSource(NewAction(Sync, CopyRef{ref, v.image.ID}, reason, UnknownBytes), from)
		}
		a := v.wait(ref, why)
		a.Until = until
		return a
	}
	switch {
	case kind == Upload:
		return v.planUpload(ref, reason)
	case kind == Clone:
		return v.planClone(ref, reason)
	}
	return v.newFirstCopy(kind, ref, reason)
}

// newFirstCopy makes the first copy of what is declared.
func (v imagePlanner) newFirstCopy(kind Op, ref schema.DiskRef, reason string) Action {
	bytes := int64(UnknownBytes)
	if c := v.ix.copyAt(CopyRef{ref, v.image.ID}); c.PartTotal > 0 {
		bytes = max(0, c.PartTotal-c.PartBytes)
	}
	a := v.attempt(kind, ref, reason, bytes)
	a.Pinned = v.PinnedDigest()
	return a
}

// planUpload takes what a client has begun to upload, or waits for one to come. What
// failed before does not count: the next file may be another one.
func (v imagePlanner) planUpload(ref schema.DiskRef, reason string) Action {
	key := CopyRef{ref, v.image.ID}
	c := v.ix.copyAt(key)
	if begun := c.PartSourceID == disk.PartFromUpload; v.ix.desired.Uploads != nil && (begun || v.ix.desired.Uploads[key] || v.ix.observed.Running[key]) {
		bytes := int64(UnknownBytes)
		if begun && c.PartTotal > 0 {
			bytes = max(0, c.PartTotal-c.PartBytes)
		}
		if c.PartBytes == 0 && c.State != disk.Failed {
			reason = "a client sends it"
		}
		reason += fmt.Sprintf("; if its client has stopped, it goes on with: %s", v.uploadCommand())
		a := NewAction(Upload, key, reason, bytes)
		if !v.ix.desired.Uploads[key] {
			a = v.attempt(Upload, ref, reason, bytes) // what is left of one is only tried again
		}
		a.Pinned = v.PinnedDigest()
		return a
	}
	return v.waitForUpload(ref)
}

func (v imagePlanner) uploadCommand() string {
	return "backing-image-manager backing-image upload " + v.image.ID.Name + " FILE"
}

// waitForUpload waits for somebody to begin an upload, wherever that will be.
func (v imagePlanner) waitForUpload(ref schema.DiskRef) Action {
	key := CopyRef{ref, v.image.ID}
	c := v.ix.copyAt(key)
	command := v.uploadCommand()
	if v.hadCopy() {
		why := ""
		if c.State == disk.Failed {
			why = " (" + c.Message + ")"
		}
		return v.blocked(ref, "no copy is ready any more"+why+", and what was uploaded cannot be fetched again: "+
			"bring back a disk that has it, or upload the file again: "+command)
	}
	if t := v.ix.observed.Failures[key]; t.Attempts > 0 && t.AppliesTo(Upload) {
		return v.wait(ref, "the upload failed: "+t.Message+"; waiting for another one: "+command)
	}
	return v.wait(ref, "waiting for upload: "+command)
}

// hadCopy reports whether the image had a copy once.
func (v imagePlanner) hadCopy() bool {
	return slices.ContainsFunc(v.ix.copiesNamed(v.image.ID.Name), func(key CopyRef) bool {
		return key.ID == v.image.ID && v.ix.copyAt(key).State == disk.Failed
	})
}

// cannotPrepare says why this node cannot make the first copy although nobody else has made
// it, and none can be had.
func (v imagePlanner) cannotPrepare() string {
	if len(v.ready)+len(v.ownSources())+len(v.peerSources()) > 0 {
		return ""
	}
	if v.image.Source.Clone != nil {
		return v.cannotClone()
	}
	return v.ix.observed.CannotPrepare[v.image.ID]
}

// maxClockSkew is how far in the future a time may be that is still believed to be one of
// about now.
const maxClockSkew = 24 * time.Hour

// PinnedDigest is the digest that the image had, until it may be established anew.
func (v imagePlanner) PinnedDigest() (last PinnedDigest) {
	if d := v.image.Source.Download; !v.image.Checksum.IsZero() || d != nil && d.ChecksumURL != "" {
		return PinnedDigest{} // the digest is known from elsewhere
	}
	for _, key := range v.ix.copiesNamed(v.image.ID.Name) {
		c := v.ix.copyAt(key)
		since := c.DamagedAt
		if key.ID != v.image.ID || c.State != disk.Failed || c.SHA512.IsZero() || since.Before(EarliestTime) || since.Sub(v.ix.observed.Now) > maxClockSkew {
			continue
		}
		if since.After(v.ix.observed.Now) {
			since = v.ix.observed.Now // by a clock that was set since, or is ahead
		}
		end := since.Add(v.ix.desired.Config.Settings.RecoveryWaitInterval)
		if end.After(v.ix.observed.Now) && end.After(last.Until) {
			last = PinnedDigest{Digest: c.SHA512, Until: end}
		}
	}
	return last
}

// sourceFailure is the failure that puts the source off the longest: it is the image's,
// and no other disk need meet it again, nor another node, but for what may be the
// fault of the way there.
func (v imagePlanner) sourceFailure() Failure {
	var worst Failure
	for name, node := range v.ix.desired.Config.Nodes {
		for diskName := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: diskName}
			t := v.ix.observed.Failures[CopyRef{ref, v.image.ID}]
			switch {
			case t.Attempts == 0, t.Disk, t.NeedsSpace > 0, !t.AppliesTo(v.firstCopyOp()), worst.Final && !t.Final, t.Link && name != v.ix.desired.Node:
			case t.Final && !worst.Final, t.RetryAt.After(worst.RetryAt), t.RetryAt.Equal(worst.RetryAt) && t.Message < worst.Message:
				worst = t
			}
		}
	}
	return worst
}

// cloneSources are the ready copies of the image that another one is cloned from: those on
// disks of this node, and those elsewhere.
func (v imagePlanner) cloneSources() (here, there []CopyRef) {
	source, declared := v.ix.desired.Config.Images[v.image.Source.Clone.BackingImage]
	if !declared {
		return nil, nil
	}
	good := func(key CopyRef) bool {
		c := v.ix.copyAt(key)
		return key.ID == source.ID && c.State == disk.Ready && !c.Leaving && !v.ix.suspects[key] && mismatchReason(source, c) == "" && v.ix.isCurrent(key.Disk)
	}
	for _, key := range v.ix.copiesNamed(source.ID.Name) {
		switch {
		case !good(key):
		case v.ix.desired.Owns(key.Disk):
			here = append(here, key)
		default:
			there = append(there, key)
		}
	}
	return here, there
}

// isPlainClone reports whether the image is a clone with the bytes of its source.
func (v imagePlanner) isPlainClone() bool {
	c := v.image.Source.Clone
	return c != nil && c.Encryption == schema.EncryptionIgnore
}

// clonesLocally reports whether the first copy is to be a copy of one on this node, byte by
// byte.
func (v imagePlanner) clonesLocally() bool {
	if !v.isPlainClone() || len(v.ready) > 0 {
		return false
	}
	sum := v.knownDigest()
	here, _ := v.cloneSources()
	return slices.ContainsFunc(here, func(key CopyRef) bool { c := v.ix.copyAt(key); return !sum.IsZero() && c.HasDigest(sum) })
}

// cannotClone says why this node leaves it to another one to clone.
func (v imagePlanner) cannotClone() string {
	if here, there := v.cloneSources(); len(here) == 0 && len(there) > 0 && v.sourceConflict() == "" {
		return fmt.Sprintf("image %s, which it is cloned from, has no ready copy on this node", v.image.Source.Clone.BackingImage)
	}
	return ""
}

// sourceConflict says that nobody can tell what the source of a clone is.
func (v imagePlanner) sourceConflict() string {
	here, there := v.cloneSources()
	all := slices.Concat(here, there)
	for _, key := range all {
		if v.ix.copyAt(key).SHA512 != v.ix.copyAt(all[0]).SHA512 {
			return fmt.Sprintf("the copies of image %s, which it is cloned from, differ", v.image.Source.Clone.BackingImage)
		}
	}
	return ""
}

// planClone makes the first copy of a ready copy of the source on this node, or, of what
// only has to be copied, on others.
func (v imagePlanner) planClone(ref schema.DiskRef, reason string) Action {
	c := v.image.Source.Clone
	here, there := v.cloneSources()
	if len(here) == 0 && !(v.isPlainClone() && len(there) > 0) && !v.ix.observed.Running[CopyRef{ref, v.image.ID}] {
		if _, declared := v.ix.desired.Config.Images[c.BackingImage]; !declared {
			return v.blocked(ref, fmt.Sprintf("image %s, which it is cloned from, is not declared", c.BackingImage))
		}
		return v.wait(ref, fmt.Sprintf("image %s, which it is cloned from, is not ready yet", c.BackingImage))
	}
	if why := v.sourceConflict(); why != "" {
		return v.wait(ref, why)
	}
	if a, first := v.waitForPinned(ref); first {
		return a
	}
	if from := v.peerSources(); len(here) == 0 && len(from) > 0 {
		return v.sync(ref, from, reason)
	}
	a := v.newFirstCopy(Clone, ref, reason)
	if len(here) > 0 {
		from := nearest(here, ref)
		if a.Bytes == UnknownBytes && v.isPlainClone() {
			a.Bytes = v.ix.copyAt(from).Size
		}
		a = v.withSource(a, from)
	}
	return a
}

// waitForPinned waits where the clone would have other bytes than the image had.
func (v imagePlanner) waitForPinned(ref schema.DiskRef) (a Action, first bool) {
	last := v.PinnedDigest()
	if last.Digest.IsZero() || v.image.Source.Clone.Encryption == schema.Decrypt || v.isPlainClone() && v.knownDigest() == last.Digest {
		return Action{}, false
	}
	a = v.wait(ref, "cloned anew it has other bytes, which may take the place of the lost ones only after the recovery interval")
	a.Until = last.Until
	return a, true
}

// nearest is the copy on the same disk, of which extents can be shared, or the first.
func nearest(copies []CopyRef, ref schema.DiskRef) CopyRef {
	for _, key := range copies {
		if key.Disk == ref {
			return key
		}
	}
	return copies[0]
}

// knownDigest is the digest that the bytes are known to have: the declared one, or, before
// there is a copy, that of an image that this one is a plain clone of.
func (v imagePlanner) knownDigest() disk.Digest {
	if !v.image.Checksum.IsZero() {
		return v.image.Checksum
	}
	if !v.isPlainClone() || len(v.ready) > 0 || v.sourceConflict() != "" {
		return disk.Digest{}
	}
	here, there := v.cloneSources()
	for _, key := range slices.Concat(here, there) {
		return v.ix.copyAt(key).SHA512
	}
	return disk.Digest{}
}
