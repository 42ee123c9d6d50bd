package plan

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// orphanPlanner plans what happens to the orphans on this node: owned copies of images that
// are not declared any more (S6).
type orphanPlanner struct {
	ix *index
	// limit is a reason if the prune limit blocks the orphans.
	limit Reason
	// unknown is a reason if any image may be in use without this node's knowledge.
	unknown Reason
}

func planOrphans(ix *index) []Action {
	p := orphanPlanner{ix: ix}
	p.limit, p.unknown = p.pruneBlocked(), p.unknownUsage()
	var actions []Action
	for name, refs := range ix.ownByName {
		if !p.isOrphan(name) {
			continue
		}
		use := p.usage(name)
		for _, ref := range refs {
			if ix.copyAt(ref).Owned {
				actions = append(actions, p.planOrphanCopy(ref, use))
			}
		}
	}
	// The suspension of an image ended with its declaration. That of the settings remains.
	return suspend(actions, ix.desired.SuspensionOf(schema.Image{}, ix.observed.Now), ix.observed.Running)
}

// isOrphan reports whether the copies of an image are orphans. Those of an image with an
// invalid declaration are not.
func (p *orphanPlanner) isOrphan(name string) bool {
	_, declared := p.ix.desired.Config.Images[name]
	return !declared && p.ix.desired.invalidReason(name).IsZero()
}

// pruneBlocked returns a reason when more images were removed at once than pruneLimit allows.
// It counts the removed images with an owned copy on any node, so that all nodes get the same
// number. Folders without any bytes do not count: their deletion loses nothing.
func (p *orphanPlanner) pruneBlocked() Reason {
	orphans := map[string][]CopyRef{}
	for _, byName := range []map[string][]CopyRef{p.ix.ownByName, p.ix.peerByName} {
		for name, refs := range byName {
			if !p.isOrphan(name) {
				continue
			}
			for _, ref := range refs {
				if c := p.ix.copyAt(ref); c.Owned && !c.neverHadBytes() {
					orphans[name] = append(orphans[name], ref)
				}
			}
		}
	}
	limit := p.ix.desired.Config.Settings.PruneLimit
	if !limit.Exceeded(len(p.ix.desired.Config.Images), len(orphans)) || pruneConfirmed(p.ix.desired.Config.Settings.PruneConfirmed, orphans) {
		return Reason{}
	}
	return because(CodePruneLimit, "%d images were removed from the configuration, more at once than pruneLimit %s allows", len(orphans), limit)
}

// pruneConfirmed reports whether the setting names all orphans. Confirming a part is not
// enough: when that part is deleted, the rest would be below the limit.
func pruneConfirmed(setting []disk.ID, orphans map[string][]CopyRef) bool {
	confirmed := map[disk.ID]bool{}
	for _, id := range setting {
		confirmed[id] = true
	}
	for _, refs := range orphans {
		if slices.ContainsFunc(refs, func(ref CopyRef) bool { return !confirmed[ref.ID] }) {
			return false
		}
	}
	return true
}

// usage returns which copy of an image is in use, on any node.
func (p *orphanPlanner) usage(name string) Reason {
	for _, ref := range p.ix.copiesNamed(name) {
		if c := p.ix.copyAt(ref); c.UsedBy != "" {
			return because(CodeInUse, "on %s %s", ref.Disk, c.UsedBy)
		}
	}
	return Reason{}
}

// unknownUsage returns a reason when the use of images on some declared disk is not known, or
// when a node may not know that an image was removed.
func (p *orphanPlanner) unknownUsage() Reason {
	nodes := p.ix.desired.Config.Nodes
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		if node != p.ix.desired.Node {
			if reason := p.ix.whyIgnored(node); !reason.IsZero() {
				return reason
			}
			if reason := p.ix.observed.Peers[node].incomplete(node); !reason.IsZero() {
				return reason
			}
		}
		for _, name := range slices.Sorted(maps.Keys(nodes[node].Disks)) {
			ref := schema.DiskRef{Node: node, Disk: name}
			seen, known := p.ix.observed.Disks[ref]
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

// planOrphanCopy returns the deletion of an orphan, or why it is kept. use is a reason if the
// image is in use. This function alone decides whether a copy of a removed image may be
// deleted.
func (p *orphanPlanner) planOrphanCopy(ref CopyRef, use Reason) Action {
	d, limit := p.ix.desired, p.limit
	if p.ix.copyAt(ref).neverHadBytes() {
		limit = Reason{}
	}
	orphan := Reason{CodeOrphan, "not in the configuration any more"}
	end := d.intervalEnd(p.ix.observed, ref)
	undecided, maybe := d.Undecided.MayDeclare(ref.ID.Name, p.ix.copyAt(ref).Declaration)
	switch {
	case d.Allowed != schema.Everything:
		return wait(ref, d.deletionsOff(orphan)).asWaitFor(Cleanup, true)
	case maybe:
		return blocked(ref, orphan.with(CodeMaybeDeclared, ", but %s", undecided)).asWaitFor(Cleanup, true)
	case !d.IsRemoved(ref.ID.Name):
		return wait(ref, orphan.with(CodeRemovalPending, "; a second read of the configuration must confirm it, at least 5 seconds after the first")).asWaitFor(Cleanup, false)
	case !use.IsZero():
		return keepInUse(p.ix, ref, orphan.with(CodeInUse, ", but %s", use.Text)).asWaitFor(Cleanup, true)
	case !limit.IsZero() && !slices.Contains(d.Config.Settings.PruneConfirmed, ref.ID):
		return blocked(ref, limit.with(CodePruneLimit, ": if that is intended, add %q to pruneConfirmed", ref.ID)).asWaitFor(Cleanup, true)
	case !limit.IsZero():
		return wait(ref, limit.with(CodePruneLimit, ": pruneConfirmed names this image, but none is deleted until it names all of them")).asWaitFor(Cleanup, true)
	case !d.Cleanup[ref] && end.After(p.ix.observed.Now):
		return waitUntil(ref, orphan.with(CodeCleanupInterval, "; deleted after the clean-up interval"), end).asWaitFor(Cleanup, false)
	case !p.unknown.IsZero():
		return blocked(ref, orphan.with(CodeUsageUnknown, ", but it is not known whether it is in use: %s", p.unknown.Text)).asWaitFor(Cleanup, true)
	}
	return planDeletion(p.ix, Cleanup, ref, orphan)
}
