package plan

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// placement is the result of the walk over the ranked disks of an image (P1 to P5).
type placement struct {
	ranked *ranking
	// targets are the desired disks that have a copy or can take one, best first. The first
	// of them creates the first copy.
	targets []schema.DiskRef
	copies  int // desired on ranked disks
	missing int // those of them for which there is no disk
	// rejected are the disks that take no copy, as far as the walk went, and named ones.
	rejected map[schema.DiskRef]Rejection
}

// place walks over the ranked disks, best first. Targets are the first disks that have a copy
// or can take one, and then the disks that the image names.
func (p imagePlanner) place(ranked *ranking) placement {
	pl := placement{ranked: ranked, copies: p.image.Copies, rejected: map[schema.DiskRef]Rejection{}}
	if p.image.AllDisks {
		pl.copies = ranked.len()
	}
	var failing []schema.DiskRef
	started := p.inProgress(ranked)
	for i := 0; i < len(started)+ranked.len() && len(pl.targets) < pl.copies; i++ {
		var ref schema.DiskRef
		if i < len(started) {
			ref = started[i]
		} else if ref = ranked.at(i - len(started)); slices.Contains(started, ref) {
			continue
		}
		switch r := p.rejects(ref); {
		case !r.IsZero():
			pl.rejected[ref] = r
		case p.isFailing(ref):
			failing = append(failing, ref)
		default:
			pl.targets = append(pl.targets, ref)
		}
	}
	// A failing disk is tried again only if no other disk is left, in the order of the next
	// attempts.
	slices.SortStableFunc(failing, p.byRetryTime)
	pl.targets = append(pl.targets, failing[:min(len(failing), pl.copies-len(pl.targets))]...)
	pl.missing = pl.copies - len(pl.targets)
	p.addNamedDisks(&pl)
	return pl
}

// addNamedDisks adds the disks that the image names.
func (p imagePlanner) addNamedDisks(pl *placement) {
	for _, ref := range p.image.Disks {
		if _, declared := p.ix.desired.Disk(ref); !declared || slices.Contains(pl.targets, ref) {
			continue
		}
		if r := p.rejects(ref); !r.IsZero() {
			pl.rejected[ref] = r
			continue
		}
		pl.targets = append(pl.targets, ref)
	}
}

// stage is how far a first copy has come on a disk.
type stage int

const (
	notStarted  stage = iota
	interrupted       // a partial file is there
	uploading         // a client is about to upload the image
	running           // a job is running
)

// inProgress returns the ranked disks on which the first copy has started, the furthest ones
// first. They keep the task as long as they can go on, whatever their rank (F3).
func (p imagePlanner) inProgress(ranked *ranking) []schema.DiskRef {
	if len(p.ready) > 0 {
		return nil
	}
	var refs []CopyRef
	for _, ref := range p.ix.copiesNamed(p.image.ID.Name) {
		if ref.ID == p.image.ID && p.stage(ref) > notStarted && ranked.has(ref.Disk) && !p.isFailing(ref.Disk) {
			refs = append(refs, ref)
		}
	}
	for _, on := range p.ix.ownDisks { // a job may not have created the folder yet
		ref := p.on(on)
		if (p.ix.observed.Running[ref] || p.ix.desired.Uploads[ref]) && !slices.Contains(refs, ref) && ranked.has(on) && !p.isFailing(on) {
			refs = append(refs, ref)
		}
	}
	ranked.order(refs)
	slices.SortStableFunc(refs, func(a, b CopyRef) int { return cmp.Compare(p.stage(b), p.stage(a)) })
	disks := make([]schema.DiskRef, len(refs))
	for i, ref := range refs {
		disks[i] = ref.Disk
	}
	return disks
}

func (p imagePlanner) stage(ref CopyRef) stage {
	c := p.ix.copyAt(ref)
	switch {
	case p.ix.observed.Running[ref]:
		return running
	case p.ix.desired.Uploads[ref]:
		return uploading
	case c.PartSourceID == disk.PartFromUpload:
		return interrupted
	case p.image.Source.Upload == nil && c.PartBytes > 0 && !c.FromPeers():
		return interrupted
	}
	return notStarted
}

