package plan

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// imageState is the observed state of one declared image. Its methods are queries: which
// copies are ready, which bytes they have, and from which copies others can be created. They
// plan nothing.
type imageState struct {
	ix    *Round
	image schema.Image
	// ready are the ready copies of the declared generation that match the declared checksum,
	// if there is one. newImagePlanner sorts them by rank.
	ready []ident.CopyRef
	// mismatch has the reason why a ready copy of the declared generation does not match the
	// declared checksum, or is not known to match. nil: all ready copies match.
	mismatch map[ident.CopyRef]model.Reason
}

func newImageState(ix *Round, image schema.Image) *imageState {
	s := &imageState{ix: ix, image: image}
	for _, ref := range ix.copiesNamed(image.ID.Name) {
		c := ix.copyAt(ref)
		if ref.ID != image.ID || c.State != model.Ready || !ix.isCurrent(ref.Disk) {
			continue
		}
		if reason := mismatchReason(image, c); !reason.IsZero() {
			if s.mismatch == nil {
				s.mismatch = map[ident.CopyRef]model.Reason{}
			}
			s.mismatch[ref] = reason
			continue
		}
		// A leaving copy of this node still exists until the deletion is confirmed. A leaving
		// copy of another node may be gone already.
		if ix.Desired.Owns(ref.Disk) || !c.Leaving {
			s.ready = append(s.ready, ref)
		}
	}
	return s
}

// ReadyCopies returns the ready copies of a declared image that have the declared digest, on
// this node and on nodes that respond, in no order.
func (r *Round) ReadyCopies(image schema.Image) []ident.CopyRef {
	return newImageState(r, image).ready
}

// mismatchReason returns why a ready copy is not known to have the declared digest. It is zero
// if the copy has it, or if no checksum is declared.
func mismatchReason(image schema.Image, c model.Copy) model.Reason {
	switch {
	case image.Checksum.IsZero(), c.HasDigest(image.Checksum):
		return model.Reason{}
	case image.Checksum.Algorithm() == ident.SHA256 && c.SHA256.IsZero():
		return model.Reason{Code: CodeDigestUnknown, Text: "its SHA-256 is not known yet"}
	}
	return because(CodeChecksumMismatch, "the existing file has checksum %s, declared is %s: declare the checksum of the file, or another uuid", c.SHA512, image.Checksum)
}

// on returns the reference of the copy on a disk. The copy need not exist.
func (s *imageState) on(ref ident.DiskRef) ident.CopyRef {
	return ident.CopyRef{Disk: ref, ID: s.image.ID}
}

// matches reports whether the disk is ranked for the image. It needs no ranking.
func (s *imageState) matches(ref ident.DiskRef) bool {
	declared, ok := s.ix.Desired.Disk(ref)
	return ok && !s.ix.Desired.evicting(ref) && hasAll(s.ix.Desired.Config.Nodes[ref.Node].Tags, s.image.NodeSelector) && hasAll(declared.Tags, s.image.DiskSelector)
}

// isEligible reports whether the disk is ranked or named, and is not being evicted. A deletion may count on ready
// copies on eligible disks only (S4).
func (s *imageState) isEligible(ref ident.DiskRef) bool {
	if s.matches(ref) {
		return true
	}
	_, declared := s.ix.Desired.Disk(ref)
	return declared && !s.ix.Desired.evicting(ref) && slices.Contains(s.image.Disks, ref)
}

// countable reports whether a deletion may count on a ready copy. The copy is not leaving, is not another
// path to a counted file, and its disk is not disputed. On this node, it is no suspect, and no job works
// on it. On another node, that node responds and has the same configuration. While a deletion is
// confirmed, the copy must also have proven that it has its bytes.
func (s *imageState) countable(ref ident.CopyRef) bool {
	if c := s.ix.copyAt(ref); c.Leaving || c.SameAs != (ident.DiskRef{}) || s.ix.Observed.Disks[ref.Disk].Disputed != "" || !s.ix.hasProven(ref) {
		return false
	}
	if s.ix.Desired.Owns(ref.Disk) {
		return !s.ix.suspects[ref] && !s.ix.Observed.Running[ref]
	}
	return s.ix.sameConfig(ref.Disk.Node) && !s.ix.Observed.unconfirmed[ref.Disk.Node]
}

