package reconcile

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Reconciler keeps the disks of one node in the desired state. Its methods are for one
// goroutine, except Transfers and Counts.
type Reconciler struct {
	system System
	local  *localNode // nil if system is not that of this machine
	log    *slog.Logger
	clock  clock
	disks  disks
	peers  peers

	// What other nodes can read at any time.
	leaving leavingCopies
	served  atomic.Pointer[servedDisks]

	running      map[plan.CopyRef]*activeJob
	reports      *reports
	transfers    transfers
	failures     map[plan.CopyRef]failureRecord
	pendingUsage map[plan.CopyRef]pendingUsage
	problems     map[schema.DiskRef]diskProblem
}

// New returns a Reconciler for this machine whose downloads go through client. With readOnly it
// only observes: it locks no disk, and only Observe may be called.
func New(client fetch.Client, log *slog.Logger, readOnly bool) *Reconciler {
	node, system := newLocalNode(client, log, readOnly)
	r := NewWith(system, log)
	r.local = node
	return r
}

// NewWith returns a Reconciler that acts on system.
func NewWith(system System, log *slog.Logger) *Reconciler {
	return &Reconciler{
		system: system, log: log, clock: clock{read: system.Now}, disks: disks{openAt: system.OpenDisk}, peers: newPeers(system.Peers),
		running: map[plan.CopyRef]*activeJob{}, reports: newReports(), failures: map[plan.CopyRef]failureRecord{},
		pendingUsage: map[plan.CopyRef]pendingUsage{}, problems: map[schema.DiskRef]diskProblem{},
	}
}

// LockedElsewhere returns an error that is disk.ErrLocked if another process wrote to one of the
// disks at the last observation.
func (r *Reconciler) LockedElsewhere() error { return r.disks.lockedElsewhere() }

// Round does one round: it observes, records usage, plans, publishes the state, and starts and
// stops jobs until the plan is executed as far as the limits allow. The state is published
// before any job begins. Round does not wait for jobs: a value from Reports says that another
// round is due.
func (r *Reconciler) Round(ctx context.Context, d plan.Desired) (plan.Observed, plan.Plan) {
	r.handleReports()
	return r.round(ctx, d)
}

// round is Round after the reports were handled.
func (r *Reconciler) round(ctx context.Context, d plan.Desired) (plan.Observed, plan.Plan) {
	o := r.Observe(d)
	if r.recordUsage(d, o) {
		o = r.Observe(d)
	}
	begin := r.decideDeletions(d, o)
	p := d.Plan(o)
	r.stopObsolete(d, p)
	free := r.freeSlots(d)
	for _, a := range p.Actions {
		deletes, limited := a.Op.Deletes(), a.Op != plan.Upload
		if !a.Idle() && (d.Only == nil || d.Only.Allows(a)) && r.running[a.CopyRef()] == nil && (free[deletes] > 0 || !limited) {
			if limited {
				free[deletes]--
			}
			begin = append(begin, r.startJob(ctx, d, o, a))
		}
	}
	r.publish(d, o)
	for _, job := range begin {
		job()
	}
	return o, p
}

// Reports returns a channel that receives a value after a job ended or the peers responded to
// the query of a deletion.
func (r *Reconciler) Reports() <-chan struct{} { return r.reports.ready }

// Idle reports whether no job runs.
func (r *Reconciler) Idle() bool { return len(r.running) == 0 }

// Close stops all jobs, waits until they have ended, and releases the disks and the peers.
// Partial files are kept.
func (r *Reconciler) Close() error {
	for _, run := range r.running {
		run.cancel()
	}
	for r.abortDeletions(); !r.Idle(); r.abortDeletions() {
		<-r.reports.ready
		r.handleReports()
	}
	r.system.Peers.Close()
	r.served.Store(nil)
	return r.disks.close()
}

// Converge does rounds until nothing can be done without waiting for time to pass or for another
// node, and returns the last observation and plan.
func (r *Reconciler) Converge(ctx context.Context, d plan.Desired) (plan.Observed, plan.Plan, error) {
	for {
		o, plan := r.Round(ctx, d)
		if r.Idle() {
			return o, plan, nil
		}
		select {
		case <-r.reports.ready:
		case <-r.Changed(): // which may stop a job
		case <-ctx.Done():
			return o, plan, context.Cause(ctx)
		}
	}
}
