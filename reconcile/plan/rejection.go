package plan

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Severity is the meaning of a rejection for the plan.
type Severity uint8

const (
	// Defective: something is wrong with the disk or its node.
	Defective Severity = iota
	// Intended: the configuration requires it.
	Intended
	// Temporary: the disk takes a copy once a first copy exists.
	Temporary
)

// Rejection is the reason why a disk takes no new copy. The zero value is no rejection.
type Rejection struct {
	model.Reason
	Severity Severity
}

// rejects returns why a disk takes no new copy. Then the next ranked disk takes the copy (P3). A disk
// with a ready copy is rejected only if it is evicted, unreachable or unusable. The verification of a file
// needs no space.
func rejects(s *imageState, ref ident.DiskRef) Rejection {
	seen, known := s.ix.Observed.Disks[ref]
	c := seen.Copies[s.image.ID]
	node, declared := s.ix.Desired.Config.Nodes[ref.Node], s.ix.Desired.Config.Nodes[ref.Node].Disks[ref.Disk]
	owned := s.ix.Desired.Owns(ref)
	switch {
	case s.ix.Desired.evicting(ref):
		return Rejection{model.Reason{Code: CodeEviction, Text: "its eviction is requested"}, Intended}
	case !owned && !s.ix.isCurrent(ref):
		return rejectsUnreachable(s, ref, c)
	case !known:
		return Rejection{Reason: model.Reason{Code: CodeDiskUnavailable, Text: "not observed"}}
	case seen.Problem != "" && seen.ProblemFor(s.ix.Observed.Now) < s.ix.recoveryInterval(): // it may be mounted late
		return Rejection{}
	case seen.Problem != "":
		return Rejection{Reason: model.Reason{Code: CodeDiskUnavailable, Text: seen.Problem}}
	case c.Unproven: // nobody waits for this copy
		return Rejection{Reason: Unproven}
	case c.State == model.Ready:
		return Rejection{}
	case seen.ReadOnly: // a file in another state cannot become ready there
		return Rejection{Reason: model.Reason{Code: CodeDiskReadOnly, Text: model.ReadOnlyText}}
	case c.State == model.Unknown: // its node verifies it first, unless the node is idle
		return Rejection{Reason: idleReason(s, ref)}
	case s.hasJob(s.on(ref)): // the job reserved its space, and goes on
		return Rejection{}
	case !node.AllowScheduling:
		return Rejection{model.Reason{Code: CodeSchedulingOff, Text: "scheduling on the node is disabled"}, Intended}
	case !declared.AllowScheduling:
		return Rejection{model.Reason{Code: CodeSchedulingOff, Text: "scheduling on the disk is disabled"}, Intended}
	case c.State == model.Failed && s.ix.inUse(s.on(ref)) != "" && !isRepairable(s, s.on(ref)):
		return Rejection{Reason: model.Reason{Code: CodeDamagedInUse, Text: "the copy on it failed and is in use"}}
	case !owned: // its node publishes its other rejections
		// A temporary rejection ends with the first copy. If one is ready, the node of the disk may have
		// published the rejection before it knew of that copy.
		if r := s.ix.published(s.on(ref)); !r.IsZero() && !(r.Severity == Temporary && len(s.ready) > 0) {
			return r
		}
		return Rejection{Reason: idleReason(s, ref)}
	}
	if reason := cannotPrepare(s); !reason.IsZero() {
		return Rejection{reason, Temporary}
	}
	return rejectsForSpace(s, ref, s.requiredSpace(c))
}

