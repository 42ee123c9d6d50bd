package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Demand is the need of replicas on a disk for an image that has no verified copy there. Their volumes cannot
// start without it. So while one of the replicas exists, a disk without a file of the declared generation is a desired
// disk (G2), and every copy of another generation is in use on every node (U4, see neededBy).
//
// G2 decides about the disks of the node that observes the demand. The copy that is
// created for it is in use: S1 keeps it, and S4 counts it only if its disk is ranked or named. For G2, a demand that
// another node publishes is a claim, which changes no plan, with one exception: see firstOfDemanded.
type Demand struct {
	By string // the replicas, for people
	// Since is when the metadata of one of the replicas last changed, by the wall clock of this node. Zero:
	// not known, as for a disk of another node.
	Since time.Time
	// OtherWriter is when Longhorn's manager last wrote to a temporary file of the image on the disk; zero:
	// there is none.
	OtherWriter time.Time
}

// demandDelay is the age that the metadata of a replica must have before a copy is begun for it: replicas
// appear and vanish while Longhorn creates and rebuilds them. A copy that exists is kept without a delay.
const demandDelay = 2 * time.Second

// NewDemand returns the demand of these replicas.
func NewDemand(d disk.Demand) Demand {
	text := "replica "
	if len(d.Replicas) > 1 {
		text = "replicas "
	}
	return Demand{By: text + JoinMax(d.Replicas, ", ", 3), Since: d.Since, OtherWriter: d.OtherWriter}
}

// reason returns why a copy is created on the disk of the demand.
func (d Demand) reason() Reason {
	return because(CodeDemand, "needed by %s on this disk", d.By)
}

// isNew reports whether no copy must be begun yet, and until when. A time in the future says nothing about
// the age.
func (d Demand) isNew(now time.Time) (until time.Time, isNew bool) {
	until = d.Since.Add(demandDelay)
	return until, !d.Since.IsZero() && !d.Since.After(now) && until.After(now)
}

// observedDemand returns the demand of replicas on a disk for the image.
func (s *imageState) observedDemand(ref ident.DiskRef) (d Demand, demanded bool) {
	seen := s.ix.observed.Disks[ref]
	d, demanded = seen.Demands[s.image.ID]
	state := seen.Copies[s.image.ID].State
	return d, demanded && seen.Problem == "" && (state == "" || state == disk.Pending)
}

// demandOn returns the demand of replicas on a disk that the image follows.
func (s *imageState) demandOn(ref ident.DiskRef) (d Demand, demanded bool) {
	if !s.image.FollowReplicas {
		return Demand{}, false
	}
	return s.observedDemand(ref)
}

// addDemandedDisks adds the disks of this node on which replicas need the image, and which are no targets
// yet. If the first copy has not started, and a disk of this node would create it, such a disk creates it
// instead.
func (pl *placement) addDemandedDisks(s *imageState) {
	others := pl.targets // the targets without demand
	var able []ident.DiskRef
	for _, ref := range s.ix.ownDisks {
		if _, demanded := s.demandOn(ref); !demanded {
			continue
		}
		if !pl.isTarget(ref) {
			r := rejectsDemanded(s, ref)
			if reason := cannotPrepare(s); r.IsZero() && len(others) == 0 && !reason.IsZero() {
				r = Rejection{reason, Temporary}
			}
			if !r.IsZero() {
				pl.reject(ref, r)
				continue
			}
			pl.targets = append(slices.Clip(pl.targets), ref)
			pl.demanded = append(pl.demanded, ref)
		}
		able = append(able, ref)
	}
	switch {
	case len(s.ready) > 0 || len(able) == 0 || !cannotPrepare(s).IsZero():
	case len(others) == 0:
		pl.first(firstOfDemanded(s, able))
	case s.ix.desired.Owns(others[0]) && s.image.Source.Upload == nil && stageOf(s, s.on(others[0])) == notStarted:
		for _, ref := range able {
			demand, _ := s.demandOn(ref)
			if _, isNew := demand.isNew(s.ix.observed.Now); !isNew && !isFailing(s, ref) {
				pl.first(ref)
				return
			}
		}
	}
}

// first makes a disk the first target.
func (pl *placement) first(ref ident.DiskRef) {
	rest := slices.DeleteFunc(slices.Clone(pl.targets), func(other ident.DiskRef) bool { return other == ref })
	pl.targets = append([]ident.DiskRef{ref}, rest...)
}

