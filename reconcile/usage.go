package reconcile

import (
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// recordUsage writes the marks that are due, and reports whether it wrote any. What cannot be
// written, on a full disk for one, or may not be yet, holds for this process all the
// same. A copy with a job is left to that job, which writes the same record, and is
// marked when it has ended.
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
		seen, looked := o.Disks[key.Disk]
		if _, there := seen.Copies[key.ID]; !there || seen.UUID != m.on {
			if looked && seen.Problem == "" {
				delete(r.pendingUsage, key)
			}
			continue
		}
		if run := r.running[key]; run != nil && !run.confirming() || !r.writeUsage(m.Usage) {
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
	})
	if err != nil {
		r.log.Warn("cannot note use of copy", "copy", m.Copy.String(), "error", err)
	}
	return err == nil
}
