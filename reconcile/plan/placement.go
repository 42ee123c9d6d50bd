package plan

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// placement is what the walk over the ranked disks of an image gives.
type placement struct {
	ranked *Ranking
	// Targets are the disks that should have a copy and have it or can take it, best
	// first. The first of them makes the first copy.
	Targets []schema.DiskRef
	copies  int // wanted on ranked disks
	missing int // those of them that no disk takes
	// Rejected are the disks that were passed over, ranked and named ones.
	Rejected map[schema.DiskRef]Rejection
}

// place walks over the ranked disks: the first that have a copy or can take one
// are wanted, and those that the image names.
func (v imagePlanner) place(ranked *Ranking) placement {
	p := placement{ranked: ranked, copies: v.image.Copies, Rejected: map[schema.DiskRef]Rejection{}}
	if v.image.AllDisks {
		p.copies = ranked.Len()
	}
	var troubled []schema.DiskRef
	begun := v.inProgress(ranked)
	for i := 0; i < len(begun)+ranked.Len() && len(p.Targets) < p.copies; i++ {
		var ref schema.DiskRef
		if i < len(begun) {
			ref = begun[i]
		} else if ref = ranked.At(i - len(begun)); slices.Contains(begun, ref) {
			continue
		}
		switch r := v.rejects(ref); {
		case r.Reason != "":
			p.Rejected[ref] = r
		case v.isFailing(ref):
			troubled = append(troubled, ref)
		default:
			p.Targets = append(p.Targets, ref)
		}
	}
	// A disk in trouble is tried again only if no other can act for it, and then the
	// one that is due first.
	slices.SortStableFunc(troubled, v.byRetryTime)
	p.Targets = append(p.Targets, troubled[:min(len(troubled), p.copies-len(p.Targets))]...)
	p.missing = p.copies - len(p.Targets)
	v.addNamedDisks(&p)
	return p
}

// addNamedDisks adds the disks that the image names.
func (v imagePlanner) addNamedDisks(p *placement) {
	for _, ref := range v.image.Disks {
		if _, declared := v.ix.desired.Disk(ref); !declared || slices.Contains(p.Targets, ref) {
			continue
		}
		if r := v.rejects(ref); r.Reason != "" {
			p.Rejected[ref] = r
			continue
		}
		p.Targets = append(p.Targets, ref)
	}
}

// inProgress are the ranked disks that have begun with the first copy, those first where
// it is under way: nobody takes that over as long as they can go on, however well
// another one ranks.
func (v imagePlanner) inProgress(ranked *Ranking) []schema.DiskRef {
	if len(v.ready) > 0 {
		return nil
	}
	var keys []CopyRef
	for _, key := range v.ix.copiesNamed(v.image.ID.Name) {
		if key.ID == v.image.ID && v.stage(key) > 0 && ranked.has(key.Disk) && !v.isFailing(key.Disk) {
			keys = append(keys, key)
		}
	}
	for _, ref := range v.ix.ownDisks { // which may have made no folder yet
		key := CopyRef{ref, v.image.ID}
		if (v.ix.observed.Running[key] || v.ix.desired.Uploads[key]) && !slices.Contains(keys, key) && ranked.has(ref) && !v.isFailing(ref) {
			keys = append(keys, key)
		}
	}
	ranked.order(keys)
	slices.SortStableFunc(keys, func(a, b CopyRef) int { return cmp.Compare(v.stage(b), v.stage(a)) })
	refs := make([]schema.DiskRef, len(keys))
	for i, key := range keys {
		refs[i] = key.Disk
	}
	return refs
}

// stage is 3 for a first copy that is under way, 2 for one that a client is about to
// upload, 1 for one that was under way.
func (v imagePlanner) stage(key CopyRef) int {
	switch {
	case v.ix.observed.Running[key]:
		return 3
	case v.ix.desired.Uploads[key]:
		return 2
	case v.ix.copyAt(key).PartSourceID == disk.PartFromUpload:
		return 1
	case v.image.Source.Upload == nil && v.ix.copyAt(key).PartBytes > 0 && !v.ix.copyAt(key).FromPeers():
		return 1
	}
	return 0
}

