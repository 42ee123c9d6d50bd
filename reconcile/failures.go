package reconcile

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// failures are the last failures of jobs on this node, and the copies that are suspected because
// of them. They are in memory only: after a restart everything is tried again.
type failures map[ident.CopyRef]failureRecord

// failureRecord is a failure under one declaration. It does not apply to another declaration or
// another disk. Its times are steady times, because the wall clock may be set while it waits.
type failureRecord struct {
	model.Failure
	image    schema.Image
	diskUUID string // "" if it was not known
	unproven int    // see cancelDeletion
	reads    failingReads
}

// recordFailure records the failure of a job until the next attempt, and returns it.
func (r *Reconciler) recordFailure(run *activeJob, e jobEnd) model.Failure {
	now, a := r.clock.now(), run.task.Action
	if until := a.Pinned.Until; !until.IsZero() {
		a.Pinned.Until = now.Steady.Add(until.Sub(now.Wall))
	}
	next := job.NextFailure(r.failures[e.key].Failure, a, e.err, now.Steady, r.system.Random())
	failing := r.failures[e.key].reads.after(run, next.Fault)
	if r.peers.leaveSourcesAside(run, e.err, failing, now.Steady) {
		next.RetryAt = now.Steady // the next attempt uses another source
	}
	r.failures[e.key] = failureRecord{Failure: next, image: run.task.Image, diskUUID: r.disks.uuid(e.key.Disk), reads: failing}
	return next
}

// onWallClock returns the failures with their times converted to the wall clock.
func (f failures) onWallClock(now Instant) map[ident.CopyRef]model.Failure {
	converted := make(map[ident.CopyRef]model.Failure, len(f))
	for key, record := range f {
		converted[key] = record.Translated(now.Steady, now.Wall)
	}
	return converted
}

// clearCopy drops the failure of a copy, and all suspicions against it.
func (f failures) clearCopy(key ident.CopyRef) {
	f.clearFailure(key)
	f.clearSuspicions(func(suspect ident.CopyRef) bool { return suspect == key })
}

// clearDeleted drops what concerns a copy that was deleted. A lack of space is kept: without the copy the
// disk has as much space as before the attempt that failed.
func (f failures) clearDeleted(key ident.CopyRef) {
	f.clearSuspicions(func(suspect ident.CopyRef) bool { return suspect == key })
	if record := f[key]; record.NeedsSpace == 0 || record.Op.Deletes() {
		f.clearFailure(key)
		return
	}
	if record := f[key]; record.Op == model.Verify { // it concerns the actions that create the copy again
		record.Op = ""
		f[key] = record
	}
}

// clearFailure drops the failure of a copy. It keeps the copies that are suspected because of the
// failure: a later success, with bytes from elsewhere, does not show that a suspect is sound.
func (f failures) clearFailure(key ident.CopyRef) {
	record, failed := f[key]
	if failed {
		f[key] = failureRecord{Failure: model.Failure{Suspects: record.Suspects}, image: record.image, diskUUID: record.diskUUID}
	}
	if len(record.Suspects) == 0 {
		delete(f, key)
	}
}

// clearSuspicions drops the suspicions against the copies for which cleared returns true.
func (f failures) clearSuspicions(cleared func(ident.CopyRef) bool) {
	for key, record := range f {
		if !slices.ContainsFunc(record.Suspects, cleared) {
			continue
		}
		// Observations share the slice, so it must not be changed.
		record.Suspects = slices.DeleteFunc(slices.Clone(record.Suspects), cleared)
		f[key] = record
		if record.Attempts == 0 && record.Op == "" {
			f.clearFailure(key) // the suspicion was all that was left of this record
		}
	}
}

// dropStale drops the failures under another declaration, on another disk or on a disk that is
// not declared any more, and the failures of jobs whose file does not exist any more. It drops the
// suspicions against copies that do not exist any more.
func (f failures) dropStale(d plan.Desired, o plan.Observed) {
	for key, record := range f {
		declaration := d.Config.Images[key.ID.Name]
		_, declared := d.Disk(key.Disk)
		if !declared || !plan.SameDeclaration(record.Op, record.image, declaration) || record.Op.NeedsFile() && o.LostFile(key) || o.IsOtherDisk(key.Disk, record.diskUUID) {
			f.clearFailure(key)
		}
	}
	f.clearSuspicions(o.LostFile)
}

// retryText returns when a failed action is tried again, for the log.
func retryText(f model.Failure) string {
	switch {
	case f.AppliesTo(model.Upload):
		return "with the next upload by a client"
	case f.Final && !f.RetryAt.IsZero():
		return f.RetryAt.UTC().Format(time.RFC3339) + ", or when the declaration changes"
	case f.Final:
		return "not before the declaration changes"
	case f.NeedsSpace > 0:
		return "when " + plan.FormatBytes(f.NeedsSpace) + " are free"
	}
	return f.RetryAt.UTC().Format(time.RFC3339)
}
