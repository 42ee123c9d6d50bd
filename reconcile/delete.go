package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
	"github.com/seed-26586806/backing-image-manager/reconcile/evidence"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// deletion is the deletion of one copy by its holder. Every deletion, for any reason, goes
// through these steps (rules D1, D2, H3, D3 and D4):
//
//	withdraw   The copy is marked as leaving. From here on direct queries show it as
//	           leaving. A mark in its folder shows which nodes have the same folder (marks.go).
//	           The round then publishes its state and begins the queries.
//	query      The holder queries the node of each copy that it counts on. For an orphan, and
//	           for the complete file of an older generation, it queries all other nodes. Every
//	           query is direct, and starts after the withdrawal. Then each copy that the
//	           responses let it count on proves that it has its bytes (proofs.go).
//	confirm    When the queries have ended, the next round observes the disks again, and plans
//	           once more with the responses. Published states cannot support the deletion any
//	           more, but what they said against it, such as a use, still counts
//	           (plan.Observed.WithResponses, plan.Round.ConfirmDeletion).
//	delete     Disk.Remove renames the folder aside, checks again for users and for the mark, and deletes it.
//
// If the plan does not confirm the deletion, the holder cancels it: the copy stays, and the
// deletion may be tried again after a random delay. Responses show the copy as leaving until the
// deletion has ended and the next round has published the state of this node. So a peer that sees
// the copy as not leaving also sees whether the copy still exists.
//
// Of two holders that withdraw at the same time, at least one sees the other copy as leaving,
// because each withdraws before it queries. This holder cancels. The random delay keeps the two
// from withdrawing together again.
type deletion struct {
	phase     deletionPhase
	unproven  bool                     // a requested proof did not pass
	mark      mark                     // of the copy
	orphan    bool                     // the image is not declared: the deletion counts on no other copy, so no node looks for its mark
	shared    error                    // why another copy has, or may have, the same folder; nil: it has its own
	queried   []string                 // the nodes to query
	responses map[string]plan.Response // by node; a node that did not respond is missing
}

type deletionPhase int

const (
	withdrawn  deletionPhase = iota // the queries of the peers run, and then the proofs
	confirming                      // both have ended; the next round decides
	deleting                        // confirmed: the job that deletes the copy runs
)

const (
	maxResponseAge    = time.Minute     // a deletion with older responses is cancelled: the loop was delayed
	minDeleteRetry    = time.Second     // the least delay after a cancelled deletion
	deleteRetrySpread = 9 * time.Second // the random part of this delay
	// maxProofBackoff is the largest factor of the delay while proofs do not pass: about 5 minutes.
	maxProofBackoff = 32
)

// withdraw begins the deletion of a copy (D1). It returns the function that queries the peers (D2).
// The caller must publish the withdrawal before it calls query: a response from before the
// withdrawal could count on this copy.
func (r *Reconciler) withdraw(ctx context.Context, now *plan.Round, run *activeJob) (query func()) {
	d, o, a, key := now.Desired, now.Observed, run.order.Action, run.key()
	run.deletion = &deletion{queried: now.NodesToQuery(a)}
	_, declared := d.Config.Images[a.Image]
	run.deletion.orphan = !declared
	run.deletion.mark = newMark(run.on[a.Disk], key.ID, r.system.Secret)
	if run.deletion.mark.problem == nil {
		run.order.Mark = run.deletion.mark.Mark
	}
	r.served.Withdraw(key)
	nodes := make([]peer.Address, 0, len(run.deletion.queried))
	for _, name := range run.deletion.queried {
		nodes = append(nodes, peer.Address{Node: name, URL: d.Config.Nodes[name].Address})
	}
	m, unmarked := run.deletion.mark, r.jobs.deletesUnmarked(key)
	if run.deletion.orphan {
		m, unmarked = mark{}, nil
	}
	return func() {
		r.system.Jobs.Query(ctx, a, m.Name, nodes, func(states map[string]model.Node) {
			withdrawn := r.served.Withdrawn() // read once: between two reads, the withdrawal of a copy with the mark of another node may end
			responses, shared := responsesFromPeers(d.Config.Nodes, states), cmp.Or(unmarked, m.seenBy(key, states, &r.served, withdrawn))
			r.requestProofs(ctx, d, withdrawnCopies(o, withdrawn), run, responses, func() {
				r.jobs.reports.add(report{run: run, responses: responses, shared: shared, err: ctx.Err(), stopped: ctx.Err() != nil})
			})
		})
	}
}

