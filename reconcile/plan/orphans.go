package plan

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// planOrphans returns what happens to the owned copies on this node of images that are not
// declared any more (S6).
func (ix *index) planOrphans() []Action {
	unknown := ix.unknownUsage()
	limit := ix.pruneBlocked()
	var actions []Action
	for name, refs := range ix.ownByName {
		if !ix.isOrphan(name) {
			continue
		}
		use := ix.orphanInUse(name)
		for _, ref := range refs {
			if ix.copyAt(ref).Owned {
				actions = append(actions, ix.planOrphanCopy(ref, use, limit, unknown))
			}
		}
	}
	// The suspension of an image ended with its declaration. That of the settings remains.
	return ix.applySuspension(ix.desired.SuspensionOf(schema.Image{}, ix.observed.Now), actions)
}

func (ix *index) isOrphan(name string) bool {
	_, declared := ix.desired.Config.Images[name]
	return !declared && ix.desired.invalidReason(name).IsZero()
}

// pruneBlocked returns a reason when more images were removed at once than pruneLimit allows.
// All nodes count the same orphans: those of which any node has an owned copy.
func (ix *index) pruneBlocked() Reason {
	orphans := map[string][]CopyRef{}
	for _, byName := range []map[string][]CopyRef{ix.ownByName, ix.peerByName} {
		for name, refs := range byName {
			if !ix.isOrphan(name) {
				continue
			}
			for _, ref := range refs {
				if ix.copyAt(ref).Owned {
					orphans[name] = append(orphans[name], ref)
				}
			}
		}
	}
	limit := ix.desired.Config.Settings.PruneLimit
	if !limit.Exceeded(len(ix.desired.Config.Images), len(orphans)) || ix.pruneConfirmed(orphans) {
		return Reason{}
	}
	return because(CodePruneLimit, "%d images were removed from the configuration, more at once than pruneLimit %s allows", len(orphans), limit)
}

// pruneConfirmed reports whether pruneConfirmed names all orphans. Confirming a part is not
// enough: when that part is deleted, the rest would be below the limit.
func (ix *index) pruneConfirmed(orphans map[string][]CopyRef) bool {
	confirmed := map[disk.ID]bool{}
	for _, id := range ix.desired.Config.Settings.PruneConfirmed {
		confirmed[id] = true
	}
	for _, refs := range orphans {
		if slices.ContainsFunc(refs, func(ref CopyRef) bool { return !confirmed[ref.ID] }) {
			return false
		}
	}
	return true
}

// orphanInUse returns which copy of an image is in use, on any node.
func (ix *index) orphanInUse(name string) Reason {
	for _, ref := range ix.copiesNamed(name) {
		if c := ix.copyAt(ref); c.UsedBy != "" {
			return because(CodeInUse, "on %s %s", ref.Disk, c.UsedBy)
		}
	}
	return Reason{}
}

// unknownUsage returns a reason when the use of an image on some declared disk is not known, or
// when a node may not know that the image was removed.
func (ix *index) unknownUsage() Reason {
	nodes := ix.desired.Config.Nodes
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		if node != ix.desired.Node {
			if reason := ix.whyIgnored(node); !reason.IsZero() {
				return reason
			}
		}
		for _, name := range slices.Sorted(maps.Keys(nodes[node].Disks)) {
			ref := schema.DiskRef{Node: node, Disk: name}
			seen, known := ix.observed.Disks[ref]
			switch {
			case !known:
				return because(CodeUsageUnknown, "%s: not observed", ref)
			case seen.Problem != "":
				return because(CodeUsageUnknown, "%s: %s", ref, seen.Problem)
			}
		}
	}
	return Reason{}
}

// planOrphanCopy returns the deletion of an orphan's copy, or why it is kept. use, limit and
// unknown are the results of orphanInUse, pruneBlocked and unknownUsage. This is where it is
// decided whether a copy of a removed image may be deleted.
func (ix *index) planOrphanCopy(ref CopyRef, use, limit, unknown Reason) Action {
	d := ix.desired
	orphan := Reason{CodeOrphan, "not in the configuration any more"}
	end := d.intervalEnd(ix.observed, ref)
	undecided, maybe := d.Undecided.MayDeclare(ref.ID.Name, ix.copyAt(ref).Declaration)
	switch {
	case d.Allowed != schema.Everything:
		return keep(ref, d.deletionsOff(orphan)).asWaitFor(Cleanup, true)
	case maybe:
		return NewAction(Blocked, ref, orphan.with(CodeMaybeDeclared, ", but %s", undecided), 0).asWaitFor(Cleanup, true)
	case !d.IsRemoved(ref.ID.Name):
		return keep(ref, orphan.with(CodeRemovalPending, "; a second read of the configuration must confirm it")).asWaitFor(Cleanup, false)
	case !use.IsZero():
		return ix.keepInUse(ref, orphan.with(CodeInUse, ", but %s", use.Text)).asWaitFor(Cleanup, true)
	case !limit.IsZero() && !slices.Contains(d.Config.Settings.PruneConfirmed, ref.ID):
		return NewAction(Blocked, ref, limit.with(CodePruneLimit, ": if that is intended, add %q to pruneConfirmed", ref.ID), 0).asWaitFor(Cleanup, true)
	case !limit.IsZero():
		return keep(ref, limit.with(CodePruneLimit, ": it is deleted when pruneConfirmed names all of them")).asWaitFor(Cleanup, true)
	case !d.Cleanup[ref] && end.After(ix.observed.Now):
		return keepUntil(ref, orphan.with(CodeCleanupInterval, "; deleted after the clean-up interval"), end).asWaitFor(Cleanup, false)
	case !unknown.IsZero():
		return NewAction(Blocked, ref, orphan.with(CodeUsageUnknown, ", but it is not known whether it is in use: %s", unknown.Text), 0).asWaitFor(Cleanup, true)
	}
	return ix.planDeletion(Cleanup, ref, orphan)
}
