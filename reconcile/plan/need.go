package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// needDelay is the age that the metadata of a replica must have before a copy is begun for it: replicas
// appear and vanish while Longhorn creates and rebuilds them. A copy that exists is kept without a delay.
const needDelay = 2 * time.Second

// needReason returns why a copy is created on the disk of the need.
func needReason(n model.Need) model.Reason {
	return because(CodeNeed, "needed by %s on this disk", n.By)
}

// isNew reports whether a need is too new to begin a copy for it, and until when. A time in the future says nothing
// about the age.
func isNew(n model.Need, now time.Time) (until time.Time, isNew bool) {
	until = n.Since.Add(needDelay)
	return until, !n.Since.IsZero() && !n.Since.After(now) && until.After(now)
}

// observedNeed returns the need of replicas for the image on a usable disk that has no file of the image.
func (s *imageState) observedNeed(ref ident.DiskRef) (d model.Need, needed bool) {
	seen := s.ix.Observed.Disks[ref]
	d, needed = seen.Needs[s.image.ID]
	state := seen.Copies[s.image.ID].State
	return d, needed && seen.Problem == "" && (state == "" || state == model.Pending)
}

// needOn returns the need of replicas on a disk, if the image follows replicas (G2).
func (s *imageState) needOn(ref ident.DiskRef) (d model.Need, needed bool) {
	if !s.image.FollowReplicas {
		return model.Need{}, false
	}
	return s.observedNeed(ref)
}

