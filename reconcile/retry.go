package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/evidence"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// ErrNothingFailed: on this node, no failed attempt delays an action for the image.
var ErrNothingFailed = errors.New("no failed attempt delays it on this node")

// Attempt is the next attempt of an action that has failed, after a client requested it.
type Attempt struct {
	// Action is what is planned for the copy: the action, or an idle one with the reason against it.
	Action plan.Action
	Number int // of the attempt: 2 is the first retry
	// Started: a job runs. Otherwise the action, if it is not idle, waits for a free slot.
	Started bool
}

// Retry ends the wait after the failed attempts to create, verify, repair or back up copies of a
// declared image on disks of this node, also after a failure that only a changed declaration
// would end. Without disks it applies to all disks of this node. The plan decides as always
// whether an attempt starts: by the safety rules, the limits and suspensions.
//
// It returns the attempts, sorted by disk, at least one. The error is ErrNotDeclared, ErrNothingFailed,
// context.Cause(ctx), or another error before the config directory was read.
func (l *Loop) Retry(ctx context.Context, image string, on []ident.DiskRef) ([]Attempt, error) {
	return await(ctx, func(done func([]Attempt, error)) { l.RequestRetry(image, on, done) })
}

// RequestRetry does what Retry does, but does not wait: done is called with the outcome, at once or by the next Step.
func (l *Loop) RequestRetry(image string, on []ident.DiskRef, done func([]Attempt, error)) {
	declared, err := declaredImage(l.View(), image)
	if err != nil {
		done(nil, fmt.Errorf("retry %s: %w", image, err))
		return
	}
	var copies []ident.CopyRef
	l.queue.add(request{
		note: func(*requested) {
			copies = l.reconciler.failures.EndDelays(declared.ID, on, l.reconciler.clock.now().Steady)
		},
		planned: func(v *status.View) {
			if len(copies) == 0 {
				done(nil, fmt.Errorf("retry %s: %w%s", image, ErrNothingFailed, whyNotFailed(v, declared.ID)))
				return
			}
			attempts := make([]Attempt, len(copies))
			for i, key := range copies {
				a, found := plannedFor(v, key)
				if !found {
					a = plan.NewAction(model.Wait, key, model.Reason{Code: plan.CodeDesired, Text: "nothing is planned for it any more"}, 0)
				}
				attempts[i] = Attempt{a, l.reconciler.failures[key].Attempts + 1, !a.Idle() && l.reconciler.jobs.running[key] != nil}
			}
			done(attempts, nil)
		},
	})
}

// recordFailure records the failure of a job until the next attempt, and the evidence against the nodes from which the job read. It
// returns the failure.
func (r *Reconciler) recordFailure(run *activeJob, err error) model.Failure {
	now, key, a := r.clock.now(), run.key(), run.order.Action
	if until := a.Pinned.Until; !until.IsZero() {
		a.Pinned.Until = now.Steady.Add(until.Sub(now.Wall))
	}
	last := r.failures[key]
	next := job.NextFailure(last.Failure, a, err, now.Steady, r.system.Random())
	reads := last.Reads.After(a, run.order.Image, next.Fault, run.started.Steady, run.order.Progress.PeerBytes.Load())
	wrong, isWrong := errors.AsType[*job.WrongSourcesError](err)
	again := false // another source can be used at once
	switch {
	case errors.Is(err, job.ErrOtherBytes):
		r.ledger.Strike(a.From, err.Error(), run.order.Digest)
	case a.VerifiesPeer():
		r.ledger.NoteSilence(a.From.Disk.Node, run.order.Digest)
	case isWrong:
		again = r.ledger.StrikeSources(wrong.Sources, run.order.Digest, err.Error())
	case reads.AreHopeless(run.order.Image.BandwidthLimit, run.recovery, now.Steady):
		again = r.ledger.StrikeSources(run.order.PeerCopies(), run.order.Digest, err.Error())
	}
	if again {
		next.RetryAt = now.Steady
	}
	r.failures[key] = evidence.Failure{Failure: next, Image: run.order.Image, DiskUUID: r.disks.uuid(key.Disk), Reads: reads}
	return next
}

// retryText returns when a failed action is tried again, for the log.
func retryText(f model.Failure) string {
	switch {
	case f.AppliesTo(model.Upload):
		return "with the next upload by a client"
	case f.Final && !f.RetryAt.IsZero():
		return f.RetryAt.UTC().Format(time.RFC3339) + ", or when the declaration changes"
	case f.Final:
		return "when the declaration changes, or with backing-image retry"
	case f.NeedsSpace > 0:
		return "when " + plan.FormatBytes(f.NeedsSpace) + " are free"
	}
	return f.RetryAt.UTC().Format(time.RFC3339)
}

// whyNotFailed returns what an image waits for when no failed attempt on this node delays it. The
// text is "" or begins with a colon.
func whyNotFailed(v *status.View, id ident.ID) string {
	var reasons []string
	byDisk := func(a, b ident.CopyRef) int { return ident.DiskRef.Compare(a.Disk, b.Disk) }
	for _, key := range slices.SortedFunc(maps.Keys(v.Observed.Failures), byDisk) {
		f := v.Observed.Failures[key]
		if key.ID != id || v.Desired.Owns(key.Disk) || f.Attempts == 0 {
			continue
		}
		reason := fmt.Sprintf("it failed on %s: send the request to the daemon of node %s", key.Disk, key.Disk.Node)
		if address := v.Desired.Config.Nodes[key.Disk.Node].Address; address != "" {
			reason += " with --url " + text.RedactURL(address)
		}
		reasons = append(reasons, reason)
	}
	for _, a := range v.Plan.Actions {
		if key := a.CopyRef(); key.ID == id && v.Desired.Owns(key.Disk) {
			reasons = append(reasons, fmt.Sprintf("%s: %s: %s", key.Disk, a.Op, a.Text))
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	return ": " + strings.Join(reasons, "; ")
}
