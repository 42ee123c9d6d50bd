package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// pendingUsage is a change of the recorded usage that could not be written yet.
type pendingUsage struct {
	plan.Usage
	on string // the uuid of the disk
}

// recordUsage writes the changes of usage that are due, and reports whether it wrote any. What
// cannot be written, for example because the disk is full, or must not be written yet, counts
// for this process as if it were written. The record of a copy with a job is written when the
// job has ended, because the job writes the same record.
func (r *Reconciler) recordUsage(d plan.Desired, o plan.Observed) (changed bool) {
	for _, m := range d.UsageUpdates(o) {
		seen := o.Disks[m.Copy.Disk]
		r.pendingUsage[m.Copy] = pendingUsage{m, seen.UUID}
		seen.ApplyUsage(m)
	}
	if d.Allowed == schema.ObserveOnly {
		return false
	}
	behind := map[schema.DiskRef]bool{}
	for key, m := range r.pendingUsage {
		seen, observed := o.Disks[key.Disk]
		if _, there := seen.Copies[key.ID]; !there || seen.UUID != m.on {
			if observed && seen.Problem == "" {
				delete(r.pendingUsage, key)
			}
			continue
		}
		if run := r.running[key]; run != nil && run.touchesFiles() || !r.writeUsage(m.Usage) {
			behind[key.Disk] = true
			continue
		}
		delete(r.pendingUsage, key)
		changed = true
	}
	for ref, seen := range o.Disks {
		if d.Owns(ref) && seen.Problem == "" && !behind[ref] {
			r.clock.record(seen.UUID)
		}
	}
	return changed
}

func (r *Reconciler) writeUsage(m plan.Usage) bool {
	err := r.disks.open[m.Copy.Disk].Update(m.Copy.ID, func(record *disk.Record) {
		record.InUse, record.LastUsed, record.SurplusSince, record.ClockNode = m.InUse, m.LastUsed, m.SurplusSince, m.By
		record.Declaration = m.Declaration
	})
	if err != nil {
		r.log.Warn("cannot note use of copy", "copy", m.Copy.String(), "error", err)
	}
	return err == nil
}