// firstOfDemanded returns the disk that creates the first copy if the image has no other target: one of the
// disks of this node with a demand, or one of another node that publishes a demand, so that the upstream is
// read once (F1). A compromised node can publish a demand that it does not have. If the image has a declared
// checksum, this node waits for it no longer than for a ranked disk (isOverdue).
func firstOfDemanded(s *imageState, own []ident.DiskRef) ident.DiskRef {
	first := slices.MinFunc(own, ident.DiskRef.Compare)
	for ref := range s.ix.observed.Disks {
		_, demanded := s.demandOn(ref)
		_, declared := s.ix.desired.Disk(ref)
		able := demanded && declared && !s.ix.desired.Owns(ref) && s.ix.sameConfig(ref.Node) && s.ix.copyAt(s.on(ref)).Rejects == ""
		if able && ident.DiskRef.Compare(ref, first) < 0 && !isOverdue(s, ref) && !isFailing(s, ref) {
			first = ref
		}
	}
	return first
}

// rejectsDemanded returns why a disk of this node takes no copy although replicas need it there. Selectors,
// allowScheduling and evictionRequested are no reasons, because the volume can start on no other disk.
func rejectsDemanded(s *imageState, ref ident.DiskRef) Rejection {
	seen := s.ix.observed.Disks[ref]
	switch {
	case seen.ReadOnly:
		return Rejection{Reason: Reason{CodeDiskReadOnly, readOnlyText}}
	case s.ix.observed.Running[s.on(ref)]: // the job reserved its space
		return Rejection{}
	}
	return rejectsForSpace(s, ref, s.requiredSpace(seen.Copies[s.image.ID]))
}

// demandReason returns why a target with a demand gets a copy.
func (t targetPlanner) demandReason() Reason {
	reason := t.demand.reason()
	if t.reason.Code == CodeResume {
		reason = reason.with(reason.Code, "; %s", t.reason.Text)
	}
	declared, _ := t.ix.desired.Disk(t.copy.Disk)
	if !hasAll(t.ix.desired.Config.Nodes[t.copy.Disk.Node].Tags, t.state.image.NodeSelector) || !hasAll(declared.Tags, t.state.image.DiskSelector) {
		reason = reason.with(reason.Code, "; warning: the disk does not match the selectors")
	}
	return reason
}

// waitForReplica returns what a copy that replicas need waits for before it is begun: whether they stay, and
// whether Longhorn's manager creates the file.
func (t targetPlanner) waitForReplica() (reason Reason, until time.Time) {
	now := t.ix.observed.Now
	if end, isNew := t.demand.isNew(now); isNew && t.demandOnly {
		return Reason{CodeDemand, "a copy is created if the replica stays"}, end
	}
	end := t.demand.OtherWriter.Add(t.ix.recoveryInterval())
	if written := t.demand.OtherWriter; !written.IsZero() && end.After(now) && written.Sub(now) < t.ix.recoveryInterval() {
		return Reason{CodeOtherWriter, "Longhorn's manager has written a temporary file of it; a copy is created if that file does not change for the recovery interval"}, end
	}
	return Reason{}, time.Time{}
}

// unmetDemands returns an action for each disk of this node on which replicas need the image, and which is no
// target.
func (p imagePlanner) unmetDemands() []Action {
	var actions []Action
	for _, ref := range p.ix.ownDisks {
		demand, demanded := p.state.observedDemand(ref)
		if !demanded || p.placement.isTarget(ref) {
			continue
		}
		if !p.state.image.FollowReplicas {
			actions = append(actions, wait(p.state.on(ref), demand.reason().with(CodeDemandIgnored, ", and followReplicas is false")))
			continue
		}
		r := p.placement.rejected[ref]
		a := blocked(p.state.on(ref), demand.reason().with(CodeDemandRejected, ", but %s", r.Text))
		actions = append(actions, a.asWaitFor(Sync, true))
	}
	return actions
}

// undeclaredDemands returns a wait for each image that replicas on disks of this node need, and that is not
// declared, or not with this uuid. Nothing is fetched for it.
func undeclaredDemands(ix *index) []Action {
	var actions []Action
	for _, ref := range ix.ownDisks {
		demands := ix.observed.Disks[ref].Demands
		for _, id := range slices.SortedFunc(maps.Keys(demands), ident.ID.Compare) {
			image, declared := ix.desired.Config.Images[id.Name]
			if state := ix.copyAt(ident.CopyRef{Disk: ref, ID: id}).State; state != "" && state != disk.Pending {
				continue // its file is not verified, and planned for
			}
			if declared && image.ID == id || !ix.desired.invalidReason(id.Name).IsZero() {
				continue
			}
			reason := demands[id].reason()
			if declared {
				reason = reason.with(CodeDemandUndeclared, ", but the declared uuid of %s is %s, and the replica needs %s: nothing is fetched", id.Name, image.ID.UUID, id.UUID)
			} else {
				reason = reason.with(CodeDemandUndeclared, ", but no image %s with uuid: %q is declared: nothing is fetched", id.Name, id.UUID)
			}
			actions = append(actions, wait(ident.CopyRef{Disk: ref, ID: id}, reason))
		}
	}
	return actions
}
