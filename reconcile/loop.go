package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/once"
	"github.com/seed-26586806/backing-image-manager/reconcile/config"
	"github.com/seed-26586806/backing-image-manager/reconcile/delivery"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/notification"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// LoopOptions say what a Loop reconciles.
type LoopOptions struct {
	Dir      string        // the config directory
	Interval time.Duration // the longest time between two rounds, and between two reads of Dir
	Node     string        // the name of this node
	Disks    []string      // see plan.NewDesired
	Client   fetch.Client  // sends reports and notifications
	// SignedCommits are the rules for commits of Dir; nil: Dir need not be in a checkout, and commits need no signature.
	SignedCommits *config.SignedCommits
	Log           *slog.Logger
}

// Loop is the reconcile loop of a daemon: it keeps the disks of one node in the state that a
// config directory declares.
//
// Two methods change a Loop: Apply for a read of the config directory, and Step for everything
// that needs a round. Run waits for events and calls both, while another goroutine reads the
// directory. A simulation calls Apply and Step itself. Run, Apply and Step are for one goroutine. All
// other methods may be called concurrently.
type Loop struct {
	options    LoopOptions
	reconciler *Reconciler

	// For the goroutine of Run, Apply and Step.
	config    *config.Configuration
	requested requested
	rounds    int // since the start

	// For any goroutine.
	directory *config.Directory
	queue     *inbox[request]
	view      atomic.Pointer[status.View]
	reporter  *delivery.Reporter
	nextRound atomic.Pointer[chan struct{}] // closed at the end of the next round
	notifier  *notification.Notifier
}

// NewLoop returns a Loop for r, which the Loop owns from now on.
func NewLoop(r *Reconciler, o LoopOptions) *Loop {
	l := &Loop{
		options: o, reconciler: r, requested: newRequested(), queue: newInbox[request](),
		directory: config.NewDirectory(o.Dir, o.Interval, o.SignedCommits, o.Log),
	}
	l.config = config.New(config.Options{
		Dir: o.Dir, Node: o.Node, Disks: o.Disks, Commits: o.SignedCommits, Log: o.Log,
		Now: func() time.Time { return r.clock.now().Wall },
		Open: func(d plan.Desired) error {
			r.Observe(d)
			return r.disks.onlyLocked()
		},
		Opened: r.Folders,
	})
	next := make(chan struct{})
	l.nextRound.Store(&next)
	observations := func() map[string]peer.Observation { return r.system.Peers.Observations() }
	send, rounds := delivery.NewSender(o.Client), delivery.Rounds{View: l.View, NextRound: l.NextRound, Transfers: l.Transfers}
	l.reporter, l.notifier = delivery.NewReporter(rounds, o.Node, send, o.Log), notification.New(l.View, observations, send, o.Log)
	r.conditions = l.notifier.Conditions
	r.served.Verify = func(ctx context.Context, image string) { _, _ = l.Verify(ctx, image) }
	return l
}

// View returns the last round, nil before the first one.
func (l *Loop) View() *status.View { return l.view.Load() }

// NextRound returns a channel that is closed when View returns a later round. A caller that waits must call NextRound before
// View: otherwise it could miss a round.
func (l *Loop) NextRound() <-chan struct{} { return *l.nextRound.Load() }

// publish makes v the last round.
func (l *Loop) publish(v *status.View) {
	l.view.Store(v)
	next := make(chan struct{})
	close(*l.nextRound.Swap(&next))
}

// Status returns the last round, and its document with the jobs that run now. Before the first round, it returns nil.
func (l *Loop) Status() (*status.View, status.Status) {
	v := l.View()
	if v == nil {
		return nil, status.Status{}
	}
	s := v.Status(l.Transfers())
	s.Report, s.Notify = l.reporter.Outcome.Status(), l.notifier.Outcome.Status()
	return v, s
}

// PeerServer returns a server that sends this node's state and copies to its peers.
func (l *Loop) PeerServer() *peer.Server {
	return peer.NewServer(l.reconciler.local.Published, l.PeerNode())
}

// PeerNode returns what peers can request of this node, besides its published state.
func (l *Loop) PeerNode() peer.Node { return &l.reconciler.served }

// Transfers returns the running actions.
func (l *Loop) Transfers() map[ident.CopyRef]job.Transfer { return l.reconciler.Transfers() }

