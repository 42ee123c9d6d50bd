package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// undesired is a copy of this node that is not desired, until its deletion is decided.
type undesired struct {
	*Round
	ref    ident.CopyRef
	op     model.Op
	reason model.Reason    // why the copy is not desired
	image  *surplusPlanner // of the declared image; nil: the copy is an orphan
	use    string          // why the copy is in use; "": it is not
	// unknown is why it is not known whether the copy is in use elsewhere; zero: it is known.
	unknown model.Reason
	limit   model.Reason // why the prune limit blocks the orphan; zero: it does not
	oldPart bool         // the copy is a partial file of an older generation, which no job resumes
}

// decide returns the deletion, or why the copy is kept. Every deletion of a copy comes from here. The first case that holds gives
// the reason that people read. Other code can only prevent a deletion: keepGenerations keeps the copy (keptByWish), an inspection must
// come first (planSurplus), another copy is created from this copy (keepSources), copies of the image differ (conflict), or the
// image is suspended (suspend).
func (x undesired) decide() Action {
	d, c, seen := x.Desired, x.copyAt(x.ref), x.Observed.Disks[x.ref.Disk]
	undecided, maybe := d.Undecided.MayDeclare(x.ref.ID.Name, c.Declaration)
	f, end := x.Observed.Failures[x.ref], x.intervalEnd(x.ref)
	// keep: the planner cannot foresee the end of the wait, for example the end of a use. block: something is wrong or doubtful,
	// and usually a person must act. later: time or the rest of the plan ends the wait.
	keep := func(r model.Reason) Action { return wait(x.ref, r).asWaitFor(x.op, true) }
	block := func(r model.Reason) Action { return blocked(x.ref, r).asWaitFor(x.op, true) }
	later := func(r model.Reason, until time.Time) Action { return waitUntil(x.ref, r, until).asWaitFor(x.op, false) }
	switch {
	case d.Allowed != schema.Everything:
		return keep(d.deletionsOff(x.reason))
	case x.image == nil && maybe:
		return block(x.reason.With(CodeMaybeDeclared, ", but %s", undecided))
	case x.image == nil && !d.IsRemoved(x.ref.ID.Name):
		return later(x.reason.With(CodeRemovalPending, "; a second read of the configuration must confirm it, at least 5 seconds after the first"), time.Time{})
	case x.use != "" && x.usageUnknown != "": // a use may end without help; unreadable replica metadata needs a person (R1)
		return block(x.reason.With(CodeUsageUnknown, ", but %s", x.use))
	case x.use != "":
		return keep(x.reason.With(CodeInUse, ", but %s", x.use))
	case !x.limit.IsZero() && !slices.Contains(d.Config.Settings.PruneConfirmed, x.ref.ID):
		return block(x.limit.With(CodePruneLimit, ": if that is intended, add %q to pruneConfirmed", x.ref.ID))
	case !x.limit.IsZero():
		return keep(x.limit.With(CodePruneLimit, ": pruneConfirmed names this image, but must name all these images before any of them is deleted"))
	case x.image != nil && x.image.placement.ranked.len() == 0:
		none := noRankedDisk(d.Config.Nodes, x.image.state.image)
		return block(none.With(none.Code, ": every copy is kept"))
	case x.image != nil && !x.oldPart && x.image.tooFewReady(x.ref):
		return x.image.keepNeeded(x)
	case x.op == model.Cleanup && !x.oldPart && !d.Cleanup[x.ref] && end.After(x.Observed.Now):
		return later(x.reason.With(CodeCleanupInterval, "; deleted after the clean-up interval"), end)
	case !x.unknown.IsZero():
		return block(x.reason.With(CodeUsageUnknown, ", but it is not known whether it is in use: %s", x.unknown.Text))
	case seen.Disputed != "":
		return block(x.reason.With(CodeDiskDisputed, ", but %s", seen.Disputed))
	case seen.ReadOnly:
		return waitForWrites(x.op, x.ref, x.reason)
	case f.AppliesTo(x.op) && f.RetryAt.After(x.Observed.Now):
		return later(because(CodeRetry, "%s", f.Message), f.RetryAt)
	case x.Observed.BeingRead[x.ref]: // even by a job that would read another copy if it started now
		return later(x.reason.With(CodeBeingRead, ", but a running job reads it"), time.Time{})
	}
	if image := x.neededBySuspended(x.ref); image != "" {
		return wait(x.ref, x.reason.With(CodeSourceOfSuspended, ", but image %s, which is suspended, will be created from it", image))
	}
	a := NewAction(x.op, x.ref, x.reason, c.RealSize+c.PartBytes)
	if x.image == nil {
		return a
	}
	if a = x.image.readBack(a); a.Idle() {
		return a
	}
	return x.image.readFirst(a)
}