// requiredBytes is how many bytes a new copy takes, as far as that is known.
func (v imagePlanner) requiredBytes() int64 {
	var need int64
	for _, keys := range [][]CopyRef{v.ready, v.ownSources(), v.peerSources()} {
		for _, key := range keys {
			need = max(need, v.ix.copyAt(key).RealSize)
		}
	}
	return need
}

// RemainingBytes is how many of the needed bytes have not come yet.
func RemainingBytes(c Copy, need int64) int64 {
	if c.PartTotal <= 0 {
		return need
	}
	return int64(float64(need) * (1 - min(1, float64(c.PartBytes)/float64(c.PartTotal))))
}

func (v imagePlanner) byRetryTime(a, b schema.DiskRef) int {
	due := func(ref schema.DiskRef) time.Time {
		if v.ix.observed.Running[CopyRef{ref, v.image.ID}] {
			return time.Time{}
		}
		return v.longFailure(ref).RetryAt
	}
	return due(a).Compare(due(b))
}

// isFailing says that work on the copy has failed for so long, by the fault of the
// disk or of its node's way to the source, that the task moves on.
func (v imagePlanner) isFailing(ref schema.DiskRef) bool { return v.longFailure(ref).Attempts > 0 }

// longFailure returns the failure for which a disk is troubled, if it is.
func (v imagePlanner) longFailure(ref schema.DiskRef) Failure {
	if v.ix.copyAt(CopyRef{ref, v.image.ID}).State == disk.Ready {
		return Failure{} // whatever it was, it is over
	}
	if v.image.Source.Upload != nil && len(v.ready) == 0 {
		return Failure{} // what was sent to a disk nobody else can go on with
	}
	long := func(t Failure) bool {
		return t.Attempts > 0 && v.ix.observed.Now.Sub(t.Since) >= v.ix.desired.Config.Settings.RecoveryWaitInterval
	}
	if t := v.ix.observed.Failures[CopyRef{ref, v.image.ID}]; t.Disk && long(t) {
		return t
	}
	if len(v.ready) > 0 {
		return Failure{} // nobody goes to the source any more
	}
	var worst Failure
	for name := range v.ix.desired.Config.Nodes[ref.Node].Disks {
		t := v.ix.observed.Failures[CopyRef{schema.DiskRef{Node: ref.Node, Disk: name}, v.image.ID}]
		if t.Link && t.Op.IsFirstCopy() && long(t) && t.RetryAt.After(worst.RetryAt) {
			worst = t
		}
	}
	return worst
}

func (d Desired) Disk(ref schema.DiskRef) (schema.Disk, bool) {
	declared, ok := d.Config.Nodes[ref.Node].Disks[ref.Disk]
	return declared, ok
}

func (d Desired) evicting(ref schema.DiskRef) bool {
	node := d.Config.Nodes[ref.Node]
	return node.EvictionRequested || node.Disks[ref.Disk].EvictionRequested
}

// Rejection is why a disk gets no new copy.
type Rejection struct {
	Reason string
	// Intended says that it was asked for, so that nothing is wrong.
	Intended bool
	// later: once there is a first copy, the disk takes one of it.
	Temporary bool
}

// isFault reports whether something is wrong with the disk.
func (r Rejection) isFault() bool { return !r.Intended && !r.Temporary }

