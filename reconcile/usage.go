package reconcile

import (
	"cmp"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/once"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// pendingUsage is the usage of copies that could not be written to their records yet. For this
// process it counts as if it were written.
type pendingUsage map[ident.CopyRef]usageOnDisk

// usageOnDisk is the usage of a copy on one disk. It does not apply to another disk at the same
// path.
type usageOnDisk struct {
	model.Usage
	diskUUID string
}

// applyTo changes the observed copies as if the usage were written.
func (p pendingUsage) applyTo(o plan.Observed) {
	for key, usage := range p {
		seen := o.Disks[key.Disk]
		if c, exists := seen.Copies[key.ID]; exists && seen.UUID == usage.diskUUID {
			c.Usage = usage.Usage
			seen.Copies[key.ID] = c
		}
	}
}

// usageNotRecorded is logged once: each round tries again, but a full disk may stay full and may have hundreds of copies.
var usageNotRecorded = once.Condition{Begins: "cannot record the use of copies", Ends: "the use of copies can be recorded again", Of: "disk", Why: "error"}

// recordUsage writes the changes of usage that are due, and changes the observed copies as if all were written. Usage
// stays pending if it must not be written yet, or if it cannot be written, for example because the
// disk is full. The record of a copy with a job is written when the job has ended, because the job
// writes the same record.
func (r *Reconciler) recordUsage(now *plan.Round) {
	d, o := now.Desired, now.Observed
	for key, usage := range now.UsageUpdates() {
		r.pendingUsage[key] = usageOnDisk{usage, o.Disks[key.Disk].UUID}
	}
	r.pendingUsage.applyTo(o)
	if d.Allowed == schema.ObserveOnly {
		return
	}
	incomplete := map[ident.DiskRef]bool{}
	failed := map[ident.DiskRef]error{}
	full := map[ident.DiskRef]bool{} // disks on which a write failed for a reason that concerns all copies
	for key, usage := range r.pendingUsage {
		seen, observed := o.Disks[key.Disk]
		if _, exists := seen.Copies[key.ID]; !exists || seen.UUID != usage.diskUUID {
			if observed && seen.Problem == "" { // otherwise the disk may come back with the copy
				delete(r.pendingUsage, key)
			}
			continue
		}
		if r.jobs.useFiles(key) || seen.ReadOnly || full[key.Disk] {
			incomplete[key.Disk] = true
			continue
		}
		if err := r.disks.open[key.Disk].handle.Update(key.ID, func(record *disk.Record) { record.Usage = usage.Usage }); err != nil {
			incomplete[key.Disk], failed[key.Disk] = true, err
			full[key.Disk] = errors.Is(err, disk.ErrNoSpace) || errors.Is(err, disk.ErrReadOnly)
			continue
		}
		delete(r.pendingUsage, key)
	}
	r.disks.recordUsers(o, failed)
	for ref, seen := range o.Disks {
		if !d.Owns(ref) || seen.Problem != "" {
			continue
		}
		if !incomplete[ref] {
			r.clock.record(seen.UUID)
		}
		if !incomplete[ref] || failed[ref] != nil { // otherwise it is not known whether the use can be recorded
			r.health.SetError(usageNotRecorded, ref.String(), failed[ref], "effect", "it is recorded when that is possible")
		}
	}
}

// recordUsers records which replicas name images, on the disks that can be written to. It adds its errors to failed.
func (s *disks) recordUsers(o plan.Observed, failed map[ident.DiskRef]error) {
	for ref, one := range s.open {
		if seen := o.Disks[ref]; one.handle != nil && seen.Problem == "" && !seen.ReadOnly {
			failed[ref] = cmp.Or(failed[ref], one.handle.RecordUsers())
		}
	}
}
