package reconcile

import (
	"errors"
	"log/slog"
	"maps"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// pendingUsage is the usage of copies that could not be written to their records yet. For this
// process it counts as if it were written.
type pendingUsage map[ident.CopyRef]usageOnDisk

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
			o.ApplyUsage(usage.Usage)
		}
	}
}

// unrecorded are the disks on which the use of copies cannot be recorded. Each round tries again, but
// only changes are logged, because a full disk may stay full and may have hundreds of copies.
type unrecorded map[ident.DiskRef]ident.CopyRef // the copy whose failure was logged; without an image: the disk

// set logs the error of a write to the record of a copy, unless another error of the disk was logged.
func (u unrecorded) set(log *slog.Logger, key ident.CopyRef, err error) {
	logged, known := u[key.Disk]
	switch {
	case err != nil && !known:
		u[key.Disk] = key
		log.Warn("cannot record the use of copies", "disk", key.Disk.String(), "copy", key.String(), "error", err, "effect", "it is recorded when that is possible")
	case err == nil && known && logged == key:
		delete(u, key.Disk)
		log.Info("the use of copies can be recorded again", "disk", key.Disk.String())
	}
}

// keepOnly forgets copies that need no record any more.
func (u unrecorded) keepOnly(pending pendingUsage) {
	maps.DeleteFunc(u, func(_ ident.DiskRef, logged ident.CopyRef) bool {
		_, exists := pending[logged]
		return !exists && logged.ID != ident.ID{}
	})
}

// recordUsage writes the changes of usage that are due, and changes the observed copies as if all were written. Usage
// stays pending if it must not be written yet, or if it cannot be written, for example because the
// disk is full. The record of a copy with a job is written when the job has ended, because the job
// writes the same record.
func (r *Reconciler) recordUsage(now *plan.Round) {
	d, o := now.Desired, now.Observed
	for _, usage := range now.UsageUpdates() {
		seen := o.Disks[usage.Copy.Disk]
		r.pendingUsage[usage.Copy] = usageOnDisk{usage, seen.UUID}
		o.ApplyUsage(usage)
	}
	if d.Allowed == schema.ObserveOnly {
		return
	}
	incomplete := map[ident.DiskRef]bool{}
	full := map[ident.DiskRef]error{} // disks on which a write failed for a reason that concerns all copies
	for key, usage := range r.pendingUsage {
		seen, observed := o.Disks[key.Disk]
		if _, exists := seen.Copies[key.ID]; !exists || seen.UUID != usage.diskUUID {
			if observed && seen.Problem == "" { // otherwise the disk may come back with the copy
				delete(r.pendingUsage, key)
			}
			continue
		}
		if r.jobs.useFiles(key) || seen.ReadOnly || full[key.Disk] != nil {
			incomplete[key.Disk] = true
			continue
		}
		err := r.disks.open[key.Disk].writeUsage(usage.Usage)
		r.unrecorded.set(r.log, key, err)
		if err != nil {
			incomplete[key.Disk] = true
			if errors.Is(err, disk.ErrNoSpace) || errors.Is(err, disk.ErrReadOnly) {
				full[key.Disk] = err
			}
			continue
		}
		delete(r.pendingUsage, key)
	}
	r.unrecorded.keepOnly(r.pendingUsage)
	r.recordUsers(o)
	for ref, seen := range o.Disks {
		if d.Owns(ref) && seen.Problem == "" && !incomplete[ref] {
			r.clock.record(seen.UUID)
		}
	}
}

// recordUsers records which replicas name images on the disks that can be written to.
func (r *Reconciler) recordUsers(o plan.Observed) {
	for ref, one := range r.disks.open {
		if seen := o.Disks[ref]; one.handle != nil && seen.Problem == "" && !seen.ReadOnly {
			r.unrecorded.set(r.log, ident.CopyRef{Disk: ref}, one.handle.RecordUsers())
		}
	}
}
