package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Placement is the result of placing one image: the disks that should have a copy, and the
// ready copies.
type Placement struct {
	Targets []ident.DiskRef // the desired disks, best first
	Missing int             // desired copies for which there is no disk
	// NamedWithout are the disks that the image names and that have no ready copy, sorted, whether they are
	// targets or not. A disk with a requested eviction is not one of them.
	NamedWithout []ident.DiskRef
	Ready        []ident.CopyRef // ready copies of the declared generation, on ranked disks first
	// Delayed has the targets without a ready copy whose nodes possibly create none, with the
	// reason, and when the next ranked disk gets the copy. It is nil if there are no such targets.
	Delayed map[ident.DiskRef]Delay
	// PassedOver has, by disk, the reason why it is no target. It is nil if as many copies are
	// ready as are desired. If every desired copy has a disk, it has only the rejected disks.
	PassedOver map[ident.DiskRef]model.Reason
}

// namedWithout returns Placement.NamedWithout.
func namedWithout(s *imageState) (refs []ident.DiskRef) {
	for _, ref := range s.image.Disks {
		if _, declared := s.ix.Desired.Disk(ref); declared && !s.ix.Desired.evicting(ref) && !slices.Contains(s.ready, s.on(ref)) {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, ident.DiskRef.Compare)
	return slices.Compact(refs)
}

// missingNamed counts the named disks that can take no copy and that are not among the missing ranked disks.
func missingNamed(p imagePlanner) int {
	ranked, others := 0, 0
	for _, ref := range namedWithout(p.state) {
		switch {
		case p.placement.isTarget(ref):
		case p.state.matches(ref):
			ranked++
		default:
			others++
		}
	}
	return others + max(0, ranked-p.placement.missing)
}

// Delay is why a target has no copy yet, and until when the other nodes wait for it.
type Delay struct {
	model.Reason
	Until time.Time
}

// delayed returns the delays of the targets.
func delayed(s *imageState, pl placement) (all map[ident.DiskRef]Delay) {
	for _, ref := range pl.targets {
		if reason, end := delay(s, ref); !reason.IsZero() {
			if all == nil {
				all = map[ident.DiskRef]Delay{}
			}
			all[ref] = Delay{reason.With(reason.Code, "; if this lasts for the recovery interval, the next ranked disk gets the copy"), end}
		}
	}
	return all
}

// Desired returns how many copies the image should have.
func (p Placement) Desired() int { return len(p.Targets) + max(0, p.Missing) }

// Placements returns the placement of each declared image. It costs as much as planning.
func (r *Round) Placements() map[ident.ID]Placement {
	d := r.Desired
	all := make(map[ident.ID]Placement, len(d.Config.Images))
	for _, image := range d.Config.Images {
		p := newImagePlanner(r, image)
		one := Placement{Targets: p.placement.targets, Missing: p.placement.missing + missingNamed(p), NamedWithout: namedWithout(p.state), Ready: p.state.ready, Delayed: delayed(p.state, p.placement)}
		if len(one.Ready) < one.Desired() || one.Desired() == 0 {
			one.PassedOver = rejectionReasons(p.placement)
			if p.placement.missing > 0 || len(p.placement.targets) == 0 {
				one.PassedOver = passedOver(d.Config.Nodes, image, p.placement)
			}
		}
		all[image.ID] = one
	}
	return all
}

func rejectionReasons(pl placement) map[ident.DiskRef]model.Reason {
	out := make(map[ident.DiskRef]model.Reason, len(pl.rejected))
	for ref, r := range pl.rejected {
		out[ref] = r.Reason
	}
	return out
}

// passedOver returns, by disk, why a declared disk is no target.
func passedOver(nodes map[string]schema.Node, image schema.Image, pl placement) map[ident.DiskRef]model.Reason {
	out := map[ident.DiskRef]model.Reason{}
	for name, node := range nodes {
		for diskName, d := range node.Disks {
			ref := ident.DiskRef{Node: name, Disk: diskName}
			if pl.isTarget(ref) {
				continue
			}
			nodeTag, nodeMatches := missingTag(node.Tags, image.NodeSelector)
			diskTag, diskMatches := missingTag(d.Tags, image.DiskSelector)
			switch r, rejected := pl.rejected[ref]; {
			case rejected:
				out[ref] = r.Reason
			case node.EvictionRequested || d.EvictionRequested:
				out[ref] = model.Reason{Code: CodeEviction, Text: "its eviction is requested"}
			case !nodeMatches:
				out[ref] = because(CodeTagMissing, "node tag %s missing", nodeTag)
			case !diskMatches:
				out[ref] = because(CodeTagMissing, "disk tag %s missing", diskTag)
			default:
				out[ref] = model.Reason{Code: CodeRankedLower, Text: "other disks come first"}
			}
		}
	}
	return out
}

// missingTag returns the first selector that is not among the tags. matches is true if there is no
// such selector.
func missingTag(tags, selectors []string) (tag string, matches bool) {
	for _, s := range selectors {
		if !slices.Contains(tags, s) {
			return s, false
		}
	}
	return "", true
}

// DiskRank is the rank of one declared disk for an image.
type DiskRank struct {
	Disk ident.DiskRef
	Rank int // 1 is the best; 0: the disk is not ranked
	// Reason is why the disk is no desired disk. It is zero for a desired disk.
	Reason model.Reason
}

// RankDisks returns the ranks of all declared disks for a declared image. Ranked disks are
// first.
func (r *Round) RankDisks(image string) []DiskRank {
	d := r.Desired
	p := newImagePlanner(r, d.Config.Images[image])
	passed, ranked := passedOver(d.Config.Nodes, p.state.image, p.placement), p.placement.ranked
	ranks := make([]DiskRank, 0, ranked.len())
	for i := range ranked.len() {
		ref := ranked.at(i)
		ranks = append(ranks, DiskRank{ref, i + 1, passed[ref]})
	}
	var others []DiskRank
	for node, declared := range d.Config.Nodes {
		for name := range declared.Disks {
			if ref := (ident.DiskRef{Node: node, Disk: name}); !p.state.matches(ref) {
				others = append(others, DiskRank{ref, 0, passed[ref]})
			}
		}
	}
	slices.SortFunc(others, func(a, b DiskRank) int { return ident.DiskRef.Compare(a.Disk, b.Disk) })
	return append(ranks, others...)
}

// shortage returns an action that reports a lack of disks: fewer can take a copy than are desired.
// It is blocked if something is wrong with a disk, or if no disk is ranked or can take a copy. If nobody has to act, it is
// a wait, which keeps the plan empty.
func (p imagePlanner) shortage() Action {
	none := p.placement.ranked.len() == 0
	reason := because(CodeTooFewDisks, "%d of %d copies have no disk that can take them", p.placement.missing, p.placement.copies)
	if none {
		reason = noRankedDisk(p.ix.Desired.Config.Nodes, p.state.image)
	}
	disksByReason, defective := map[string][]string{}, len(p.placement.targets) == 0 || none
	for ref, r := range p.placement.rejected {
		if p.state.matches(ref) {
			disksByReason[r.Text] = append(disksByReason[r.Text], ref.String())
			defective = defective || r.Severity == Defective
		}
	}
	var details []string
	for text, disks := range disksByReason {
		slices.Sort(disks)
		details = append(details, fmt.Sprintf("%s: %s", JoinMax(disks, ", ", 5), text))
	}
	if len(details) > 0 {
		slices.Sort(details)
		reason = reason.With(reason.Code, " (%s)", strings.Join(details, "; "))
	}
	a := blocked(p.onNoDisk(), reason)
	if !defective {
		a.Op = model.Wait
	}
	return a
}

// noRankedDisk returns why no disk is ranked.
func noRankedDisk(nodes map[string]schema.Node, image schema.Image) model.Reason {
	var evicted []string
	for name, node := range nodes {
		for d, declared := range node.Disks { // a matching disk without a rank is evicted
			if hasAll(node.Tags, image.NodeSelector) && hasAll(declared.Tags, image.DiskSelector) {
				evicted = append(evicted, ident.DiskRef{Node: name, Disk: d}.String())
			}
		}
	}
	if len(evicted) == 0 {
		return model.Reason{Code: CodeNoMatchingDisk, Text: "no disk matches the selectors"}
	}
	slices.Sort(evicted)
	return because(CodeAllEvicted, "eviction is requested for every disk that matches (%s)", JoinMax(evicted, ", ", 5))
}

// rejectedNamedDisk returns an action that reports a named disk of this node which takes no copy.
// rejected is false if the disk takes a copy, or if shortage or an eviction reports the disk
// already.
func (p imagePlanner) rejectedNamedDisk(ref ident.DiskRef) (a Action, rejected bool) {
	r, rejected := p.placement.rejected[ref]
	reported := p.placement.missing > 0 && p.state.matches(ref) || p.ix.copyAt(p.state.on(ref)).Owned && r.Severity == Intended
	if !rejected || reported || !p.ix.Desired.Owns(ref) {
		return Action{}, false
	}
	a = blocked(p.state.on(ref), because(CodeNamedDisk, "the image names this disk, but %s", r.Text))
	if r.Severity == Intended {
		a.Op = model.Wait
	}
	return a, true
}