// addNeededDisks adds the disks of this node on which replicas need the image, and which are no targets
// yet. If the first copy has not started, and a disk of this node would create it, a disk with a need
// creates it instead.
func (pl *placement) addNeededDisks(s *imageState) {
	others := pl.targets // the targets without need
	var able []ident.DiskRef
	for _, ref := range s.ix.ownDisks {
		if _, needed := s.needOn(ref); !needed {
			continue
		}
		if !pl.isTarget(ref) {
			r := rejectsNeeded(s, ref)
			if reason := cannotPrepare(s); r.IsZero() && len(others) == 0 && !reason.IsZero() {
				r = Rejection{reason, Temporary}
			}
			if !r.IsZero() {
				pl.reject(ref, r)
				continue
			}
			pl.targets = append(slices.Clip(pl.targets), ref)
			pl.needed = append(pl.needed, ref)
		}
		able = append(able, ref)
	}
	switch {
	case len(s.ready) > 0 || len(able) == 0 || !cannotPrepare(s).IsZero():
	case len(others) == 0:
		pl.first(firstOfNeeded(s, able))
	case s.ix.Desired.Owns(others[0]) && s.image.Source.Upload == nil && stageOf(s, s.on(others[0])) == notStarted:
		for _, ref := range able {
			need, _ := s.needOn(ref)
			if _, isNew := isNew(need, s.ix.Observed.Now); !isNew && !isFailing(s, ref) {
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

// firstOfNeeded returns the disk that creates the first copy if the image has no other target. It is a
// disk of this node with a need, or a disk of another node that publishes a need, so that the upstream is
// read once (F1). A compromised node can publish a need that it does not have. If the image has a declared
// checksum, this node waits for that disk no longer than for a ranked disk (isOverdue).
func firstOfNeeded(s *imageState, own []ident.DiskRef) ident.DiskRef {
	first := slices.MinFunc(own, ident.DiskRef.Compare)
	for ref := range s.ix.Observed.Disks {
		_, needed := s.needOn(ref)
		_, declared := s.ix.Desired.Disk(ref)
		able := needed && declared && !s.ix.Desired.Owns(ref) && s.ix.sameConfig(ref.Node) && s.ix.published(s.on(ref)).IsZero()
		if able && ident.DiskRef.Compare(ref, first) < 0 && !isOverdue(s, ref) && !isFailing(s, ref) {
			first = ref
		}
	}
	return first
}

// rejectsNeeded returns why a disk of this node takes no copy although replicas need it there. Selectors,
// allowScheduling and evictionRequested are no reasons, because the volume can start on no other disk.
func rejectsNeeded(s *imageState, ref ident.DiskRef) Rejection {
	seen := s.ix.Observed.Disks[ref]
	switch {
	case seen.ReadOnly:
		return Rejection{Reason: model.Reason{Code: CodeDiskReadOnly, Text: model.ReadOnlyText}}
	case s.ix.Observed.Running[s.on(ref)]: // the job reserved its space
		return Rejection{}
	}
	return rejectsForSpace(s, ref, s.requiredSpace(seen.Copies[s.image.ID]))
}

// reasonWithNeed returns why a target with a need gets a copy.
func (t targetPlanner) reasonWithNeed() model.Reason {
	reason := needReason(t.need)
	if t.reason.Code == CodeResume {
		reason = reason.With(reason.Code, "; %s", t.reason.Text)
	}
	declared, _ := t.ix.Desired.Disk(t.copy.Disk)
	if !hasAll(t.ix.Desired.Config.Nodes[t.copy.Disk.Node].Tags, t.state.image.NodeSelector) || !hasAll(declared.Tags, t.state.image.DiskSelector) {
		reason = reason.With(reason.Code, "; warning: the disk does not match the selectors")
	}
	return reason
}

// waitForReplica returns why a copy for replicas does not begin yet: the replica is too new, or Longhorn's manager may be
// creating the file.
func (t targetPlanner) waitForReplica() (reason model.Reason, until time.Time) {
	now := t.ix.Observed.Now
	if end, isNew := isNew(t.need, now); isNew && t.needOnly {
		return model.Reason{Code: CodeNeed, Text: "a copy is created if the replica stays"}, end
	}
	end := t.need.OtherWriter.Add(t.ix.recoveryInterval())
	if written := t.need.OtherWriter; !written.IsZero() && end.After(now) && written.Sub(now) < t.ix.recoveryInterval() {
		return model.Reason{Code: CodeOtherWriter, Text: "Longhorn's manager has written a temporary file of it; a copy is created if that file does not change for the recovery interval"}, end
	}
	return model.Reason{}, time.Time{}
}

// unmetNeeds returns an action for each disk of this node on which replicas need the image, and which is no
// target.
func (p imagePlanner) unmetNeeds() []Action {
	var actions []Action
	for _, ref := range p.ix.ownDisks {
		need, needed := p.state.observedNeed(ref)
		if !needed || p.placement.isTarget(ref) {
			continue
		}
		if !p.state.image.FollowReplicas {
			actions = append(actions, wait(p.state.on(ref), needReason(need).With(CodeNeedIgnored, ", and followReplicas is false")))
			continue
		}
		r := p.placement.rejected[ref]
		a := blocked(p.state.on(ref), needReason(need).With(CodeNeedRejected, ", but %s", r.Text))
		actions = append(actions, a.asWaitFor(model.Sync, true))
	}
	return actions
}

// undeclaredNeeds returns a wait for each generation that replicas on disks of this node need, but that is not declared. Nothing is
// fetched for it.
func undeclaredNeeds(ix *Round) []Action {
	var actions []Action
	for _, ref := range ix.ownDisks {
		needs := ix.Observed.Disks[ref].Needs
		for _, id := range slices.SortedFunc(maps.Keys(needs), ident.ID.Compare) {
			image, declared := ix.Desired.Config.Images[id.Name]
			if state := ix.copyAt(ident.CopyRef{Disk: ref, ID: id}).State; state != "" && state != model.Pending {
				continue // a file exists: other actions concern it
			}
			if declared && image.ID == id || !ix.Desired.invalidReason(id.Name).IsZero() {
				continue
			}
			reason := needReason(needs[id])
			if declared {
				reason = reason.With(CodeNeedUndeclared, ", but the declared uuid of %s is %s, and the replica needs %s: nothing is fetched", id.Name, image.ID.UUID, id.UUID)
			} else {
				reason = reason.With(CodeNeedUndeclared, ", but no image %s with uuid: %q is declared: nothing is fetched", id.Name, id.UUID)
			}
			actions = append(actions, wait(ident.CopyRef{Disk: ref, ID: id}, reason))
		}
	}
	return actions
}
