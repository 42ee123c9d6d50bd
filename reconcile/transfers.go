package reconcile

import (
	"maps"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/notification"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// transfers are the running actions with their progress, for status and metrics. Its methods may
// be called concurrently.
type transfers struct {
	mu      sync.Mutex
	running map[ident.CopyRef]job.Transfer
	ended   Counts
}

// Counts are totals since the start of the process.
type Counts struct {
	// Fetched is how many bytes came from upstreams, FromPeers how many from other nodes.
	Fetched, FromPeers int64
	// Done has the number of actions that succeeded, by operation.
	Done map[model.Op]int64
	// Failed has the number of actions that failed, by the class of their error: see
	// job.FailureClass.
	Failed map[string]int64
	// Proofs has the number of requested proofs of copies on other nodes, by outcome.
	Proofs map[plan.ProofResult]int64
	// Reports are the status documents that were sent to settings.report, and Notifications the messages to settings.notify.
	Reports, Notifications notification.DeliveryCounts
}

func (t *transfers) add(key ident.CopyRef, one job.Transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running == nil {
		t.running = map[ident.CopyRef]job.Transfer{}
	}
	t.running[key] = one
}

// end removes a running action and counts how it ended. An action that was stopped neither failed
// nor succeeded.
func (t *transfers) end(e jobEnd) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.running[e.key]
	delete(t.running, e.key)
	if t.ended.Done == nil {
		t.ended.Done, t.ended.Failed = map[model.Op]int64{}, map[string]int64{}
	}
	t.ended.addBytes(one)
	switch {
	case e.err == nil:
		t.ended.Done[one.Action.Op]++
	case !e.stopped && !upload.IsDiscarded(e.err):
		t.ended.Failed[job.FailureClass(e.err)]++
	}
}

// addProof counts the outcome of a requested proof.
func (t *transfers) addProof(result plan.ProofResult) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended.Proofs == nil {
		t.ended.Proofs = map[plan.ProofResult]int64{}
	}
	t.ended.Proofs[result]++
}

// counts returns the totals, which include the bytes of running actions.
func (t *transfers) counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.ended
	c.Done, c.Failed, c.Proofs = maps.Clone(c.Done), maps.Clone(c.Failed), maps.Clone(c.Proofs)
	for _, one := range t.running {
		c.addBytes(one)
	}
	return c
}

func (c *Counts) addBytes(t job.Transfer) {
	c.Fetched += t.Progress.UpstreamBytes.Load()
	c.FromPeers += t.Progress.PeerBytes.Load()
}

// all returns the running actions.
func (t *transfers) all() map[ident.CopyRef]job.Transfer {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.running)
}
