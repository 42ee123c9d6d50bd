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

	loader   *schema.Loader
	settler  configdir.Debouncer
	removals configdir.RemovalConfirmer
	desired  Desired
	loaded   bool   // desired is of some configuration
	fault    string // what is wrong with the directory itself
	outside  string // why this node has no part in a configuration that is right
	result   schema.Result
	rounds   int
	asked    map[Key]bool      // copies that are to be verified
	troubled map[string]bool   // nodes and disks that had a problem at the last round
	cleanups map[Key]time.Time // copies that are to go if they may, and until when that holds
	uploads  map[Key]bool      // copies that a client is about to upload; until their jobs end
	asks     chan ask
	view     atomic.Pointer[View]
}

// NewLoop returns a Loop that works through r, which is its own from now on.
func NewLoop(r *Reconciler, o LoopOptions) *Loop {
	if o.Peers != nil {
		r.Join(o.Peers)
	}
	return &Loop{
		LoopOptions: o, reconciler: r, loader: schema.NewLoader(), desired: Desired{Node: o.Node},
		asked: map[Key]bool{}, cleanups: map[Key]time.Time{}, uploads: map[Key]bool{}, troubled: map[string]bool{}, asks: make(chan ask),
	}
}

// View is what a loop saw and planned in its last round. It is not changed any
// more.
type View struct {
	Desired  Desired
	Observed Observed
	Plan     Plan
	// Fault says what is wrong with the config directory as a whole, or that this node
	// is not in it; Config has the mistakes in its files.
	Fault  string
	Config schema.Result
	// Loaded says that some configuration was taken; before, there is only a Fault.
	Loaded bool
	Rounds int // since the start

	overview *overview // for Status; nil: it looks each time anew
}

// View returns the last round, or nil when there was none.
func (l *Loop) View() *View { return l.view.Load() }

// Status returns the last round together with what is under way now; false when
// there was no round.
func (l *Loop) Status() (Status, bool) {
	v := l.View()
	if v == nil {
		return Status{}, false
	}
	return v.Status(l.reconciler.Transfers()), true
}

// PeerServer returns a server that sends this node's state and copies to its peers.
func (l *Loop) PeerServer() *peer.Server {
	return peer.NewServer(l.reconciler.board, peerNode{l.reconciler, l})
}

// Transfers returns the actions under way.
func (l *Loop) Transfers() map[Key]Transfer { return l.reconciler.Transfers() }

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
	on := newOccasions(l.Interval)
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
func (l *Loop) await(ctx context.Context, poked <-chan struct{}, on *occasions) (due bool, asked ask, err error) {
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
	case asked = <-l.asks: // somebody wants something done about copies
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
func (l *Loop) finish(e outcome) {
	kind := l.reconciler.running[e.key].job.action.Kind
	l.reconciler.Finish(e)
	switch {
	case e.heard != nil && !e.stopped: // it has not ended
	case kind == Upload:
		delete(l.uploads, e.key)
	case kind == Verify && !e.stopped:
		delete(l.asked, e.key)
	}
}

// round does one round and returns how long until a wait of the plan ends.
func (l *Loop) round(ctx context.Context) time.Duration {
	if !l.loaded && l.fault == "" {
		return l.Interval // nothing is known of the directory yet
	}
	l.rounds++
	v := &View{Desired: l.desired, Fault: cmp.Or(l.fault, l.outside), Config: l.result, Loaded: l.loaded, Rounds: l.rounds, overview: &overview{}}
	if l.fault != "" {
		v.Desired.May = min(v.Desired.May, schema.NoDeletions)
	}
	v.Desired.Verify, v.Desired.Cleanup, v.Desired.Uploads = maps.Clone(l.asked), l.toGo(), maps.Clone(l.uploads)
	v.Observed, v.Plan = l.reconciler.Round(ctx, v.Desired)
	maps.DeleteFunc(l.asked, func(key Key, _ bool) bool {
		_, ready := v.Observed.Disks[key.Disk].ready(key.ID)
		return !ready && !v.Observed.Running[key]
	})
	l.forgetGone(v.Observed)
	l.forgetRefused(v.Plan, v.Observed)
	l.logNews(v.Desired, v.Observed)
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
