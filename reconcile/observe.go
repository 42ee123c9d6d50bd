package reconcile

import (
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// diskProblem is since when a disk has had a problem, by the steady clock.
type diskProblem struct {
	path  string // as declared
	since time.Time
}

// Observe observes the disks of d.Node, and adds the last observations of the other nodes. It
// reads small files and no image data, and waits for no other node.
func (r *Reconciler) Observe(d plan.Desired) plan.Observed {
	declared := map[schema.DiskRef]schema.Disk{}
	for name, one := range d.Config.Nodes[d.Node].Disks {
		if ref := (schema.DiskRef{Node: d.Node, Disk: name}); d.Owns(ref) {
			declared[ref] = one
		}
	}
	r.disks.refresh(declared, r.busy)
	now := r.clock.observe()
	o := plan.Observed{
		Now: now.Wall, Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{},
		Running: map[plan.CopyRef]bool{}, Syncing: map[plan.CopyRef]bool{}, BeingRead: map[plan.CopyRef]bool{},
	}
	for ref, one := range r.disks.open {
		seen := one.observe(func(id disk.ID) bool { return r.reads(plan.CopyRef{Disk: ref, ID: id}) })
		seen.ClockStepped = r.clock.outdated(seen.UUID)
		o.Disks[ref] = seen
	}
	for key, m := range r.pendingUsage {
		if seen := o.Disks[key.Disk]; seen.UUID == m.on {
			seen.ApplyUsage(m.Usage)
		}
	}
	r.dropStaleFailures(d, o)
	for key, t := range r.failures {
		o.Failures[key] = t.OnWallClock(now.Steady, o.Now)
	}
	for key, run := range r.running {
		a := run.task.Action
		o.Running[key] = true
		if a.Op == plan.Sync {
			o.Syncing[key] = true
		}
		if a.LocalSource != (plan.CopyRef{}) {
			o.BeingRead[a.LocalSource] = true
		}
		o.Disks[key.Disk].MarkLeaving(key, a.Op)
	}
	o.BackedUp = o.FindBackedUp(d)
	r.peers.mergeInto(d, &o, now.Steady)
	o.CannotPrepare = r.cannotPrepare(d, o)
	r.trackProblems(d, o, now.Steady)
	r.serve(d, o)
	return o
}

// trackProblems records since when disks have had a problem. A disk that is declared anew, or at
// another path, is another disk.
func (r *Reconciler) trackProblems(d plan.Desired, o plan.Observed, now time.Time) {
	maps.DeleteFunc(r.problems, func(ref schema.DiskRef, m diskProblem) bool {
		declared, ok := d.Disk(ref)
		return !ok || declared.Path != m.path || o.Disks[ref].Problem == ""
	})
	for ref, seen := range o.Disks {
		if seen.Problem == "" {
			continue
		}
		m, known := r.problems[ref]
		if !known {
			declared, _ := d.Disk(ref)
			m = diskProblem{declared.Path, now}
			r.problems[ref] = m
		}
		seen.ProblemFor = now.Sub(m.since)
		o.Disks[ref] = seen
	}
}

// cannotPrepare returns the images whose first copy this node cannot create because it has no
// replica to export, with the reason. Images with a ready copy need no first copy.
func (r *Reconciler) cannotPrepare(d plan.Desired, o plan.Observed) map[disk.ID]string {
	reasons := map[disk.ID]string{}
	disks := r.disks.usable()
	for _, image := range d.Config.Images {
		e := image.Source.ExportFromVolume
		if e == nil || o.AnyReady(image.ID) {
			continue
		}
		if err := r.system.Jobs.CanExport(*e, disks); err != nil {
			reasons[image.ID] = err.Error()
		}
	}
	return reasons
}

// reads reports whether a job reads or deletes the copy.
func (r *Reconciler) reads(key plan.CopyRef) bool {
	for own, run := range r.running {
		if own == key && run.touchesFiles() || run.task.Action.LocalSource == key {
			return true
		}
	}
	return false
}

// busy reports whether a job uses the disk.
func (r *Reconciler) busy(ref schema.DiskRef) bool {
	for key, run := range r.running {
		if key.Disk == ref || run.task.Action.LocalSource.Disk == ref {
			return true
		}
	}
	return false
}
