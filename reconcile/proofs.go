package reconcile

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// ProofTask is the request that a copy proves that it has its bytes: see plan.ProofRequest.
type ProofTask struct {
	Copy   ident.CopyRef
	Own    Disk        // of a copy on this node; nil: Source is asked
	Source peer.Source // of a copy on another node
	Size   int64       // of the copy
	// Secret selects the chunk. It was chosen after the withdrawal of the copy that may be deleted, so
	// that nobody could get the chunk from that copy in time.
	Secret uint64
	// Local is the copy on this node whose chunk manifest the chunk is compared with. Its Disk is nil
	// if there is none; the manifest is then the one that the other node serves.
	Local LocalCopy
}

// prover requests the proofs of deletions. Its methods may be called concurrently.
type prover struct {
	system System
	served *served
	claims *claims
	mark   mark // of the copy that may be deleted
	// damaged is called with a copy on this node that does not have its bytes any more.
	damaged func(ident.CopyRef)
}

// request requests the proofs that the deletion a needs, adds them to the responses of the queried nodes,
// and calls done. d and o are those of the withdrawal.
func (r prover) request(ctx context.Context, d plan.Desired, o plan.Observed, a plan.Action, queried []string, responses map[string]plan.Response, done func()) {
	r.claims.mark(responses)
	asked := withdrawnCopies(o, r.served.leaving.all()).WithResponses(a.Image, queried, responses)
	var tasks []ProofTask
	for _, p := range plan.NewRound(d, asked).ProofRequests(a, r.claims.unanswered()) {
		t, err := r.task(d, asked, p)
		if err = cmp.Or(r.mark.mayBeSame(o, a.CopyRef(), p.Copy), err); err != nil {
			setProof(responses, p.Copy, plan.Proof{Problem: err.Error()})
			continue
		}
		setProof(responses, p.Copy, plan.Proof{Problem: "no chunk was received in time"}) // until one is
		tasks = append(tasks, t)
	}
	if len(tasks) == 0 || ctx.Err() != nil {
		done()
		return
	}
	r.system.Jobs.Prove(ctx, a, tasks, func(proofs map[ident.CopyRef]plan.Proof) {
		for ref, p := range proofs {
			if p.Result == plan.ProofWrong && d.Owns(ref.Disk) {
				r.damaged(ref) // it is verified, and nobody claims anything
				p.Result = plan.ProofMissing
			}
			setProof(responses, ref, p)
		}
		done()
	})
}

// withdrawnCopies returns o with the copies that this node has withdrawn marked as leaving: deletions
// may have begun together, after o was observed.
func withdrawnCopies(o plan.Observed, leaving map[ident.CopyRef]bool) plan.Observed {
	o.Disks = maps.Clone(o.Disks)
	for key := range leaving {
		seen := o.Disks[key.Disk]
		seen.Copies = maps.Clone(seen.Copies)
		o.Disks[key.Disk] = seen
		o.MarkLeaving(key, model.Cleanup)
	}
	return o
}

var (
	errUntrustedManifest = errors.New("no other node has the same chunk manifest")
	errDiskClosed        = errors.New("a disk of this node was closed")
)

// task returns the task of a request, or why the proof cannot be made.
func (r prover) task(d plan.Desired, o plan.Observed, p plan.ProofRequest) (ProofTask, error) {
	if p.Untrusted {
		return ProofTask{}, errUntrustedManifest
	}
	c := o.Disks[p.Copy.Disk].Copies[p.Copy.ID]
	at := peer.Address{Node: p.Copy.Disk.Node, URL: d.Config.Nodes[p.Copy.Disk.Node].Address}
	t := ProofTask{
		Copy: p.Copy, Size: c.Size, Secret: r.system.Secret(),
		Source: peer.Source{Address: at, Disk: p.Copy.Disk.Disk, ID: p.Copy.ID, ManifestDigest: c.ManifestDigest, Size: c.Size},
	}
	if d.Owns(p.Copy.Disk) {
		if t.Own = r.served.handle(p.Copy.Disk.Disk); t.Own == nil {
			return ProofTask{}, errDiskClosed
		}
	}
	if p.Local != (ident.CopyRef{}) {
		t.Local = LocalCopy{Disk: r.served.handle(p.Local.Disk.Disk), ID: p.Local.ID}
		if t.Local.Disk == nil {
			return ProofTask{}, errDiskClosed
		}
	}
	return t, nil
}

// setProof adds the outcome of a proof to the response of the node of the copy.
func setProof(responses map[string]plan.Response, ref ident.CopyRef, p plan.Proof) {
	response := responses[ref.Disk.Node]
	if response.Proofs == nil {
		response.Proofs = map[ident.CopyRef]plan.Proof{}
	}
	response.Proofs[ref] = p
	responses[ref.Disk.Node] = response
}

// requestChunks requests the proofs of all tasks at the same time.
func requestChunks(ctx context.Context, client *peer.Client, tasks []ProofTask) map[ident.CopyRef]plan.Proof {
	ctx, cancel := context.WithTimeout(ctx, ProofTimeout)
	defer cancel()
	var mu sync.Mutex
	var all sync.WaitGroup
	proofs := map[ident.CopyRef]plan.Proof{}
	for _, t := range tasks {
		all.Go(func() {
			p := requestChunk(ctx, client, t)
			mu.Lock()
			defer mu.Unlock()
			proofs[t.Copy] = p
		})
	}
	all.Wait()
	return proofs
}

// requestChunk requests or makes one proof.
func requestChunk(ctx context.Context, client *peer.Client, t ProofTask) plan.Proof {
	err := func() error {
		chunk, err := selectChunk(ctx, client, t)
		if err != nil {
			return err
		}
		if t.Own != nil {
			return folderOf(t.Own).Prove(t.Copy.ID, chunk)
		}
		return client.Prove(ctx, t.Source, chunk)
	}()
	switch {
	case err == nil:
		return plan.Proof{Result: plan.ProofPassed}
	case errors.Is(err, peer.ErrWrongChunk), t.Own != nil && (errors.Is(err, disk.ErrDamaged) || disk.IsMediaError(err)):
		return plan.Proof{Result: plan.ProofWrong, Problem: err.Error()}
	}
	return plan.Proof{Problem: err.Error()}
}

// selectChunk selects the chunk of a proof from a manifest of this node, if it has one, or from the
// manifest that the other node serves.
func selectChunk(ctx context.Context, client *peer.Client, t ProofTask) (disk.SelectedChunk, error) {
	if t.Local.Disk == nil {
		return client.SelectChunk(ctx, t.Source, t.Size, t.Secret)
	}
	m, err := folderOf(t.Local.Disk).Manifest(t.Local.ID)
	if err != nil {
		return disk.SelectedChunk{}, err
	}
	chunk, err := disk.SelectChunk(m.Encoded(), m.Size(), t.Secret)
	return chunk, errors.Join(err, m.Close())
}
