package plan

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// imagePlanner plans one declared image. It has the observed copies of the image and the
// placement.
type imagePlanner struct {
	ix        *index
	image     schema.Image
	placement placement
	// ready are the ready copies of the declared generation with the declared digest, or
	// without a declared checksum all of them: those on ranked disks first, best first.
	ready []CopyRef
	// mismatch has a reason for each ready copy of the declared generation that is not in ready.
	mismatch map[CopyRef]Reason
}

// newImagePlanner returns the planner of an image. It is valid until the next call.
func (ix *index) newImagePlanner(image schema.Image) imagePlanner {
	p := ix.findReady(image)
	ranked, cached := ix.rankings.rank(image, ix.scratch)
	if !cached {
		ix.scratch = ranked.disks
	}
	p.placement = p.place(ranked)
	ranked.order(p.ready)
	return p
}

// findReady returns a planner that has the ready copies, in no order, and no placement.
func (ix *index) findReady(image schema.Image) imagePlanner {
	p := imagePlanner{ix: ix, image: image, mismatch: map[CopyRef]Reason{}}
	for _, ref := range ix.copiesNamed(image.ID.Name) {
		c := ix.copyAt(ref)
		if ref.ID != image.ID || c.State != disk.Ready || !ix.isCurrent(ref.Disk) {
			continue
		}
		if reason := mismatchReason(image, c); !reason.IsZero() {
			p.mismatch[ref] = reason
			continue
		}
		if ix.desired.Owns(ref.Disk) || !c.Leaving {
			p.ready = append(p.ready, ref)
		}
	}
	return p
}

// ReadyCopies returns the ready copies of a declared image that have the declared digest, on
// this node and on nodes that respond, in no order.
func (d Desired) ReadyCopies(o Observed, image schema.Image) []CopyRef {
	return d.newIndex(o).findReady(image).ready
}

// mismatchReason returns why a ready copy is not known to have the declared digest, zero if
// it has it.
func mismatchReason(image schema.Image, c Copy) Reason {
	switch {
	case image.Checksum.IsZero(), c.HasDigest(image.Checksum):
		return Reason{}
	case image.Checksum.Algorithm() == disk.SHA256 && c.SHA256.IsZero():
		return Reason{CodeDigestUnknown, "its SHA-256 is not known yet"}
	}
	return because(CodeChecksumMismatch, "the existing file has checksum %s, declared is %s: declare that checksum or another uuid", c.SHA512, image.Checksum)
}

// digestDeclared reports whether a checksum is declared.
func (p imagePlanner) digestDeclared() bool { return !p.image.Checksum.IsZero() }

// digestKnown reports whether a checksum is declared or a ready copy has established the
// digest.
func (p imagePlanner) digestKnown() bool { return p.digestDeclared() || len(p.ready) > 0 }

// knownDigest returns the declared digest, or before the first copy that of the image of
// which this one is a plain clone. Zero: not known.
func (p imagePlanner) knownDigest() disk.Digest {
	if p.digestDeclared() {
		return p.image.Checksum
	}
	if !p.isPlainClone() || len(p.ready) > 0 || !p.sourceConflict().IsZero() {
		return disk.Digest{}
	}
	here, there := p.cloneSources()
	for _, ref := range slices.Concat(here, there) {
		return p.ix.copyAt(ref).SHA512
	}
	return disk.Digest{}
}

// ownSources returns the ready copies on this node from which the image can be copied: its
// own, or with a known digest those of any image.
func (p imagePlanner) ownSources() []CopyRef {
	return p.sources(p.ix.ownByDigest, func(ref CopyRef) bool { return p.ix.desired.Owns(ref.Disk) && !p.ix.suspects[ref] })
}

// peerSources returns those on other nodes.
func (p imagePlanner) peerSources() []CopyRef {
	return p.sources(p.ix.peerByDigest, func(ref CopyRef) bool {
		return !p.ix.desired.Owns(ref.Disk) && !p.ix.copyAt(ref).ManifestDigest.IsZero()
	})
}

func (p imagePlanner) sources(byDigest map[disk.Digest][]CopyRef, usable func(CopyRef) bool) []CopyRef {
	var refs []CopyRef
	for _, ref := range p.ready {
		if usable(ref) && !p.ix.copyAt(ref).Leaving {
			refs = append(refs, ref)
		}
	}
	if digest := p.knownDigest(); len(refs) == 0 && !digest.IsZero() {
		return byDigest[digest]
	}
	return refs
}

// requiredBytes returns how much space a new copy takes, 0 if that is not known.
func (p imagePlanner) requiredBytes() int64 {
	var n int64
	for _, refs := range [][]CopyRef{p.ready, p.ownSources(), p.peerSources()} {
		for _, ref := range refs {
			n = max(n, p.ix.copyAt(ref).RealSize)
		}
	}
	return n
}

// RemainingBytes returns how many of required bytes the partial file of c does not have yet.
func RemainingBytes(c Copy, required int64) int64 {
	if c.PartTotal <= 0 {
		return required
	}
	return int64(float64(required) * (1 - min(1, float64(c.PartBytes)/float64(c.PartTotal))))
}

// hadCopy reports whether the image had a copy that has failed since.
func (p imagePlanner) hadCopy() bool {
	return slices.ContainsFunc(p.ix.copiesNamed(p.image.ID.Name), func(ref CopyRef) bool {
		return ref.ID == p.image.ID && p.ix.copyAt(ref).State == disk.Failed
	})
}

// repairable reports whether the damaged chunks of a failed copy can be rewritten: ready
// copies or the upstream have the bytes that its own manifest records. A copy whose repair
// failed is replaced instead, if it is not in use and there is space.
func (p imagePlanner) repairable(ref CopyRef) bool {
	c := p.ix.copyAt(ref)
	switch {
	case c.ManifestDigest.IsZero() || c.SHA512.IsZero():
		return false
	case p.digestDeclared() && c.SHA512 != p.image.Checksum && c.SHA256 != p.image.Checksum:
		return false
	case c.UsedBy == "" && p.otherBytesReady(c):
		return false
	case p.ix.observed.Failures[ref].Unrepairable && c.UsedBy == "" && p.rejectsForSpace(ref.Disk, p.requiredBytes()).IsZero():
		return false
	}
	return len(p.intact(ref)) > 0 || p.upstreamHasRanges()
}

// otherBytesReady reports whether ready copies of an image without a checksum have other bytes
// than c had. Repaired, c would be in conflict with them.
func (p imagePlanner) otherBytesReady(c Copy) bool {
	return !p.digestDeclared() && len(p.ready) > 0 &&
		!slices.ContainsFunc(p.ready, func(ref CopyRef) bool { return p.ix.copyAt(ref).SHA512 == c.SHA512 })
}

// intact returns ready copies with the bytes that a failed one should have: those of this
// node, otherwise those of other nodes.
func (p imagePlanner) intact(ref CopyRef) []CopyRef {
	digest := p.ix.copyAt(ref).SHA512
	if own := p.ix.ownByDigest[digest]; len(own) > 0 {
		return own
	}
	return p.ix.peerByDigest[digest]
}

// upstreamHasRanges reports whether single chunks can be fetched from the upstream, and
// verified.
func (p imagePlanner) upstreamHasRanges() bool {
	d := p.image.Source.Download
	return d != nil && d.Unpack == schema.UnpackNone && p.digestDeclared()
}