// hasJob reports whether a job runs on a copy and does not delete it.
func (s *imageState) hasJob(ref ident.CopyRef) bool {
	return s.ix.Observed.Running[ref] && !s.ix.copyAt(ref).Leaving
}

// hadCopy reports whether the image had a copy that has failed since.
func (s *imageState) hadCopy() bool {
	return slices.ContainsFunc(s.ix.copiesNamed(s.image.ID.Name), func(ref ident.CopyRef) bool {
		return ref.ID == s.image.ID && s.ix.copyAt(ref).State == model.Failed
	})
}

// digestDeclared reports whether a checksum is declared.
func (s *imageState) digestDeclared() bool { return !s.image.Checksum.IsZero() }

// digestKnown reports whether a checksum is declared or a ready copy has established the
// digest.
func (s *imageState) digestKnown() bool { return s.digestDeclared() || len(s.ready) > 0 }

// knownDigest returns the declared digest. For a plain clone without a copy it returns the
// digest of the clone's source. It is zero if neither is known.
func (s *imageState) knownDigest() ident.Digest {
	if s.digestDeclared() {
		return s.image.Checksum
	}
	if !isPlainClone(s.image) || len(s.ready) > 0 || !s.cloneConflict().IsZero() {
		return ident.Digest{}
	}
	return s.cloneDigest()
}

// sources returns the ready copies from which the image can be copied: own on this node, and peers on other nodes. Each list has
// copies of the image itself. If there are none and the digest is known, it has copies of any image with that digest. A transfer
// between nodes needs the chunk manifest.
func (s *imageState) sources() (own, peers []ident.CopyRef) {
	for _, ref := range s.ready {
		switch c := s.ix.copyAt(ref); {
		case c.Leaving:
		case s.ix.Desired.Owns(ref.Disk) && !s.ix.suspects[ref]:
			own = append(own, ref)
		case !s.ix.Desired.Owns(ref.Disk) && !c.ManifestDigest.IsZero():
			peers = append(peers, ref)
		}
	}
	if len(own) > 0 && len(peers) > 0 {
		return own, peers
	}
	ownOthers, peerOthers := s.ix.readyWith(s.knownDigest())
	if len(own) == 0 {
		own = ownOthers
	}
	if len(peers) == 0 {
		peers = peerOthers
	}
	return own, peers
}

// intact returns ready copies with the bytes that a failed copy should have. It returns copies
// on other nodes only if this node has no such copy.
func (s *imageState) intact(ref ident.CopyRef) []ident.CopyRef {
	own, peers := s.ix.readyWith(s.ix.copyAt(ref).SHA512)
	if len(own) > 0 {
		return own
	}
	return peers
}

// otherBytesReady reports whether all ready copies of an image without a checksum have other
// bytes than copy c had. A repair of c would then create a conflict.
func (s *imageState) otherBytesReady(c model.Copy) bool {
	return !s.digestDeclared() && len(s.ready) > 0 &&
		!slices.ContainsFunc(s.ready, func(ref ident.CopyRef) bool { return s.ix.copyAt(ref).SHA512 == c.SHA512 })
}

// requiredSpace returns how many more bytes a new copy takes in place of copy c, including the files
// beside the image; 0: it is not known.
func (s *imageState) requiredSpace(c model.Copy) int64 {
	var data, beside int64
	own, peers := s.sources()
	for _, ref := range slices.Concat(s.ready, own, peers) {
		other := s.ix.copyAt(ref)
		data, beside = max(data, other.RealSize), max(beside, model.SpaceBeside(other.Size))
	}
	return RemainingBytes(c, data) + beside
}

