package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Observe observes the disks of d.Node, and adds the last observations of the other nodes. It
// reads small files and no image data, and waits for no other node.
func (r *Reconciler) Observe(d plan.Desired) plan.Observed {
	declared := map[ident.DiskRef]schema.Disk{}
	for name, one := range d.Config.Nodes[d.Node].Disks {
		if ref := (ident.DiskRef{Node: d.Node, Disk: name}); d.Owns(ref) {
			declared[ref] = one
		}
	}
	r.disks.refresh(declared, r.jobs.useDisk)
	r.backlog.drop() // its actions may need disks that are closed now
	now := r.clock.observe()
	o := plan.Observed{
		Now: now.Wall, Disks: map[ident.DiskRef]model.Disk{},
		Running: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, BeingRead: map[ident.CopyRef]bool{},
	}
	for ref, one := range r.disks.open {
		seen := one.observe(func(id ident.ID) bool { return r.jobs.read(ident.CopyRef{Disk: ref, ID: id}) })
		seen.ClockStepped = r.clock.outdated(seen.UUID)
		o.Disks[ref] = seen
	}
	o.FindSameCopies()
	r.pendingUsage.applyTo(o)
	r.failures.DropStale(d, o)
	o.Failures = r.failures.OnWallClock(now)
	r.jobs.addTo(o)
	o.BackedUp = o.FindBackedUp(d)
	r.peers.mergeInto(d, &o, r.system.Peers.Observations(), now.Steady)
	o.Awaited = r.awaited.Durations(o)
	o.CannotPrepare = r.disks.cannotExport(d, o, r.system.Jobs)
	// Only now all problems are known: two nodes may have a disk with the same uuid.
	r.disks.trackProblems(d, o, now.Steady)
	r.served.Update(d, o, r.disks.handles())
	return o
}
