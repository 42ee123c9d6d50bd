package reconcile

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// failureRecord is a failure under one declaration. It does not apply to another declaration or
// another disk. Its times are steady times.
type failureRecord struct {
	plan.Failure
	image schema.Image
	on    string // the uuid of the disk; "" if it was not known
}

// recordFailure remembers the failure of a job until the next attempt.
func (r *Reconciler) recordFailure(run *activeJob, e jobEnd) plan.Failure {
	now, a := r.clock.now(), run.task.Action
	if until := a.Pinned.Until; !until.IsZero() {
		a.Pinned.Until = now.Steady.Add(until.Sub(now.Wall))
	}
	next := job.NextFailure(r.failures[e.key].Failure, a, e.err, now.Steady, r.system.Random())
	r.failures[e.key] = failureRecord{next, run.task.Image, r.disks.uuid(e.key.Disk)}
	return next
}

// clearCopy forgets the failure of a copy, and that the copy is suspected.
func (r *Reconciler) clearCopy(key plan.CopyRef) {
	r.clearFailure(key)
	r.clearSuspicions(func(suspect plan.CopyRef) bool { return suspect == key })
}

// clearFailure forgets the failure of a copy, but not the copies that were suspected by it.
func (r *Reconciler) clearFailure(key plan.CopyRef) {
	t, failed := r.failures[key]
	if failed {
		r.failures[key] = failureRecord{plan.Failure{Suspects: t.Suspects}, t.image, t.on}
	}
	if len(t.Suspects) == 0 {
		delete(r.failures, key)
	}
}

// clearSuspicions forgets that some copies are suspected.
func (r *Reconciler) clearSuspicions(cleared func(plan.CopyRef) bool) {
	for key, t := range r.failures {
		if !slices.ContainsFunc(t.Suspects, cleared) {
			continue
		}
		t.Suspects = slices.DeleteFunc(slices.Clone(t.Suspects), cleared)
		r.failures[key] = t
		if t.Attempts == 0 && t.Op == "" {
			r.clearFailure(key) // there was nothing else to remember
		}
	}
}

func retryText(t plan.Failure) string {
	switch {
	case t.AppliesTo(plan.Upload):
		return "when somebody uploads it again"
	case t.Final:
		return "not before the declaration changes"
	case t.NeedsSpace > 0:
		return "when " + plan.FormatBytes(t.NeedsSpace) + " are free"
	}
	return t.RetryAt.UTC().Format(time.RFC3339)
}

// dropStaleFailures forgets failures under another declaration, on another disk or a disk that
// is not declared any more, and failures with a file that does not exist any more.
func (r *Reconciler) dropStaleFailures(d plan.Desired, o plan.Observed) {
	for key, t := range r.failures {
		now := d.Config.Images[key.ID.Name]
		_, declared := d.Disk(key.Disk)
		if !declared || !t.Op.SameDeclaration(t.image, now) || t.Op.NeedsFile() && o.LostFile(key) || o.IsOtherDisk(key.Disk, t.on) {
			r.clearFailure(key)
		}
	}
	r.clearSuspicions(o.LostFile)
}
