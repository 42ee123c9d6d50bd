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
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// ErrNothingFailed: no action for an image waits on this node because an attempt failed.
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
// declared image on disks of this node, also after a failure that nothing else but a changed
// declaration would end. Without disks it applies to all disks of this node. Whether an attempt
// starts is decided by the plan as always: by the safety rules, the limits and suspensions.
//
// It returns the attempts, sorted by disk, at least one. The error is ErrNotDeclared, ErrNothingFailed,
// the cause of the end of ctx, or another one before the config directory was read.
func (l *Loop) Retry(ctx context.Context, image string, on []ident.DiskRef) ([]Attempt, error) {
	return await(ctx, func(done func([]Attempt, error)) { l.RequestRetry(image, on, done) })
}

// RequestRetry is Retry that does not wait: done is called with the outcome, at once or by the next Step.
func (l *Loop) RequestRetry(image string, on []ident.DiskRef, done func([]Attempt, error)) {
	declared, err := declaredImage(l.View(), image)
	if err != nil {
		done(nil, fmt.Errorf("retry %s: %w", image, err))
		return
	}
	var copies []ident.CopyRef
	l.queue.add(request{
		note: func(*requested) {
			copies = l.reconciler.failures.endDelays(declared.ID, on, l.reconciler.clock.now().Steady)
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

// endDelays ends the wait after the failures of an image on the disks, on all disks if none is given,
// and returns the copies, sorted. The numbers of attempts and the suspicions stay. Deletions are left
// out, because their delays separate the nodes that delete copies of one image, and uploads, because
// only a client can start them.
func (f failures) endDelays(id ident.ID, on []ident.DiskRef, now time.Time) (copies []ident.CopyRef) {
	for key, record := range f {
		waits := record.Attempts > 0 && (record.Final || record.RetryAt.After(now))
		switch {
		case key.ID != id, len(on) > 0 && !slices.Contains(on, key.Disk), !waits:
		case record.Op.Deletes(), record.Op == model.Upload:
		default:
			record.Final, record.RetryAt = false, now
			f[key] = record
			copies = append(copies, key)
		}
	}
	slices.SortFunc(copies, func(a, b ident.CopyRef) int { return ident.DiskRef.Compare(a.Disk, b.Disk) })
	return copies
}

// whyNotFailed returns what an image waits for if it is not a failed attempt on this node: "" or a text
// that begins with a colon.
func whyNotFailed(v *status.View, id ident.ID) string {
	var reasons []string
	byDisk := func(a, b ident.CopyRef) int { return ident.DiskRef.Compare(a.Disk, b.Disk) }
	for _, key := range slices.SortedFunc(maps.Keys(v.Observed.Failures), byDisk) {
		f := v.Observed.Failures[key]
		if key.ID != id || v.Desired.Owns(key.Disk) || f.Attempts == 0 {
			continue
		}
		reason := fmt.Sprintf("it failed on %s: call the daemon of node %s", key.Disk, key.Disk.Node)
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
