package scenario

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// node is the manager of one node: a real Reconciler with the clock, the disks, the network and
// the jobs of a world.
type node struct {
	world      *world
	name       string
	startedAt  time.Time
	reconciler *reconcile.Reconciler
	// observeOnly means that the manager publishes the state of its disks and does nothing else.
	observeOnly bool

	// due means that the manager has to observe again, because something has changed since its last round.
	due      bool
	observed plan.Observed // of the last round
	plan     plan.Plan
	attempts map[ident.CopyRef]int // number of jobs for each copy in the present call of converge
	giveUp   func()                // ends the present call of converge
	stop     func()                // ends the manager

	published *publication // nil before the first round
	received  map[string]peer.Observation
}

// publication is a state that a node published.
type publication struct {
	state model.Node
	at    time.Time
}

// startNode starts the manager of a node. The manager knows only its disks.
func startNode(w *world, name string) *node {
	n := &node{world: w, name: name, startedAt: w.now, due: true, received: map[string]peer.Observation{}}
	n.reconciler = reconcile.NewWith(system.System{
		Now:    func() system.Instant { return system.Instant{Wall: w.now, Steady: w.now} },
		Random: func() float64 { return 0 },
		Secret: func() uint64 { return 0 },
		OpenDisk: func(path string) (system.Disk, string, error) {
			return simulation.Open(func() *simulation.Disk { return w.disks[diskLocation{name, path}] })
		},
		Peers: nodePeers{n}, Jobs: nodeJobs{n},
	}, slog.New(slog.DiscardHandler))
	n.stop = func() {
		delete(w.nodes, name)
		_ = n.reconciler.Close() // simulated disks close without an error
	}
	return n
}

// desired returns the desired state of the node.
func (n *node) desired() plan.Desired {
	d := n.world.base
	d.Node = n.name
	if n.observeOnly {
		d.Allowed = schema.ObserveOnly
	}
	return d
}

// maxAttempts is how often a job for one copy may run without an advance of the clock.
const maxAttempts = 100

var errRepeats = errors.New("a job is repeated without end")

// converge lets the manager do rounds until it can do nothing more without the other nodes. Each
// job ends at once. If execute is false, the manager observes, records usage, plans and publishes.
func (n *node) converge(ctx context.Context, execute bool) error {
	d := n.desired()
	if !execute {
		d.Only = &plan.SavedPlan{}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	n.attempts = map[ident.CopyRef]int{}
	n.giveUp = func() { cancel(errRepeats) }
	var err error
	n.observed, n.plan, err = n.reconciler.Converge(ctx, d)
	n.due = false
	return err
}

// hasWork reports whether the last plan has actions to execute.
func (n *node) hasWork() bool {
	for _, a := range n.plan.Actions {
		if !a.Idle() {
			return true
		}
	}
	return false
}

// nextDeadline returns the earliest time before end at which a wait of the node may end, or end.
func (n *node) nextDeadline(end time.Time) time.Time {
	next, now := end, n.observed.Now
	consider := func(t time.Time) {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	settings := n.world.base.Config.Settings
	for _, a := range n.plan.Actions {
		consider(a.Until)
	}
	for _, p := range n.observed.Peers {
		if p.Problem != "" {
			consider(now.Add(settings.RecoveryWaitInterval - p.UnreachableFor(now)))
		}
	}
	for _, f := range n.observed.Failures {
		consider(f.RetryAt)
		consider(f.Since.Add(settings.RecoveryWaitInterval))
	}
	for ref, d := range n.observed.Disks {
		if d.Problem != "" {
			consider(now.Add(settings.RecoveryWaitInterval - d.ProblemFor(now)))
		}
		for _, c := range d.Copies {
			if settings.ScrubInterval > 0 && ref.Node == n.name {
				consider(c.VerifiedAt.Add(settings.ScrubInterval))
			}
		}
	}
	return next
}