// RemainingBytes returns how many of the required bytes the partial file of copy c does not have yet.
func RemainingBytes(c model.Copy, required int64) int64 {
	if c.PartTotal <= 0 {
		return required
	}
	return int64(float64(required) * (1 - min(1, float64(c.PartBytes)/float64(c.PartTotal))))
}

// isPlainClone reports whether the image is a clone with the same bytes as its source.
func isPlainClone(image schema.Image) bool {
	c := image.Source.Clone
	return c != nil && c.Encryption == schema.EncryptionIgnore
}

// cloneSources returns the ready copies of the image that this image is cloned from: own on
// disks of this process, and peers on other disks.
func (s *imageState) cloneSources() (own, peers []ident.CopyRef) {
	source, declared := s.ix.Desired.Config.Images[s.image.Source.Clone.BackingImage]
	if !declared {
		return nil, nil
	}
	usable := func(ref ident.CopyRef) bool {
		c := s.ix.copyAt(ref)
		return ref.ID == source.ID && c.State == model.Ready && !c.Leaving && !s.ix.suspects[ref] && mismatchReason(source, c).IsZero() && s.ix.isCurrent(ref.Disk)
	}
	for _, ref := range s.ix.copiesNamed(source.ID.Name) {
		switch {
		case !usable(ref):
		case s.ix.Desired.Owns(ref.Disk):
			own = append(own, ref)
		default:
			peers = append(peers, ref)
		}
	}
	return own, peers
}

// cloneDigest returns the digest of the ready copies from which the image is cloned; zero if there are
// none.
func (s *imageState) cloneDigest() ident.Digest {
	own, peers := s.cloneSources()
	for _, ref := range slices.Concat(own, peers) {
		return s.ix.copyAt(ref).SHA512
	}
	return ident.Digest{}
}

// cloneConflict returns a reason when the copies of the cloned image differ.
func (s *imageState) cloneConflict() model.Reason {
	own, peers := s.cloneSources()
	all := slices.Concat(own, peers)
	for _, ref := range all {
		if s.ix.copyAt(ref).SHA512 != s.ix.copyAt(all[0]).SHA512 {
			return because(CodeCloneConflict, "the copies of image %s, which it is cloned from, differ", s.image.Source.Clone.BackingImage)
		}
	}
	return model.Reason{}
}

// clonesLocally reports whether the first copy has the same bytes as a ready clone source on this node.
func (s *imageState) clonesLocally() bool {
	if !isPlainClone(s.image) || len(s.ready) > 0 {
		return false
	}
	digest := s.knownDigest()
	own, _ := s.cloneSources()
	return slices.ContainsFunc(own, func(ref ident.CopyRef) bool { return !digest.IsZero() && s.ix.copyAt(ref).HasDigest(digest) })
}

// sourceFailure returns the failure that delays the use of the source the longest. A failure of the source
// applies to the image: no other disk or node tries it (F4). With a declared checksum, of the
// failures that other nodes publish only that of the first target counts. A network failure counts only
// on the node where it happened.
func (s *imageState) sourceFailure(first ident.DiskRef) model.Failure {
	op := firstCopyOp(s.image)
	var worst model.Failure
	for name, node := range s.ix.Desired.Config.Nodes {
		for diskName := range node.Disks {
			ref := ident.DiskRef{Node: name, Disk: diskName}
			f := s.ix.Observed.Failures[s.on(ref)]
			switch {
			case name != s.ix.Desired.Node && ref != first && s.digestDeclared(): // a claim
			case f.Attempts == 0, f.Fault == model.FaultDisk, f.NeedsSpace > 0, !f.Delays(op, s.ix.Observed.Now), worst.Final && !f.Final,
				f.Fault == model.FaultNetwork && name != s.ix.Desired.Node:
			// The message breaks ties, so that equal states give equal plans.
			case f.Final && !worst.Final, f.RetryAt.After(worst.RetryAt), f.RetryAt.Equal(worst.RetryAt) && f.Message < worst.Message:
				worst = f
			}
		}
	}
	return worst
}
