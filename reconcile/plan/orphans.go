package plan

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// orphanPlanner plans what happens to the orphans on this node: owned copies of images that
// are not declared any more (S6).
type orphanPlanner struct {
	ix *Round
	// limit is a reason if the prune limit blocks the orphans.
	limit model.Reason
}

func planOrphans(ix *Round) []Action {
	p := orphanPlanner{ix: ix}
	p.limit = p.pruneBlocked()
	var actions []Action
	for name, refs := range ix.byName {
		if !p.isOrphan(name) {
			continue
		}
		for _, ref := range refs {
			if ix.Desired.Owns(ref.Disk) && ix.copyAt(ref).Owned {
				actions = append(actions, p.planOrphanCopy(ref))
			}
		}
	}
	// The suspension of an image ended with its declaration. That of the settings remains.
	return suspend(actions, ix.Desired.SuspensionOf(schema.Image{}, ix.Observed.Now))
}

// isOrphan reports whether the copies of an image are orphans. Those of an image with an
// invalid declaration are not.
func (p *orphanPlanner) isOrphan(name string) bool {
	_, declared := p.ix.Desired.Config.Images[name]
	return !declared && p.ix.Desired.invalidReason(name).IsZero()
}

// pruneBlocked returns a reason when more images were removed at once than pruneLimit allows.
// It counts the removed images with an owned copy on any node, so that all nodes get the same
// number. Folders without any bytes do not count: their deletion loses nothing. Images in use or needed do not
// count either: they are kept anyway.
func (p *orphanPlanner) pruneBlocked() model.Reason {
	orphans := map[string][]ident.CopyRef{}
	for name, refs := range p.ix.byName {
		if !p.isOrphan(name) || !p.usage(name, ident.CopyRef{}).IsZero() {
			continue
		}
		for _, ref := range refs {
			if c := p.ix.copyAt(ref); c.Owned && !neverHadBytes(c) && len(p.ix.needs[ref.ID]) == 0 {
				orphans[name] = append(orphans[name], ref)
			}
		}
	}
	limit := p.ix.Desired.Config.Settings.PruneLimit
	if !limit.Exceeded(len(p.ix.Desired.Config.Images), len(orphans)) || pruneConfirmed(p.ix.Desired.Config.Settings.PruneConfirmed, orphans) {
		return model.Reason{}
	}
	return because(CodePruneLimit, "%d images were removed from the configuration, more at once than pruneLimit %s allows", len(orphans), limit)
}

// pruneConfirmed reports whether the setting names all orphans. Confirming a part is not
// enough: when that part is deleted, the rest would be below the limit.
func pruneConfirmed(setting []ident.ID, orphans map[string][]ident.CopyRef) bool {
	confirmed := map[ident.ID]bool{}
	for _, id := range setting {
		confirmed[id] = true
	}
	for _, refs := range orphans {
		if slices.ContainsFunc(refs, func(ref ident.CopyRef) bool { return !confirmed[ref.ID] }) {
			return false
		}
	}
	return true
}

// usage returns which copy of an image is in use, on any node, apart from the claims that a requested clean-up of
// the copy waived does not count.
func (p *orphanPlanner) usage(name string, waived ident.CopyRef) model.Reason {
	for _, ref := range p.ix.copiesNamed(name) {
		if c := p.ix.copyAt(ref); c.UsedBy != "" && !p.ix.isWaived(waived, ref.Disk.Node) {
			return because(CodeInUse, "on %s %s", ref.Disk, c.UsedBy)
		}
	}
	return model.Reason{}
}

// planOrphanCopy returns the deletion of an orphan, or why it is kept. Every deletion of a copy of a removed image comes
// from here.
func (p *orphanPlanner) planOrphanCopy(ref ident.CopyRef) Action {
	d, limit, use := p.ix.Desired, p.limit, p.usage(ref.ID.Name, ref)
	if use.IsZero() {
		use.Text = p.ix.inUse(ref)
	}
	if neverHadBytes(p.ix.copyAt(ref)) {
		limit = model.Reason{}
	}
	orphan := model.Reason{Code: CodeOrphan, Text: "not in the configuration any more"}
	end, unknown := p.ix.intervalEnd(ref), p.ix.unknownUsage(CodeOrphan)
	undecided, maybe := d.Undecided.MayDeclare(ref.ID.Name, p.ix.copyAt(ref).Declaration)
	switch {
	case d.Allowed != schema.Everything:
		return wait(ref, d.deletionsOff(orphan)).asWaitFor(model.Cleanup, true)
	case maybe:
		return blocked(ref, orphan.With(CodeMaybeDeclared, ", but %s", undecided)).asWaitFor(model.Cleanup, true)
	case !d.IsRemoved(ref.ID.Name):
		return wait(ref, orphan.With(CodeRemovalPending, "; a second read of the configuration must confirm it, at least 5 seconds after the first")).asWaitFor(model.Cleanup, false)
	case use.Text != "":
		return keepInUse(p.ix, ref, orphan.With(CodeInUse, ", but %s", use.Text)).asWaitFor(model.Cleanup, true)
	case !limit.IsZero() && !slices.Contains(d.Config.Settings.PruneConfirmed, ref.ID):
		return blocked(ref, limit.With(CodePruneLimit, ": if that is intended, add %q to pruneConfirmed", ref.ID)).asWaitFor(model.Cleanup, true)
	case !limit.IsZero():
		return wait(ref, limit.With(CodePruneLimit, ": pruneConfirmed names this image, but none is deleted until it names all of them")).asWaitFor(model.Cleanup, true)
	case !d.Cleanup[ref] && end.After(p.ix.Observed.Now):
		return waitUntil(ref, orphan.With(CodeCleanupInterval, "; deleted after the clean-up interval"), end).asWaitFor(model.Cleanup, false)
	case !unknown.IsZero():
		return blocked(ref, orphan.With(CodeUsageUnknown, ", but it is not known whether it is in use: %s", unknown.Text)).asWaitFor(model.Cleanup, true)
	}
	return planDeletion(p.ix, model.Cleanup, ref, orphan)
}