// Counts returns totals since the start.
func (l *Loop) Counts() Counts {
	c := l.reconciler.jobs.totals()
	c.Reports, c.Notifications = l.reporter.Outcome.Counts(), l.notifier.Outcome.Counts()
	return c
}

// Run reconciles until ctx ends, and returns nil then. It stops all jobs, keeps what was
// transferred, and releases the disks.
//
// It returns an error if it cannot start: this node is not declared, or no disk can be used,
// because another process writes to them. After the start, these problems do not end Run.
func (l *Loop) Run(ctx context.Context) error {
	var beside sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	events := make(chan struct{}, 1)
	watch := func(err error) { l.reconciler.health.SetError(configNotWatched, l.options.Dir, err) }
	beside.Go(func() { configdir.Watch(ctx, l.options.Dir, l.options.Interval, events, watch) })
	beside.Go(func() { l.directory.Run(ctx, events) })
	beside.Go(func() { l.reporter.Run(ctx) })
	beside.Go(func() { l.notifier.Run(ctx) })
	replicas := newReplicaWatch(l.reconciler.health)
	defer replicas.close()
	err := l.run(ctx, replicas)
	cancel()
	beside.Wait()
	return errors.Join(err, l.reconciler.Close())
}

func (l *Loop) run(ctx context.Context, replicas *replicaWatch) error {
	on := &triggers{tick: time.Tick(l.options.Interval), peers: time.After(0), replicas: replicas}
	for ctx.Err() == nil {
		due, err := l.await(ctx, on)
		if err != nil {
			return err
		}
		if due {
			on.paced = nil // this round replaces a delayed round
			var next time.Duration
			l.reconciler.pace.measure(func() { next = l.Step(ctx) })
			if on.replicas.update(l.reconciler.disks.paths()) {
				on.looks = max(on.looks, 1) // a change before the watch gave no event
			}
			on.wake = time.After(on.lookAgain(next))
			on.last = time.Now()
		}
	}
	return nil
}

// await waits for an event, and reports whether it needs a round.
func (l *Loop) await(ctx context.Context, on *triggers) (due bool, err error) {
	select {
	case <-ctx.Done():
		return false, nil
	case r := <-l.directory.Readings:
		changed, err := l.Apply(ctx, r)
		l.directory.Conclude(r, l.config.Result)
		return changed, err
	case <-l.directory.Slow: // the status shows that the load takes long
	case <-on.tick: // most changes of disks give no event
	case <-on.replicas.changed: // a replica may need an image
		on.looks = looksAfterReplica
		return on.delay(max(l.reconciler.pace.delay(), time.Until(on.last.Add(roundGap)))), nil
	case <-l.reconciler.jobs.reports.ready: // a job ended, or the queries of a deletion
		reports, wait := l.reconciler.continuePlan(ctx)
		l.requested.note(reports)
		return on.delay(wait), nil
	case <-l.queue.ready:
	case <-on.changed: // another node has a new state; more may follow in a moment
		on.debouncePeers(l.reconciler.pace.delay())
		return false, nil
	case <-on.peers: // the pause has passed: do the round, and wait for changes again
		on.changed = l.reconciler.local.Changed()
	case <-on.wake: // a wait is over
		return on.delay(l.reconciler.pace.delay()), nil
	case <-on.paced:
	}
	return true, nil
}

// Apply applies what a read of the config directory found: see config.Configuration.
func (l *Loop) Apply(ctx context.Context, r config.Reading) (changed bool, err error) {
	if changed, err = l.config.Apply(ctx, r); changed {
		l.reconciler.peers.follow(ctx, l.config.Desired)
	}
	return changed, err
}

// roundGap is the least time between two rounds that other nodes or replicas cause: the states of a
// hundred nodes may change at the same time.
const roundGap = 100 * time.Millisecond

// triggers are the timers of a Loop, and the changes of its peers.
type triggers struct {
	tick    <-chan time.Time // the periodic round
	wake    <-chan time.Time // the end of a wait; nil before the first round
	peers   <-chan time.Time // the end of the pause after a change of peers; then changed is set
	changed <-chan struct{}  // a change of peers; nil during the pause
	paced   <-chan time.Time // the start of a delayed round; nil: no round is delayed
	last    time.Time        // end of the last round

	replicas *replicaWatch
	looks    int // how many rounds must still follow soon after a change of the replicas
}

// A replica gets its metadata after its folder. So some rounds follow each change of the replicas.
const (
	looksAfterReplica = 5
	lookGap           = time.Second
)