// rejects says why a disk gets no new copy, so that the next in rank acts for it.
// A ready copy that it has counts all the same, and a file that only has to be
// verified takes no space.
func (v imagePlanner) rejects(ref schema.DiskRef) Rejection {
	key := CopyRef{ref, v.image.ID}
	seen, known := v.ix.observed.Disks[ref]
	c := seen.Copies[v.image.ID]
	node, declared := v.ix.desired.Config.Nodes[ref.Node], v.ix.desired.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case v.ix.desired.evicting(ref):
		return Rejection{Reason: "its eviction is requested", Intended: true}
	case !v.ix.desired.Owns(ref) && !v.ix.isCurrent(ref):
		return v.rejectsUnreachable(ref, c)
	case !known:
		return Rejection{Reason: "not looked at"}
	case seen.Problem != "":
		return Rejection{Reason: seen.Problem}
	case c.State == disk.Ready, c.State == disk.Unknown:
		return Rejection{}
	case !node.AllowScheduling:
		return Rejection{Reason: "scheduling on the node is disabled", Intended: true}
	case !declared.AllowScheduling:
		return Rejection{Reason: "scheduling on the disk is disabled", Intended: true}
	case c.State == disk.Failed && c.UsedBy != "" && !v.repairable(key):
		return Rejection{Reason: "the copy there failed and is in use"}
	case v.ix.observed.Running[key]:
		return Rejection{}
	case c.Rejects != "" && !(c.RejectsForNow && len(v.ready) > 0): // it has not heard of the first copy yet
		return Rejection{Reason: c.Rejects, Temporary: c.RejectsForNow}
	case !v.ix.desired.Owns(ref):
		return Rejection{}
	}
	if why := v.cannotPrepare(); why != "" {
		return Rejection{Reason: why, Temporary: true}
	}
	return v.rejectsForSpace(ref, RemainingBytes(c, v.requiredBytes()))
}

// rejectsUnreachable says it of a disk whose node is silent: for a while, a reboot for one,
// it keeps its place.
func (v imagePlanner) rejectsUnreachable(ref schema.DiskRef, c Copy) Rejection {
	peer, asked := v.ix.observed.Peers[ref.Node]
	_, known := v.ix.observed.Disks[ref]
	node, declared := v.ix.desired.Config.Nodes[ref.Node], v.ix.desired.Config.Nodes[ref.Node].Disks[ref.Disk]
	switch {
	case ref.Node == v.ix.desired.Node && len(v.ix.observed.Peers) > 0:
		return Rejection{Reason: "this process does not look after it"} // and no other one is asked
	case !known && v.ix.sameConfig(ref.Node):
		return Rejection{Reason: fmt.Sprintf("node %s does not tell of it", ref.Node)}
	case asked && !peer.Responds() && peer.UnreachableFor >= v.ix.desired.Config.Settings.RecoveryWaitInterval:
		return Rejection{Reason: fmt.Sprintf("node %s does not answer: %s", ref.Node, peer.Problem)}
	case !known: // it may have a copy
		return Rejection{}
	case c.State != disk.Ready && c.State != disk.Unknown && !(node.AllowScheduling && declared.AllowScheduling):
		return Rejection{Reason: "scheduling there is disabled", Intended: true}
	}
	return Rejection{}
}

func (v imagePlanner) rejectsForSpace(ref schema.DiskRef, need int64) Rejection {
	declared, _ := v.ix.desired.Disk(ref)
	free := v.ix.observed.Disks[ref].Space.Free
	t := v.ix.observed.Failures[CopyRef{ref, v.image.ID}]
	smaller := t.Op == Upload || t.Op.IsFirstCopy() && len(v.ready) > 0 // the next file, or the data alone
	if !smaller {
		need = max(need, t.NeedsSpace)
	}
	need = max(need, 1)
	if need <= free-declared.StorageReserved {
		return Rejection{}
	}
	why := fmt.Sprintf("%s: %s are free and %s reserved", noSpace, FormatBytes(free), FormatBytes(declared.StorageReserved))
	if need > 1 {
		why += ", " + FormatBytes(need) + " are needed"
	}
	return Rejection{Reason: why}
}

const noSpace = "not enough space"