func (p imagePlanner) byRetryTime(a, b schema.DiskRef) int {
	retryAt := func(ref schema.DiskRef) time.Time {
		if p.ix.observed.Running[p.on(ref)] {
			return time.Time{}
		}
		return p.longFailure(ref).RetryAt
	}
	return retryAt(a).Compare(retryAt(b))
}

// isFailing reports whether the disk, or the connection of its node to the source, has failed
// for the recovery interval, so that the task moves on (F3).
func (p imagePlanner) isFailing(ref schema.DiskRef) bool { return p.longFailure(ref).Attempts > 0 }

// longFailure returns the failure for which isFailing is true.
func (p imagePlanner) longFailure(ref schema.DiskRef) Failure {
	if p.ix.copyAt(p.on(ref)).State == disk.Ready {
		return Failure{} // the failure is over
	}
	if p.image.Source.Upload != nil && len(p.ready) == 0 {
		return Failure{} // no other disk can go on with a partial upload
	}
	long := func(f Failure) bool {
		return f.Attempts > 0 && p.ix.observed.Now.Sub(f.Since) >= p.ix.desired.Config.Settings.RecoveryWaitInterval
	}
	if f := p.ix.observed.Failures[p.on(ref)]; f.Fault == FaultDisk && long(f) {
		return f
	}
	if len(p.ready) > 0 {
		return Failure{} // nobody needs the source any more
	}
	var worst Failure
	for name := range p.ix.desired.Config.Nodes[ref.Node].Disks {
		f := p.ix.observed.Failures[p.on(schema.DiskRef{Node: ref.Node, Disk: name})]
		if f.Fault == FaultNetwork && f.Op.IsFirstCopy() && long(f) && f.RetryAt.After(worst.RetryAt) {
			worst = f
		}
	}
	return worst
}

// Severity says what a rejection means for the plan.
type Severity uint8

const (
	// Defective: something is wrong with the disk or its node.
	Defective Severity = iota
	// Intended: the configuration asks for it.
	Intended
	// Temporary: the disk takes a copy once a first copy exists.
	Temporary
)

// Rejection is the reason why a disk takes no new copy. The zero value is no rejection.
type Rejection struct {
	Reason
	Severity Severity
}

// rejects returns why a disk takes no new copy, so that the next ranked disk takes it (P3). A
// disk with a ready copy is not rejected, and a file that must only be verified needs no space.
func (p imagePlanner) rejects(ref schema.DiskRef) Rejection {
	seen, known := p.ix.observed.Disks[ref]
	c := seen.Copies[p.image.ID]
	node, declared := p.ix.desired.Config.Nodes[ref.Node], p.ix.desired.Config.Nodes[ref.Node].Disks[ref.Disk]
	owned := p.ix.desired.Owns(ref)
	switch {
	case p.ix.desired.evicting(ref):
		return Rejection{Reason{CodeEviction, "its eviction is requested"}, Intended}
	case !owned && !p.ix.isCurrent(ref):
		return p.rejectsUnreachable(ref, c)
	case !known:
		return Rejection{Reason: Reason{CodeDiskUnavailable, "not observed"}}
	case seen.Problem != "":
		return Rejection{Reason: Reason{CodeDiskUnavailable, seen.Problem}}
	case c.State == disk.Ready, c.State == disk.Unknown:
		return Rejection{}
	case !node.AllowScheduling:
		return Rejection{Reason{CodeSchedulingOff, "scheduling on the node is disabled"}, Intended}
	case !declared.AllowScheduling:
		return Rejection{Reason{CodeSchedulingOff, "scheduling on the disk is disabled"}, Intended}
	case c.State == disk.Failed && c.UsedBy != "" && !p.repairable(p.on(ref)):
		return Rejection{Reason: Reason{CodeDamagedInUse, "the copy on it failed and is in use"}}
	case p.ix.observed.Running[p.on(ref)]:
		return Rejection{}
	case c.Rejects != "" && !(c.RejectsForNow && len(p.ready) > 0): // its node does not know of the first copy yet
		if c.RejectsForNow {
			return Rejection{Reason{CodePeerRejects, c.Rejects}, Temporary}
		}
		return Rejection{Reason: Reason{CodePeerRejects, c.Rejects}}
	case !owned:
		return Rejection{}
	}
	if reason := p.cannotPrepare(); !reason.IsZero() {
		return Rejection{reason, Temporary}
	}
	return p.rejectsForSpace(ref, RemainingBytes(c, p.requiredBytes()))
}

