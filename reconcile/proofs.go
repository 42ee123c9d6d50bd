package reconcile

import (
	"cmp"
	"context"
	"errors"
	"maps"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// requestProofs requests the proofs that a deletion needs, adds them to the responses of the queried nodes,
// and calls done. d and o are the states at the withdrawal. It may be called by any goroutine.
func (r *Reconciler) requestProofs(ctx context.Context, d plan.Desired, o plan.Observed, run *activeJob, responses map[string]plan.Response, done func()) {
	r.ledger.ApplyToResponses(responses)
	a := run.order.Action
	asked := o.WithResponses(a.Image, run.deletion.queried, responses)
	open, closed := r.served.Open()
	proofs := map[ident.CopyRef]plan.Proof{}
	var tasks []system.ProofTask
	for _, p := range plan.NewRound(d, asked).ProofRequests(a, o.Unanswered) {
		t, err := newProofTask(d, asked, p, open, r.system.Secret())
		if err = cmp.Or(run.deletion.mark.mayBeSame(o, a.CopyRef(), p.Copy), closed, err); err != nil {
			proofs[p.Copy] = plan.Proof{Problem: err.Error()}
			continue
		}
		proofs[p.Copy] = plan.Proof{Problem: "no chunk was received in time"} // until a chunk arrives
		tasks = append(tasks, t)
	}
	finish := func(received map[ident.CopyRef]plan.Proof) {
		maps.Copy(proofs, received)
		for ref, p := range proofs {
			if p.Result == plan.ProofWrong && d.Owns(ref.Disk) {
				r.jobs.reportDamage(ref) // the copy is verified; no other node made a wrong claim
				p.Result = plan.ProofMissing
			}
			if ctx.Err() == nil {
				r.ledger.Judge(ref, asked.Disks[ref.Disk].Copies[ref.ID], p)
			}
			response := responses[ref.Disk.Node]
			if response.Proofs == nil {
				response.Proofs = map[ident.CopyRef]plan.Proof{}
			}
			response.Proofs[ref] = p
			responses[ref.Disk.Node] = response
		}
		done()
	}
	if len(tasks) == 0 || ctx.Err() != nil {
		finish(nil)
		return
	}
	r.system.Jobs.Prove(ctx, a, tasks, open, finish)
}

// withdrawnCopies returns o with the withdrawn copies of this node marked as leaving: several deletions
// may have begun together, after o was observed.
func withdrawnCopies(o plan.Observed, leaving map[ident.CopyRef]bool) plan.Observed {
	o.Disks = maps.Clone(o.Disks)
	for key := range leaving {
		seen := o.Disks[key.Disk]
		seen.Copies = maps.Clone(seen.Copies)
		o.Disks[key.Disk] = seen
		o.SetLeaving(key, model.Cleanup)
	}
	return o
}

// newProofTask returns the task of a request, or why the proof cannot be made. open are the disks of this node.
func newProofTask(d plan.Desired, o plan.Observed, p plan.ProofRequest, open system.Disks, secret uint64) (system.ProofTask, error) {
	own := d.Owns(p.Copy.Disk)
	switch {
	case p.Untrusted:
		return system.ProofTask{}, errors.New("no other node has the same chunk manifest")
	case own && open[p.Copy.Disk.Disk] == nil, p.Local != (ident.CopyRef{}) && open[p.Local.Disk.Disk] == nil:
		return system.ProofTask{}, errors.New("a disk of this node was closed")
	}
	c := o.Disks[p.Copy.Disk].Copies[p.Copy.ID]
	at := peer.Address{Node: p.Copy.Disk.Node, URL: d.Config.Nodes[p.Copy.Disk.Node].Address}
	return system.ProofTask{
		ProofRequest: p, Own: own, Secret: secret,
		Source: peer.Source{Address: at, Disk: p.Copy.Disk.Disk, ID: p.Copy.ID, ManifestDigest: c.ManifestDigest, Size: c.Size},
	}, nil
}