// lookAgain returns how long the next round may wait: the duration next, or less after a change of the replicas.
func (t *triggers) lookAgain(next time.Duration) time.Duration {
	if t.looks == 0 {
		return next
	}
	t.looks--
	return min(next, lookGap)
}

// delay delays the next round by the duration wait, unless a round is delayed already. It reports whether the round is due now.
func (t *triggers) delay(wait time.Duration) (due bool) {
	if wait > 0 && t.paced == nil {
		t.paced = time.After(wait)
	}
	return wait == 0
}

// debouncePeers begins the pause after a change of peers. The pause lasts at least the duration wait, and ends with a round.
func (t *triggers) debouncePeers(wait time.Duration) {
	t.changed = nil
	t.peers = time.After(max(wait, time.Until(t.last.Add(roundGap))))
}

// Step handles what jobs reported and what was requested since the last Step, and does one round.
// It returns how long the Loop may wait for events before the next Step.
func (l *Loop) Step(ctx context.Context) time.Duration {
	reports, _ := l.reconciler.handleReports()
	l.requested.note(reports)
	requests := l.queue.take()
	for _, r := range requests {
		r.note(&l.requested)
	}
	next := l.round(ctx)
	for _, r := range requests {
		if r.planned != nil {
			r.planned(l.View())
		}
	}
	return next
}

// round does one round. It returns the time until the first wait of the plan ends, at most the interval.
func (l *Loop) round(ctx context.Context) time.Duration {
	if !l.config.IsKnown() {
		return l.options.Interval // the config directory was not read yet
	}
	l.rounds++
	l.reconciler.health.SetError(commitNotRecorded, l.options.Node, l.config.RecordCommit(ctx))
	v := l.config.View(l.directory.LoadingSince())
	v.Rounds = l.rounds
	l.requested.addTo(&v.Desired, l.reconciler.clock.now().Steady)
	v.Observed, v.Plan = l.reconciler.round(ctx, v.Desired)
	l.requested.dropObsolete(v.Desired, v.Observed, v.Plan)
	l.reconciler.logHealth(v.Desired, v.Observed)
	l.publish(v)
	next := l.options.Interval
	for _, a := range v.Plan.Actions {
		if wait := a.Until.Sub(v.Observed.Now); !a.Until.IsZero() && wait > 0 {
			next = min(next, wait)
		}
	}
	return next
}

var (
	nodeUnavailable  = once.Condition{Begins: "node unavailable", Ends: "node available again", Of: "node", Why: "error"}
	diskUnavailable  = once.Condition{Begins: "disk unavailable", Ends: "disk available again", Of: "disk", Why: "error"}
	diskReadOnly     = once.Condition{Begins: "disk read-only", Ends: "disk writable again", Of: "disk", Why: "effect"}
	diskDisputed     = once.Condition{Begins: "disk disputed", Ends: "disk no longer disputed", Of: "disk", Why: "error"}
	configNotWatched = once.Condition{
		Begins: "cannot watch the config directory: reading it periodically", Ends: "watching the config directory again", Of: "dir", Why: "error", EachReason: true,
	}
	replicasNotWatched = once.Condition{
		Begins: "cannot watch the replicas: looking at them periodically", Ends: "watching the replicas again", Why: "error", EachReason: true,
	}
	// Until the commit is recorded, a restarted manager accepts an older one.
	commitNotRecorded = once.Condition{Begins: "commit not recorded on a disk", Ends: "commit recorded on all disks", Of: "node", Why: "error"}
)

// logHealth logs when a problem of another node or of a disk of this node begins and ends. It also logs disputed disks, and read-only
// disks of this node.
func (r *Reconciler) logHealth(d plan.Desired, o plan.Observed) {
	for _, name := range slices.Sorted(maps.Keys(o.Peers)) {
		if p := o.Peers[name]; p.Queried {
			r.health.Set(nodeUnavailable, name, p.Problem)
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		seen, name := o.Disks[ref], ref.String()
		if d.Owns(ref) {
			r.health.Set(diskUnavailable, name, seen.Problem)
			if seen.Problem == "" { // otherwise it is not known whether it is read-only
				effect := ""
				if seen.ReadOnly {
					effect = "its copies are served, and nothing is written to it"
				}
				r.health.Set(diskReadOnly, name, effect)
			}
		}
		r.health.Set(diskDisputed, name, seen.Disputed)
	}
}
