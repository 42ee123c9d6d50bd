package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// pendingUsage is the usage of copies that could not be written to their records yet. For this
// process it counts as if it were written.
type pendingUsage map[plan.CopyRef]usageOnDisk

// usageOnDisk is the usage of a copy on one disk. It does not apply to another disk at the same
// path.
type usageOnDisk struct {
	plan.Usage
	diskUUID string
}

// applyTo changes the observed copies as if the usage were written.
func (p pendingUsage) applyTo(o plan.Observed) {
	for key, usage := range p {
		if seen := o.Disks[key.Disk]; seen.UUID == usage.diskUUID {
			seen.ApplyUsage(usage.Usage)
		}
	}
}

// recordUsage writes the changes of usage that are due, and reports whether it wrote any. Usage
// stays pending if it must not be written yet, or if it cannot be written, for example because the
// disk is full. The record of a copy with a job is written when the job has ended, because the job
// writes the same record.
func (r *Reconciler) recordUsage(d plan.Desired, o plan.Observed) (changed bool) {
	for _, usage := range d.UsageUpdates(o) {
		seen := o.Disks[usage.Copy.Disk]
		r.pendingUsage[usage.Copy] = usageOnDisk{usage, seen.UUID}
		seen.ApplyUsage(usage)
	}
	if d.Allowed == schema.ObserveOnly {
		return false
	}
	incomplete := map[schema.DiskRef]bool{}
	for key, usage := range r.pendingUsage {
		seen, observed := o.Disks[key.Disk]
		if _, exists := seen.Copies[key.ID]; !exists || seen.UUID != usage.diskUUID {
			if observed && seen.Problem == "" { // otherwise the disk may come back with the copy
				delete(r.pendingUsage, key)
			}
			continue
		}
		if r.jobs.useFiles(key) {
			incomplete[key.Disk] = true
			continue
		}
		if err := r.disks.open[key.Disk].writeUsage(usage.Usage); err != nil {
			r.log.Warn("cannot record the use of a copy", "copy", key.String(), "error", err)
			incomplete[key.Disk] = true
			continue
		}
		delete(r.pendingUsage, key)
		changed = true
	}
	for ref, seen := range o.Disks {
		if d.Owns(ref) && seen.Problem == "" && !incomplete[ref] {
			r.clock.record(seen.UUID)
		}
	}
	return changed
}
