package plan

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// cloneSources returns the ready copies of the image that this one is cloned from: those on
// disks of this node, and those on other nodes.
func (p imagePlanner) cloneSources() (own, peers []CopyRef) {
	source, declared := p.ix.desired.Config.Images[p.image.Source.Clone.BackingImage]
	if !declared {
		return nil, nil
	}
	usable := func(ref CopyRef) bool {
		c := p.ix.copyAt(ref)
		return ref.ID == source.ID && c.State == disk.Ready && !c.Leaving && !p.ix.suspects[ref] && mismatchReason(source, c).IsZero() && p.ix.isCurrent(ref.Disk)
	}
	for _, ref := range p.ix.copiesNamed(source.ID.Name) {
		switch {
		case !usable(ref):
		case p.ix.desired.Owns(ref.Disk):
			own = append(own, ref)
		default:
			peers = append(peers, ref)
		}
	}
	return own, peers
}

// isPlainClone reports whether the image is a clone with the bytes of its source.
func (p imagePlanner) isPlainClone() bool {
	c := p.image.Source.Clone
	return c != nil && c.Encryption == schema.EncryptionIgnore
}

// clonesLocally reports whether the first copy is a byte for byte copy of one on this node.
func (p imagePlanner) clonesLocally() bool {
	if !p.isPlainClone() || len(p.ready) > 0 {
		return false
	}
	digest := p.knownDigest()
	own, _ := p.cloneSources()
	return slices.ContainsFunc(own, func(ref CopyRef) bool { return !digest.IsZero() && p.ix.copyAt(ref).HasDigest(digest) })
}

// cannotClone returns why another node must create the clone.
func (p imagePlanner) cannotClone() Reason {
	if own, peers := p.cloneSources(); len(own) == 0 && len(peers) > 0 && p.sourceConflict().IsZero() {
		return because(CodeCannotPrepare, "image %s, which it is cloned from, has no ready copy on this node", p.image.Source.Clone.BackingImage)
	}
	return Reason{}
}

// sourceConflict returns a reason when the copies of the cloned image differ.
func (p imagePlanner) sourceConflict() Reason {
	own, peers := p.cloneSources()
	all := slices.Concat(own, peers)
	for _, ref := range all {
		if p.ix.copyAt(ref).SHA512 != p.ix.copyAt(all[0]).SHA512 {
			return because(CodeCloneConflict, "the copies of image %s, which it is cloned from, differ", p.image.Source.Clone.BackingImage)
		}
	}
	return Reason{}
}

// planClone creates the first copy from a ready copy of the source on this node. A plain clone
// may also be synced from the copies of the source on other nodes.
func (p imagePlanner) planClone(ref schema.DiskRef, reason Reason) Action {
	source := p.image.Source.Clone.BackingImage
	own, peers := p.cloneSources()
	if len(own) == 0 && !(p.isPlainClone() && len(peers) > 0) && !p.ix.observed.Running[p.on(ref)] {
		if _, declared := p.ix.desired.Config.Images[source]; !declared {
			return p.blocked(ref, because(CodeCloneUndeclared, "image %s, which it is cloned from, is not declared", source))
		}
		return p.wait(ref, because(CodeCloneNotReady, "image %s, which it is cloned from, is not ready yet", source))
	}
	if reason := p.sourceConflict(); !reason.IsZero() {
		return p.wait(ref, reason)
	}
	if a, pinned := p.waitForPinned(ref); pinned {
		return a
	}
	if from := p.peerSources(); len(own) == 0 && len(from) > 0 {
		return p.sync(ref, from, reason)
	}
	a := p.newFirstCopy(Clone, ref, reason)
	if len(own) > 0 {
		from := nearest(own, ref)
		if a.Bytes == UnknownBytes && p.isPlainClone() {
			a.Bytes = p.ix.copyAt(from).Size
		}
		a = p.withSource(a, from)
	}
	return a
}

// waitForPinned waits while the clone would have other bytes than the image had.
func (p imagePlanner) waitForPinned(ref schema.DiskRef) (a Action, pinned bool) {
	last := p.pinnedDigest()
	if last.Digest.IsZero() || p.image.Source.Clone.Encryption == schema.Decrypt || p.isPlainClone() && p.knownDigest() == last.Digest {
		return Action{}, false
	}
	a = p.wait(ref, Reason{CodeDigestPinned, "a new clone has other bytes, which may replace the lost ones only after the recovery interval"})
	a.Until = last.Until
	return a, true
}

// nearest returns the copy on the disk ref, whose extents can be shared, or the first one.
func nearest(copies []CopyRef, ref schema.DiskRef) CopyRef {
	for _, c := range copies {
		if c.Disk == ref {
			return c
		}
	}
	return copies[0]
}