// orphanPlanner plans what happens to the orphans on this node: owned copies of images
// that are not declared any more (S6).
type orphanPlanner struct{ *Round }

func planOrphans(ix *Round) []Action {
	p := orphanPlanner{ix}
	limit := p.pruneBlocked()
	var actions []Action
	for _, name := range slices.Sorted(maps.Keys(ix.byName)) {
		if !p.isOrphan(name) {
			continue
		}
		for _, ref := range ix.ownCopies(name) {
			c := ix.copyAt(ref)
			if !c.Owned {
				continue
			}
			x := undesired{
				Round: ix, ref: ref, op: model.Cleanup, reason: model.Reason{Code: CodeOrphan, Text: "not in the configuration any more"},
				use: cmp.Or(p.usage(name, ref), ix.inUse(ref)), unknown: ix.unknownUsage(CodeOrphan),
			}
			if !neverHadBytes(c) {
				x.limit = limit
			}
			actions = append(actions, x.decide())
		}
	}
	// The suspension of an image ended with its declaration. The suspension of the settings remains.
	return suspend(actions, ix.Desired.SuspensionOf(schema.Image{}, ix.Observed.Now))
}

// isOrphan reports whether the copies of an image are orphans. Copies of an image with an
// invalid declaration are no orphans.
func (p orphanPlanner) isOrphan(name string) bool {
	_, declared := p.Desired.Config.Images[name]
	return !declared && p.Desired.invalidReason(name).IsZero()
}

// pruneBlocked returns a reason if more images were removed at once than pruneLimit allows.
// It counts the removed images with an owned copy on any node, so that all nodes get the same
// number. Folders without any bytes do not count: their deletion loses nothing. Images in use or needed do not
// count either: they are kept anyway.
func (p orphanPlanner) pruneBlocked() model.Reason {
	confirmed := map[ident.ID]bool{}
	for _, id := range p.Desired.Config.Settings.PruneConfirmed {
		confirmed[id] = true
	}
	orphans, all := map[string]bool{}, true // all: pruneConfirmed names every orphan
	for name, refs := range p.byName {
		if !p.isOrphan(name) || p.usage(name, ident.CopyRef{}) != "" {
			continue
		}
		for _, ref := range refs {
			if c := p.copyAt(ref); c.Owned && !neverHadBytes(c) && len(p.needs[ref.ID]) == 0 {
				orphans[name], all = true, all && confirmed[ref.ID]
			}
		}
	}
	limit := p.Desired.Config.Settings.PruneLimit
	if all || !limit.Exceeded(len(p.Desired.Config.Images), len(orphans)) { // a confirmed part is not enough: after its deletion, the rest would be below the limit
		return model.Reason{}
	}
	return because(CodePruneLimit, "%d images were removed from the configuration, more at once than pruneLimit %s allows", len(orphans), limit)
}

// usage returns which copy of an image is in use, on any node; "" means none. If a person requested the clean-up of the copy
// at waived despite the claims of some nodes, these claims do not count (U8).
func (p orphanPlanner) usage(name string, waived ident.CopyRef) string {
	for _, ref := range p.copiesNamed(name) {
		if c := p.copyAt(ref); c.UsedBy != "" && !p.Desired.isWaived(waived, ref.Disk.Node) {
			return fmt.Sprintf("on %s %s", ref.Disk, c.UsedBy)
		}
	}
	return ""
}