// rejectsUnreachable returns why a disk takes no copy if its observed state is not current. The
// disk of an unreachable node is rejected only after the recovery interval: a reboot is shorter (F8).
// So is a disk that a node with another configuration does not publish.
func rejectsUnreachable(s *imageState, ref ident.DiskRef, c model.Copy) Rejection {
	peer, queried := s.ix.Observed.Peers[ref.Node]
	_, known := s.ix.Observed.Disks[ref]
	node, declared := s.ix.Desired.Config.Nodes[ref.Node], s.ix.Desired.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case ref.Node == s.ix.Desired.Node && len(s.ix.Observed.Peers) > 0: // no other process of this node is queried
		return Rejection{Reason: model.Reason{Code: CodeDiskNotManaged, Text: "this process does not manage it"}}
	case !known && s.ix.sameConfig(ref.Node) && !peer.Outdated:
		return Rejection{Reason: because(CodeDiskUnpublished, "node %s does not publish it", ref.Node)}
	case queried && !peer.Responds() && peer.UnreachableFor(s.ix.Observed.Now) >= s.ix.recoveryInterval():
		return Rejection{Reason: because(CodePeerUnreachable, "node %s does not respond: %s", ref.Node, peer.Problem)}
	case c.State != model.Ready && !idleReason(s, ref).IsZero():
		return Rejection{Reason: idleReason(s, ref)}
	case !known: // nothing is known about the disk yet, and it may have a copy: do not reject
		return Rejection{}
	case c.State != model.Ready && c.State != model.Unknown && !(node.AllowScheduling && declared.AllowScheduling):
		return Rejection{model.Reason{Code: CodeSchedulingOff, Text: "scheduling on it is disabled"}, Intended}
	}
	return Rejection{}
}

// idleReason returns a reason if the node of a disk is idle for the image (P3): for the recovery
// interval, the node has had another configuration or no valid one, and no job for a copy on the
// disk runs there. A partial file without a job delays no other node.
func idleReason(s *imageState, ref ident.DiskRef) model.Reason {
	peer, queried := s.ix.Observed.Peers[ref.Node]
	if !queried || !s.ix.Desired.differsFrom(peer) || peer.OtherConfigFor(s.ix.Observed.Now) < s.ix.recoveryInterval() || s.ix.Observed.Running[s.on(ref)] {
		return model.Reason{}
	}
	return s.ix.otherConfig(ref.Node).With(CodePeerIdle, ", and does not create its copy")
}

// delay returns why a target possibly gets no copy, and when the next ranked disk gets it (P3). The
// result is zero if nothing is known against the target.
func delay(s *imageState, ref ident.DiskRef) (reason model.Reason, end time.Time) {
	seen, now := s.ix.Observed.Disks[ref], s.ix.Observed.Now
	peer := s.ix.Observed.Peers[ref.Node]
	switch {
	case s.ix.isCurrent(ref) && seen.Problem != "":
		return because(CodeDiskUnavailable, "disk %s cannot be used: %s", ref, seen.Problem), now.Add(s.ix.recoveryInterval() - seen.ProblemFor(now))
	case seen.Copies[s.image.ID].State == model.Ready, s.ix.Observed.Running[s.on(ref)]:
		return model.Reason{}, time.Time{}
	case peer.Responds() && s.ix.Desired.differsFrom(peer):
		return s.ix.otherConfig(ref.Node), now.Add(s.ix.recoveryInterval() - peer.OtherConfigFor(now))
	}
	return model.Reason{}, time.Time{}
}

const noSpace = "not enough space"

// rejectsForSpace returns a rejection if the disk has less than n bytes above its reserve.
func rejectsForSpace(s *imageState, ref ident.DiskRef, n int64) Rejection {
	declared, _ := s.ix.Desired.Disk(ref)
	free := s.ix.Observed.Disks[ref].Space.Free
	f := s.ix.Observed.Failures[s.on(ref)]
	// The next attempt may need less than the failed one: the next upload may be smaller, and a
	// sync needs space for the data only.
	smaller := f.Op == model.Upload || f.Op.IsFirstCopy() && len(s.ready) > 0
	if !smaller {
		n = max(n, f.NeedsSpace)
	}
	n = max(n, 1) // at least one byte, if the size is not known
	if n <= free-declared.StorageReserved {
		return Rejection{}
	}
	reason := because(CodeNoSpace, "%s: %s are free and %s reserved", noSpace, FormatBytes(free), FormatBytes(declared.StorageReserved))
	if n > 1 {
		reason = reason.With(CodeNoSpace, ", %s are needed", FormatBytes(n))
	}
	if kept := keptBytes(s, ref); kept > 0 {
		reason = reason.With(CodeNoSpace, "; keepGenerations keeps %s of older generations there", FormatBytes(kept))
	}
	return Rejection{Reason: reason}
}