// rejectsUnreachable returns why a disk takes no copy whose observed state is not current. The
// disk of an unreachable node keeps its rank for the recovery interval, for example during a
// reboot (F8).
func (p imagePlanner) rejectsUnreachable(ref schema.DiskRef, c Copy) Rejection {
	peer, queried := p.ix.observed.Peers[ref.Node]
	_, known := p.ix.observed.Disks[ref]
	node, declared := p.ix.desired.Config.Nodes[ref.Node], p.ix.desired.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case ref.Node == p.ix.desired.Node && len(p.ix.observed.Peers) > 0: // no other process of this node is queried
		return Rejection{Reason: Reason{CodeDiskNotManaged, "this process does not manage it"}}
	case !known && p.ix.sameConfig(ref.Node):
		return Rejection{Reason: because(CodeDiskUnpublished, "node %s does not publish it", ref.Node)}
	case queried && !peer.Responds() && peer.UnreachableFor >= p.ix.desired.Config.Settings.RecoveryWaitInterval:
		return Rejection{Reason: because(CodePeerUnreachable, "node %s does not respond: %s", ref.Node, peer.Problem)}
	case !known: // it may have a copy
		return Rejection{}
	case c.State != disk.Ready && c.State != disk.Unknown && !(node.AllowScheduling && declared.AllowScheduling):
		return Rejection{Reason{CodeSchedulingOff, "scheduling on it is disabled"}, Intended}
	}
	return Rejection{}
}

// rejectsForSpace returns a rejection if the disk has less than n bytes above its reserve.
func (p imagePlanner) rejectsForSpace(ref schema.DiskRef, n int64) Rejection {
	declared, _ := p.ix.desired.Disk(ref)
	free := p.ix.observed.Disks[ref].Space.Free
	f := p.ix.observed.Failures[p.on(ref)]
	// What failed needed more than a sync will: the next upload may be smaller, and a sync
	// needs the data only.
	smaller := f.Op == Upload || f.Op.IsFirstCopy() && len(p.ready) > 0
	if !smaller {
		n = max(n, f.NeedsSpace)
	}
	n = max(n, 1)
	if n <= free-declared.StorageReserved {
		return Rejection{}
	}
	reason := because(CodeNoSpace, "%s: %s are free and %s reserved", noSpace, FormatBytes(free), FormatBytes(declared.StorageReserved))
	if n > 1 {
		reason = reason.with(CodeNoSpace, ", %s are needed", FormatBytes(n))
	}
	return Rejection{Reason: reason}
}

const noSpace = "not enough space"

// cannotPrepare returns why this node cannot create the first copy, although no copy exists
// that could be synced.
func (p imagePlanner) cannotPrepare() Reason {
	if len(p.ready)+len(p.ownSources())+len(p.peerSources()) > 0 {
		return Reason{}
	}
	if p.image.Source.Clone != nil {
		return p.cannotClone()
	}
	if text := p.ix.observed.CannotPrepare[p.image.ID]; text != "" {
		return Reason{CodeCannotPrepare, text}
	}
	return Reason{}
}

// isTarget reports whether the disk is a desired disk.
func (p imagePlanner) isTarget(ref schema.DiskRef) bool {
	return slices.Contains(p.placement.targets, ref)
}

// matches reports whether the disk is ranked for the image.
func (p imagePlanner) matches(ref schema.DiskRef) bool {
	declared, ok := p.ix.desired.Disk(ref)
	return ok && !p.ix.desired.evicting(ref) && hasAll(p.ix.desired.Config.Nodes[ref.Node].Tags, p.image.NodeSelector) && hasAll(declared.Tags, p.image.DiskSelector)
}

// isEligible reports whether the disk is ranked or named, so that a deletion may count on a
// ready copy there (S4).
func (p imagePlanner) isEligible(ref schema.DiskRef) bool {
	if p.matches(ref) {
		return true
	}
	_, declared := p.ix.desired.Disk(ref)
	return declared && !p.ix.desired.evicting(ref) && slices.Contains(p.image.Disks, ref)
}