// handleResponses lets the next round decide on a deletion.
func (j *jobs) handleResponses(e report) {
	deletion := e.run.deletion
	deletion.phase, deletion.responses, deletion.shared = confirming, e.responses, e.shared
	for _, response := range e.responses {
		for _, p := range response.Proofs {
			j.addProof(p.Result)
			deletion.unproven = deletion.unproven || p.Result != plan.ProofPassed
		}
	}
}

// decideDeletions decides on the deletions whose queries have ended (D2, D3), and returns the
// functions that begin the confirmed deletions (D4). o must have been observed after the responses. It
// removes the jobs of cancelled deletions from o, so that this round plans for their copies like
// for other existing copies.
func (r *Reconciler) decideDeletions(d plan.Desired, o plan.Observed) (begin []func()) {
	for _, key := range r.jobs.deletionsToConfirm() {
		run := r.jobs.running[key]
		if run.stopped != "" {
			r.endJob(report{run: run, err: context.Canceled, stopped: true})
			o.DropJob(key)
			continue
		}
		if err := run.confirm(d, o, r.clock.elapsed(run.started)); err != nil {
			r.cancelDeletion(run, err)
			o.Failures[key] = r.failures[key].Translated(r.clock.now().Steady, o.Now)
			o.DropJob(key)
			continue
		}
		run.deletion.phase = deleting
		run.order.Counted = run.deletion.counted()
		begin = append(begin, func() {
			// A confirmed deletion takes milliseconds. ctx must not interrupt it half-way.
			r.system.Jobs.Start(context.Background(), run.order, run.on, func(err error) { r.jobs.reports.add(report{run: run, err: err}) })
		})
	}
	return begin
}

// counted returns the copies that a deletion without a mark counts on, nil with a mark. Only copies of this node can prove themselves then.
func (d *deletion) counted() (refs []ident.CopyRef) {
	if d.mark.problem == nil {
		return nil
	}
	for _, response := range d.responses {
		for ref, p := range response.Proofs {
			if p.Result == plan.ProofPassed {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// confirm returns nil if the observation o and the responses allow the deletion of the copy, and
// otherwise the reason against it. age is how long ago the queries began.
func (run *activeJob) confirm(d plan.Desired, o plan.Observed, age time.Duration) error {
	if age > maxResponseAge {
		return fmt.Errorf("not deleted: the responses of other nodes are already %v old", age.Round(time.Second))
	}
	a := run.order.Action
	if run.deletion.shared != nil {
		return run.deletion.shared
	}
	o = o.WithResponses(a.CopyRef().ID.Name, run.deletion.queried, run.deletion.responses)
	if err := run.deletion.mark.mayBeUsed(o, run.key()); err != nil && !run.deletion.orphan {
		return err
	}
	return plan.NewRound(d, o).ConfirmDeletion(a)
}

// cancelDeletion ends a deletion that is not confirmed (D3). This is no failure: Attempts stays 0,
// and the deletion is tried again soon. The random delay separates the attempts of several
// holders. If deletions in succession are cancelled because a copy did not prove that it has its
// bytes, the delay doubles each time up to a limit, because the cause may persist.
func (r *Reconciler) cancelDeletion(run *activeJob, reason error) {
	r.jobs.remove(report{run: run, err: reason, stopped: true})
	key, now := run.key(), r.clock.now().Steady
	delay := minDeleteRetry + time.Duration(r.system.Random()*float64(deleteRetrySpread))
	unproven := 0
	if run.deletion.unproven {
		unproven = r.failures[key].Unproven + 1
		delay = backoff.Doubling{First: delay, Max: maxProofBackoff * delay}.After(unproven - 1)
	}
	until := now.Add(delay)
	last := r.failures[key].Failure
	next := model.Failure{Op: run.order.Action.Op, Since: now, RetryAt: until, Message: reason.Error()}
	next.Suspects, next.Unrepairable = last.Suspects, last.Unrepairable // a deletion does not change them
	r.failures[key] = evidence.Failure{Failure: next, Image: run.order.Image, DiskUUID: r.disks.uuid(key.Disk), Unproven: unproven}
	r.log.Info("deletion cancelled", "copy", key.String(), "reason", reason.Error(), "retry", until.Format(time.RFC3339))
}

// abortDeletions ends the deletions that the next round would decide on. Their copies stay.
func (r *Reconciler) abortDeletions() {
	for _, key := range r.jobs.deletionsToConfirm() {
		r.endJob(report{run: r.jobs.running[key], err: context.Canceled, stopped: true})
	}
}
