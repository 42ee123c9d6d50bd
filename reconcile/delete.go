package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

const (
	maxResponseAge    = time.Minute     // of what was answered, where the loop was held up
	minDeleteRetry    = time.Second     // before a copy that could not go is withdrawn again
	deleteRetrySpread = 9 * time.Second // and up to so much more, so that two holders part
)

// finishDeletions lets go of the withdrawn copies about which everybody was asked, or takes
// the withdrawal back. It returns the removals, which are yet to be begun. o has to
// have been seen after the answers, and is changed to what holds then.
func (r *Reconciler) finishDeletions(d plan.Desired, o plan.Observed) (removals []func()) {
	for _, key := range r.confirmedDeletions() {
		run := r.running[key]
		answers, a := run.responses, run.job.Action
		run.responses = nil
		if run.stopped {
			r.Finish(result{key: key, err: context.Canceled, stopped: true})
			delete(o.Running, key)
			continue
		}
		if age := elapsed(run.started); age > maxResponseAge { // the loop was held up
			r.cancelDeletion(key, fmt.Errorf("the answers are %v old", age.Round(time.Second)))
			o.Failures[key] = r.failures[key].OnWallClock(time.Now(), o.Now)
			delete(o.Running, key)
			continue
		}
		if err := d.ConfirmDeletion(o.WithResponses(key.ID.Name, run.job.Query.Nodes, answers), a); err != nil {
			r.cancelDeletion(key, err)
			o.Failures[key] = r.failures[key].OnWallClock(time.Now(), o.Now)
			delete(o.Running, key)
			continue
		}
		run.deleting = true
		removals = append(removals, func() {
			go func() { r.ended <- result{key: key, err: run.job.Disk.Remove(key.ID)} }()
		})
	}
	return removals
}

// elapsed is how long ago since was, by the clock that says more: one stands still while
// the machine is suspended, and the other may be set back.
func elapsed(since time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(since), now.Round(0).Sub(since.Round(0)))
}

// confirmedDeletions are the withdrawn copies that can be decided on.
func (r *Reconciler) confirmedDeletions() []plan.CopyRef {
	var keys []plan.CopyRef
	for key, run := range r.running {
		if run.responses != nil {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b plan.CopyRef) int {
		return cmp.Or(plan.CompareIDs(a.ID, b.ID), plan.CompareDisks(a.Disk, b.Disk))
	})
	return keys
}

// cancelDeletion ends a job whose copy has to stay after all. Nothing has failed: it is
// tried again soon, and not at the same moment as another holder does.
func (r *Reconciler) cancelDeletion(key plan.CopyRef, why error) {
	run := r.running[key]
	delete(r.running, key)
	r.transfers.end(key, result{key: key, stopped: true, err: why})
	run.stop()
	now := time.Now()
	until := now.Add(minDeleteRetry + rand.N(deleteRetrySpread))
	last := r.failures[key].Failure
	next := plan.Failure{Op: run.job.Action.Op, Since: now, RetryAt: until, Message: why.Error()}
	next.Suspects, next.Unrepairable = last.Suspects, last.Unrepairable
	r.failures[key] = failureRecord{next, run.job.Image, r.disks.uuid(key.Disk)}
	r.log.Info("kept for now", "copy", key.String(), "reason", why.Error(), "again", until.Format(time.RFC3339))
}

// abortDeletions takes back the withdrawals that would be decided on next.
func (r *Reconciler) abortDeletions() {
	for _, key := range r.confirmedDeletions() {
		r.Finish(result{key: key, err: context.Canceled, stopped: true})
	}
}

// leavingCopies are the copies of this node that were withdrawn. Any goroutine may look.
type leavingCopies struct {
	mu   sync.Mutex
	keys map[plan.CopyRef]bool
}

func (l *leavingCopies) add(key plan.CopyRef) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		l.keys = map[plan.CopyRef]bool{}
	}
	l.keys[key] = true
}

// keep takes back all withdrawals but those that are said to go on.
func (l *leavingCopies) keep(goesOn func(plan.CopyRef) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.DeleteFunc(l.keys, func(key plan.CopyRef, _ bool) bool { return !goesOn(key) })
}

// all returns what is withdrawn at this moment.
func (l *leavingCopies) all() map[plan.CopyRef]bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.keys)
}