// Rejections returns which declared images the disks of this node take no copy of although
// they match. The text of a rejection changes only when its cause does, since it is published.
func (d Desired) Rejections(o Observed) map[CopyRef]Rejection {
	return d.newIndex(o).rejections(maps.Values(d.Config.Images))
}

func (ix *index) rejections(images iter.Seq[schema.Image]) map[CopyRef]Rejection {
	out := map[CopyRef]Rejection{}
	for image := range images {
		p := ix.findReady(image)
		for _, ref := range ix.ownDisks {
			if !p.isEligible(ref) {
				continue
			}
			r := p.rejects(ref)
			switch {
			case ix.desired.Allowed == schema.ObserveOnly:
				r = Rejection{Reason: Reason{CodeObserveOnly, "its manager is in observe-only mode"}}
			case r.IsZero(), r.Severity == Intended:
				continue
			case r.Code == CodeNoSpace:
				r.Text = noSpace // without the sizes, which change all the time
			}
			out[p.on(ref)] = r
		}
	}
	return out
}

// Placement is where an image should have copies and where it has ready ones.
type Placement struct {
	Targets []schema.DiskRef // the desired disks, best first
	Missing int              // desired copies for which there is no disk
	Ready   []CopyRef        // ready copies of the declared generation, those on ranked disks first
	// PassedOver has the reason why each other disk is no target. It is nil when as many
	// copies are ready as are desired. When no copy is missing, it has only the disks that
	// would come before a target.
	PassedOver map[schema.DiskRef]Reason
}

// Desired returns how many copies the image should have.
func (p Placement) Desired() int { return len(p.Targets) + max(0, p.Missing) }

// Placements returns the placement of each declared image. It costs as much as planning.
func (d Desired) Placements(o Observed) map[disk.ID]Placement {
	ix := d.newIndex(o)
	all := make(map[disk.ID]Placement, len(d.Config.Images))
	for _, image := range d.Config.Images {
		p := ix.newImagePlanner(image)
		one := Placement{Targets: p.placement.targets, Missing: p.placement.missing, Ready: p.ready}
		if len(one.Ready) < one.Desired() || one.Desired() == 0 {
			one.PassedOver = p.rejectionReasons()
			if p.placement.missing > 0 || len(p.placement.targets) == 0 {
				one.PassedOver = p.passedOver()
			}
		}
		all[image.ID] = one
	}
	return all
}

func (p imagePlanner) rejectionReasons() map[schema.DiskRef]Reason {
	out := make(map[schema.DiskRef]Reason, len(p.placement.rejected))
	for ref, r := range p.placement.rejected {
		out[ref] = r.Reason
	}
	return out
}

// passedOver returns for each declared disk that is no target the reason.
func (p imagePlanner) passedOver() map[schema.DiskRef]Reason {
	out := map[schema.DiskRef]Reason{}
	for name, node := range p.ix.desired.Config.Nodes {
		for diskName, d := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: diskName}
			if p.isTarget(ref) {
				continue
			}
			nodeTag, nodeMatches := missingTag(node.Tags, p.image.NodeSelector)
			diskTag, diskMatches := missingTag(d.Tags, p.image.DiskSelector)
			switch r, rejected := p.placement.rejected[ref]; {
			case rejected:
				out[ref] = r.Reason
			case node.EvictionRequested || d.EvictionRequested:
				out[ref] = Reason{CodeEviction, "its eviction is requested"}
			case !nodeMatches:
				out[ref] = because(CodeTagMissing, "node tag %s missing", nodeTag)
			case !diskMatches:
				out[ref] = because(CodeTagMissing, "disk tag %s missing", diskTag)
			default:
				out[ref] = Reason{CodeRankedLower, "other disks come first"}
			}
		}
	}
	return out
}

// missingTag returns the first selector that tags do not have; matches: they have all.
func missingTag(tags, selectors []string) (tag string, matches bool) {
	for _, s := range selectors {
		if !slices.Contains(tags, s) {
			return s, false
		}
	}
	return "", true
}
