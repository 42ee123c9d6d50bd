package reconcile

import (
	"maps"
	"sync"

	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// transfers are the running actions, for status and metrics.
type transfers struct {
	mu     sync.Mutex
	now    map[plan.CopyRef]job.Transfer
	counts Counts // of those that have ended
}

// Counts are totals since the start.
type Counts struct {
	// Fetched is how many bytes came from upstreams, FromPeers how many from other nodes.
	Fetched, FromPeers int64
	// Done are the actions that have succeeded.
	Done map[plan.Op]int64
	// Failed are the actions that have failed, by the class of their error.
	Failed map[string]int64
}

func (t *transfers) add(key plan.CopyRef, one job.Transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil {
		t.now = map[plan.CopyRef]job.Transfer{}
	}
	t.now[key] = one
}

// end counts how a job ended. A job that was stopped neither failed nor succeeded.
func (t *transfers) end(e jobEnd) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one := t.now[e.key]
	delete(t.now, e.key)
	if t.counts.Done == nil {
		t.counts = Counts{Done: map[plan.Op]int64{}, Failed: map[string]int64{}}
	}
	t.counts.Fetched += one.Progress.UpstreamBytes.Load()
	t.counts.FromPeers += one.Progress.PeerBytes.Load()
	switch {
	case e.err == nil:
		t.counts.Done[one.Action.Op]++
	case !e.stopped && !upload.IsDiscarded(e.err):
		t.counts.Failed[job.FailureClass(e.err)]++
	}
}

// Counts returns the totals so far, with those of running actions. It may be called
// concurrently.
func (r *Reconciler) Counts() Counts {
	t := &r.transfers
	t.mu.Lock()
	defer t.mu.Unlock()
	c := Counts{Fetched: t.counts.Fetched, FromPeers: t.counts.FromPeers, Done: maps.Clone(t.counts.Done), Failed: maps.Clone(t.counts.Failed)}
	for _, one := range t.now {
		c.Fetched += one.Progress.UpstreamBytes.Load()
		c.FromPeers += one.Progress.PeerBytes.Load()
	}
	return c
}

// Transfers returns the running actions. It may be called concurrently.
func (r *Reconciler) Transfers() map[plan.CopyRef]job.Transfer {
	r.transfers.mu.Lock()
	defer r.transfers.mu.Unlock()
	return maps.Clone(r.transfers.now)
}