// Rejections says which declared images the disks of this node take no copy of although
// they could have one by the configuration, and why, in words that stay the same as
// long as the reason does.
func (d Desired) Rejections(o Observed) map[CopyRef]Rejection {
	return d.NewIndex(o).rejections(maps.Values(d.Config.Images))
}

func (s *index) rejections(images iter.Seq[schema.Image]) map[CopyRef]Rejection {
	out := map[CopyRef]Rejection{}
	for image := range images {
		v := s.findReady(image)
		for _, ref := range s.ownDisks {
			if !v.isEligible(ref) {
				continue
			}
			if s.desired.Allowed == schema.ObserveOnly {
				out[CopyRef{ref, image.ID}] = Rejection{Reason: "its manager does nothing but look"}
				continue
			}
			if r := v.rejects(ref); r.Reason != "" && !r.Intended {
				r.Reason = stableReason(r.Reason)
				out[CopyRef{ref, image.ID}] = r
			}
		}
	}
	return out
}

func stableReason(why string) string {
	if strings.HasPrefix(why, noSpace) {
		return noSpace
	}
	return why
}

// Placement is where one image should have copies, and where it has ready ones.
type Placement struct {
	Targets []schema.DiskRef // the desired disks, best first
	Missing int              // desired copies that no disk can take
	Ready   []CopyRef        // ready copies of the declared generation, those on ranked disks first
	// PassedOver says why disks get no copy. It is nil when as many copies as desired are
	// ready. It has all other disks when copies are missing, and otherwise those that
	// would come before a target.
	PassedOver map[schema.DiskRef]string
}

// Desired returns how many copies the image should have.
func (p Placement) Desired() int { return len(p.Targets) + max(0, p.Missing) }

// Placements returns the placement of each declared image. It costs as much as planning.
func (d Desired) Placements(o Observed) map[disk.ID]Placement {
	s := d.NewIndex(o)
	all := make(map[disk.ID]Placement, len(d.Config.Images))
	for _, image := range d.Config.Images {
		v := s.NewImagePlanner(image)
		p := Placement{Targets: v.Placement.Targets, Missing: v.Placement.missing, Ready: v.ready}
		if len(p.Ready) < p.Desired() || p.Desired() == 0 {
			p.PassedOver = v.passedOverReasons()
		}
		all[image.ID] = p
	}
	return all
}

func (v imagePlanner) passedOverReasons() map[schema.DiskRef]string {
	if v.Placement.missing > 0 || len(v.Placement.Targets) == 0 {
		return v.passedOver()
	}
	out := make(map[schema.DiskRef]string, len(v.Placement.Rejected))
	for ref, r := range v.Placement.Rejected {
		out[ref] = r.Reason
	}
	return out
}

// passedOver says of every declared disk that is not wanted for an image why it is
// not: what is missing there, or that others come first.
func (v imagePlanner) passedOver() map[schema.DiskRef]string {
	out := map[schema.DiskRef]string{}
	for name, node := range v.ix.desired.Config.Nodes {
		for diskName, d := range node.Disks {
			ref := schema.DiskRef{Node: name, Disk: diskName}
			switch r, refused := v.Placement.Rejected[ref]; {
			case v.isTarget(ref):
			case refused:
				out[ref] = r.Reason
			case node.EvictionRequested || d.EvictionRequested:
				out[ref] = "its eviction is requested"
			case !hasAll(node.Tags, v.image.NodeSelector):
				out[ref] = "node tag " + missingTag(node.Tags, v.image.NodeSelector) + " missing"
			case !hasAll(d.Tags, v.image.DiskSelector):
				out[ref] = "disk tag " + missingTag(d.Tags, v.image.DiskSelector) + " missing"
			default:
				out[ref] = "other disks come first"
			}
		}
	}
	return out
}

func missingTag(tags, selectors []string) string {
	for _, s := range selectors {
		if !hasAll(tags, []string{s}) {
			return s
		}
	}
	return ""
}