// The copy that replaces an evicted copy is read back in full, once, before the evicted copy is deleted (S5). Its bytes
// were compared when they arrived. A proof is one chunk, so it finds a partial loss only by chance. Every node knows
// from the configuration which disks are evicted. So the node of the replacing copy plans the verification, and the
// holder waits until that node has published the time of the read.

// clockTolerance is the tolerated difference between the clocks of two nodes. The holder tolerates twice as much as the
// node that reads. Otherwise the holder could wait for ever: the other node counts a read as done that the holder rejects.
const clockTolerance = 5 * time.Second

// readBackGap is the least time between two reads of one copy for other nodes. Without it, a copy could be read without end:
// if two nodes show one folder, both write its record, so the evicted copy becomes surplus again and again, and each time a
// new read is due.
const readBackGap = time.Minute

// replacement returns the copy that replaces evicted copies. found is false while too few copies are ready. When a disk
// leaves the ranking, the other disks keep their order. So the new disk is the last of the desired ranked disks.
func (p imagePlanner) replacement() (by ident.CopyRef, found bool) {
	best, n := 1, 0
	for _, ref := range p.state.ready { // best ranked first
		class := 0
		switch ranked := p.state.matches(ref.Disk); {
		case p.ix.copyAt(ref).SameAs != (ident.DiskRef{}):
		case ranked && p.placement.isTarget(ref.Disk):
			class = 2
		case p.state.isEligible(ref.Disk):
			class = 1
		}
		if class > 0 {
			n++
		}
		if class >= best {
			by, best = ref, class
		}
	}
	return by, n >= p.placement.requiredCopies()
}

// evictedFor returns an evicted copy which another copy, by, replaces. unread is false if no read of that other copy is due.
func (p imagePlanner) evictedFor(by ident.CopyRef) (evicted ident.CopyRef, unread bool) {
	if p.ix.Desired.Allowed != schema.Everything {
		return ident.CopyRef{}, false // nothing is deleted now
	}
	age := p.ix.Observed.Now.Sub(p.ix.copyAt(by).ReadBackAt)
	i := slices.IndexFunc(p.state.ready, func(ref ident.CopyRef) bool {
		c, recent := p.ix.copyAt(ref), ref.Disk.Node != by.Disk.Node && age >= 0 && age < readBackGap
		return p.ix.Desired.evicting(ref.Disk) && !c.Leaving && c.UsedBy == "" && !recent && !p.ix.readBackFor(ref, by, clockTolerance)
	})
	if replaces, found := p.replacement(); i < 0 || !found || replaces != by {
		return ident.CopyRef{}, false
	}
	return p.state.ready[i], true
}

// readBackFor reports whether the replacing copy, by, was read in full after the evicted copy became surplus, and after the
// last use of the evicted copy. tolerance is the tolerated difference between the clocks of the two nodes.
func (r *Round) readBackFor(evicted, by ident.CopyRef, tolerance time.Duration) bool {
	c, read := r.copyAt(evicted), r.copyAt(by).ReadBackAt
	since := c.SurplusSince
	if r.Desired.Owns(evicted.Disk) && since.IsZero() {
		since = r.Observed.Now // this time will be recorded
	}
	if c.LastUsed.After(since) {
		since = c.LastUsed
	}
	if by.Disk.Node != evicted.Disk.Node {
		since = since.Add(-tolerance)
	}
	wrong := read.After(r.Observed.Now.Add(tolerance)) // the clock that gave this time was wrong
	return !read.IsZero() && !read.Before(since) && !wrong
}

// readBack returns the deletion of an evicted copy, or the wait for the read of the copy that replaces it.
func (p *surplusPlanner) readBack(deletion Action) Action {
	ref := deletion.CopyRef()
	by, found := p.replacement()
	if deletion.Op != model.Evict || !slices.Contains(p.state.ready, ref) || !found || p.ix.readBackFor(ref, by, 2*clockTolerance) {
		return deletion
	}
	return wait(ref, deletion.With(CodeReadBack, "; kept until the copy on %s, which replaces it, has been read back in full", by.Disk)).asWaitFor(model.Evict, false)
}