// cannotPrepare returns why this node cannot create the first copy while no copy exists from
// which it could sync.
func cannotPrepare(s *imageState) model.Reason {
	if own, peers := s.sources(); len(s.ready)+len(own)+len(peers) > 0 {
		return model.Reason{}
	}
	if s.image.Source.Clone != nil {
		return cannotClone(s)
	}
	if text := s.ix.Observed.CannotPrepare[s.image.ID]; text != "" {
		return model.Reason{Code: CodeCannotPrepare, Text: text}
	}
	return model.Reason{}
}

// cannotClone returns why another node must create the clone.
func cannotClone(s *imageState) model.Reason {
	if own, peers := s.cloneSources(); len(own) == 0 && len(peers) > 0 && s.cloneConflict().IsZero() {
		return because(CodeCannotPrepare, "image %s, which it is cloned from, has no ready copy on this node", s.image.Source.Clone.BackingImage)
	}
	return model.Reason{}
}

// isRepairable reports whether the damaged chunks of a failed copy can be rewritten: ready
// copies or the upstream have the bytes that its own manifest records. A copy whose repair
// failed is replaced instead, if it is not in use and there is space.
func isRepairable(s *imageState, ref ident.CopyRef) bool {
	c := s.ix.copyAt(ref)
	switch {
	case c.ManifestDigest.IsZero() || c.SHA512.IsZero():
		return false
	case s.digestDeclared() && c.SHA512 != s.image.Checksum && c.SHA256 != s.image.Checksum:
		return false
	case s.ix.inUse(ref) == "" && s.otherBytesReady(c):
		return false
	case s.ix.Observed.Failures[ref].Unrepairable && s.ix.inUse(ref) == "" && rejectsForSpace(s, ref.Disk, s.requiredSpace(model.Copy{})).IsZero():
		return false
	}
	return len(s.intact(ref)) > 0 || upstreamHasRanges(s.image)
}

// upstreamHasRanges reports whether single chunks can be fetched from the upstream, and
// verified.
func upstreamHasRanges(image schema.Image) bool {
	d := image.Source.Download
	return d != nil && d.Unpack == schema.UnpackNone && !image.Checksum.IsZero()
}

// Rejections returns why disks of this node that are ranked for an image or named by it take no copy
// of it. Observe-only mode is no reason: it may end in a moment, and other nodes see that this node has
// no config digest.
func (r *Round) Rejections() map[ident.CopyRef]Rejection {
	all := map[ident.CopyRef]Rejection{}
	for _, image := range r.Desired.Config.Images {
		s := newImageState(r, image)
		for _, on := range r.ownDisks {
			if why := rejectsForPeers(s, on); !why.IsZero() {
				all[s.on(on)] = why
			}
		}
	}
	return all
}

// rejectsForPeers returns what this node publishes: why a disk of this node takes no copy. The text changes only
// when the cause does.
func rejectsForPeers(s *imageState, ref ident.DiskRef) Rejection {
	if !s.isEligible(ref) {
		return Rejection{}
	}
	r := rejects(s, ref)
	switch {
	case r.Severity == Intended: // peers know the configuration, too
		return Rejection{}
	case r.Code == CodeNoSpace:
		r.Text = noSpace // without the sizes, which change all the time
	}
	return r
}

// rejectedByPeer returns the rejection that another node publishes. text "" means no rejection.
func rejectedByPeer(text string, temporary bool) Rejection {
	switch {
	case text == "":
		return Rejection{}
	case temporary:
		return Rejection{model.Reason{Code: CodePeerRejects, Text: text}, Temporary}
	}
	return Rejection{Reason: model.Reason{Code: CodePeerRejects, Text: text}}
}
