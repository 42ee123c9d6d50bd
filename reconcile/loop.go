package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// LoopOptions say what a Loop keeps as it is declared where.
type LoopOptions struct {
	Dir      string        // the config directory
	Interval time.Duration // a look at disks and directory at least this often
	Node     string        // of the configuration
	Disks    []string      // see Desire
	Peers    *peer.Client  // asks the other nodes that are declared; nil: nobody is asked
	Log      *slog.Logger
}

// Loop is a daemon's: it keeps the disks of one node as a config directory says,
// for as long as it runs. But for Run, its methods may be called by any goroutine.
type Loop struct {
	LoopOptions
	reconciler *Reconciler

	loader          *schema.Loader
	settler         configdir.Debouncer
	removals        configdir.RemovalConfirmer
	desired         plan.Desired
	loaded          bool   // desired is of some configuration
	fault           string // what is wrong with the directory itself
	notDeclared     string // why this node has no part in a configuration that is right
	result          schema.Result
	rounds          int
	verifyRequested map[plan.CopyRef]bool      // copies that are to be verified
	unhealthy       map[string]bool            // nodes and disks that had a problem at the last round
	cleanups        map[plan.CopyRef]time.Time // copies that are to go if they may, and until when that holds
	uploads         map[plan.CopyRef]bool      // copies that a client is about to upload; until their jobs end
	requests        chan request
	view            atomic.Pointer[status.View]
}

// NewLoop returns a Loop that works through r, which is its own from now on.
func NewLoop(r *Reconciler, o LoopOptions) *Loop {
	if o.Peers != nil {
		r.SetPeers(o.Peers)
	}
	return &Loop{
		LoopOptions: o, reconciler: r, loader: schema.NewLoader(), desired: plan.Desired{Node: o.Node},
		verifyRequested: map[plan.CopyRef]bool{}, cleanups: map[plan.CopyRef]time.Time{}, uploads: map[plan.CopyRef]bool{}, unhealthy: map[string]bool{}, requests: make(chan request),
	}
}

// View returns the last round, or nil when there was none.
func (l *Loop) View() *status.View { return l.view.Load() }

// Status returns the last round together with what is under way now; false when
// there was no round.
func (l *Loop) Status() (status.Status, bool) {
	v := l.View()
	if v == nil {
		return status.Status{}, false
	}
	return v.Status(l.reconciler.Transfers()), true
}

// PeerServer returns a server that sends this node's state and copies to its peers.
func (l *Loop) PeerServer() *peer.Server {
	return peer.NewServer(l.reconciler.published, peerNode{l.reconciler, l})
}

// Transfers returns the actions under way.
func (l *Loop) Transfers() map[plan.CopyRef]job.Transfer { return l.reconciler.Transfers() }

// Counts returns totals since the start.
func (l *Loop) Counts() Counts { return l.reconciler.Counts() }

// Run works until ctx is done, and returns nil then. It stops what is under way,
// keeping what was transferred, and lets go of the disks.
//
// It fails when it cannot begin: this node is not declared, or another process
// writes to one of its disks. Later neither ends it.
func (l *Loop) Run(ctx context.Context) error {
	poked := make(chan struct{}, 1)
	var watch sync.WaitGroup
	defer watch.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch.Go(func() { configdir.Watch(ctx, l.Dir, l.Interval, poked, l.reportWatch) })
	return errors.Join(l.run(ctx, poked), l.reconciler.Close())
}

func (l *Loop) run(ctx context.Context, poked <-chan struct{}) error {
	on := newTriggers(l.Interval)
	defer on.stop()
	for ctx.Err() == nil {
		due, asked, err := l.await(ctx, poked, on)
		if err != nil {
			return err
		}
		if !due {
			continue
		}
		on.wake.Reset(l.round(ctx))
		on.last = time.Now()
		asked.answer(l.View())
	}
	return nil
}

// await waits for something to happen, and says whether it is worth a round.
func (l *Loop) await(ctx context.Context, poked <-chan struct{}, on *triggers) (due bool, asked request, err error) {
	select {
	case <-ctx.Done():
		return false, asked, nil
	case <-poked: // something may have changed in the directory
		on.look.Reset(l.settler.DelayAfterEvent(time.Now()))
		return false, asked, nil
	case <-on.look.C: // it is time to look at the directory
		taken, again, err := l.reload(ctx)
		if again > 0 {
			on.look.Reset(again)
		}
		return taken, asked, err
	case <-on.tick.C: // events may have been missed, and disks have none
		on.look.Reset(0)
	case e := <-l.reconciler.Ended(): // which may make room for others
		l.finish(e)
	case asked = <-l.requests: // somebody wants something done about copies
		asked.note()
	case <-on.changed: // another node has news; it may have more in a moment
		on.collect()
		return false, asked, nil
	case <-on.news.C:
		on.changed = l.reconciler.Changed()
	case <-on.wake.C: // a wait is over
	}
	return true, asked, nil
}

// finish takes note of how a job ended. What was asked about its copy meanwhile is done
// only if the job was about that.
func (l *Loop) finish(e result) {
	kind := l.reconciler.running[e.key].job.Action.Op
	l.reconciler.Finish(e)
	switch {
	case e.responses != nil && !e.stopped: // it has not ended
	case kind == plan.Upload:
		delete(l.uploads, e.key)
	case kind == plan.Verify && !e.stopped:
		delete(l.verifyRequested, e.key)
	}
}

// round does one round and returns how long until a wait of the plan ends.
func (l *Loop) round(ctx context.Context) time.Duration {
	if !l.loaded && l.fault == "" {
		return l.Interval // nothing is known of the directory yet
	}
	l.rounds++
	v := &status.View{Desired: l.desired, Fault: cmp.Or(l.fault, l.notDeclared), Config: l.result, Loaded: l.loaded, Rounds: l.rounds, Placements: &status.PlacementCache{}}
	if l.fault != "" {
		v.Desired.Allowed = min(v.Desired.Allowed, schema.NoDeletions)
	}
	v.Desired.Verify, v.Desired.Cleanup, v.Desired.Uploads = maps.Clone(l.verifyRequested), l.pendingCleanups(), maps.Clone(l.uploads)
	v.Observed, v.Plan = l.reconciler.Round(ctx, v.Desired)
	maps.DeleteFunc(l.verifyRequested, func(key plan.CopyRef, _ bool) bool {
		_, ready := v.Observed.Disks[key.Disk].Ready(key.ID)
		return !ready && !v.Observed.Running[key]
	})
	l.dropFinishedCleanups(v.Observed)
	l.dropRejectedCleanups(v.Plan, v.Observed)
	l.logHealthChanges(v.Desired, v.Observed)
	if v.Desired.Removed != nil {
		v.Desired.Removed = l.removals.Clone().Confirmed // it changes; the view must not
	}
	l.view.Store(v)
	next := l.Interval
	for _, a := range v.Plan.Actions {
		if wait := a.Until.Sub(v.Observed.Now); !a.Until.IsZero() && wait > 0 {
			next = min(next, wait)
		}
	}
	return next
}

func (l *Loop) reportWatch(err error) {
	if err != nil {
		l.Log.Warn("no events from the config directory; it is looked at periodically", "error", err)
		return
	}
	l.Log.Info("events from the config directory again")
}
