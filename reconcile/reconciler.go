package reconcile

import (
	"context"
	"log/slog"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/once"
	"github.com/seed-26586806/backing-image-manager/reconcile/evidence"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/serve"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// Reconciler keeps the disks of one node in the desired state, one round at a time. A Loop calls
// it for a daemon; Converge is for a single run. Its methods are for one goroutine,
// except Transfers.
type Reconciler struct {
	system system.System
	local  *system.Local // nil if system is not this machine
	log    *slog.Logger
	health *once.Log
	clock  clock

	disks        disks        // the declared disks, opened if possible
	peers        peers        // the other nodes, as they publish their state
	jobs         *jobs        // what runs now
	pendingUsage pendingUsage // usage that is not in the records yet
	served       serve.Node   // what other nodes can read at any time
	backlog      backlog      // the actions of the last plan that wait for a free slot
	pace         pace         // the delay of rounds that can wait

	ledger   *evidence.Ledger  // what is known against the claims of other nodes
	failures evidence.Failures // what failed, and when it is tried again
	awaited  evidence.Awaited  // for how long this node has waited for others

	conditions func() []model.Condition // see model.Node; nil: this process sends no notifications
}

// New returns a Reconciler for this machine. It downloads by client, and queries the other nodes by
// peers; with peers nil it queries none. With readOnly it only observes: it locks no disk, and
// only Observe may be called.
func New(client fetch.Client, peers *peer.Client, log *slog.Logger, readOnly bool) *Reconciler {
	local, s := system.New(client, peers, log, readOnly)
	r := NewWith(s, log)
	r.local = local
	return r
}

// NewWith returns a Reconciler that acts on s.
func NewWith(s system.System, log *slog.Logger) *Reconciler {
	ledger := evidence.NewLedger(log, func() time.Time { return s.Now().Steady })
	return &Reconciler{
		system: s, log: log, health: once.New(log), clock: clock{now: s.Now},
		disks: disks{openAt: s.OpenDisk, open: map[ident.DiskRef]*openDisk{}, problems: map[ident.DiskRef]diskProblem{}},
		peers: newPeers(s.Peers, ledger), jobs: newJobs(), pendingUsage: pendingUsage{},
		pace: pace{now: s.Now}, ledger: ledger, failures: evidence.Failures{}, awaited: evidence.Awaited{},
	}
}

// LockedElsewhere returns an error that is disk.ErrLocked if another process had locked one of
// the disks at the last observation.
func (r *Reconciler) LockedElsewhere() error { return r.disks.lockedElsewhere() }

// Transfers returns the running actions. It may be called concurrently.
func (r *Reconciler) Transfers() map[ident.CopyRef]job.Transfer { return r.jobs.transfers() }

// firstResponseTimeout is how long a single run waits for the first responses.
const firstResponseTimeout = 3 * time.Second

// Folders returns the usable disks of this machine, as far as the last observation opened them.
func (r *Reconciler) Folders() map[ident.DiskRef]*disk.Disk {
	folders := map[ident.DiskRef]*disk.Disk{}
	for ref, open := range r.disks.open {
		if folder := system.Folder(open.handle); folder != nil && open.problem == "" {
			folders[ref] = folder
		}
	}
	return folders
}

// WaitForPeers follows the nodes that d declares, and waits until each has responded or failed,
// but not longer than firstResponseTimeout.
func (r *Reconciler) WaitForPeers(ctx context.Context, d plan.Desired) {
	r.peers.follow(ctx, d)
	over := time.After(firstResponseTimeout)
	for r.local.Waiting() {
		select {
		case <-r.local.Changed():
		case <-over:
			return
		case <-ctx.Done():
			return
		}
	}
}

// round does one round: it observes, records usage, plans, publishes the state, and starts and
// stops jobs until the plan is executed as far as the limits allow. It does not wait for jobs: a
// value from reports.ready means that handleReports and another round are due.
func (r *Reconciler) round(ctx context.Context, d plan.Desired) (plan.Observed, plan.Plan) {
	o := r.Observe(d)
	now := plan.NewRound(d, o)
	r.recordUsage(now)
	begin := r.decideDeletions(d, o)
	p := now.Plan()
	r.awaited.Note(d, o, p, r.clock.now().Steady)
	for key, why := range p.Ends {
		r.jobs.running[key].cancel(why)
	}
	free := r.jobs.freeSlots(d)
	r.backlog = backlog{round: now}
	for _, a := range p.StartOrder() {
		allowed := !a.Idle() && (d.Only == nil || d.Only.Allows(a))
		switch {
		case !allowed || r.jobs.running[a.CopyRef()] != nil:
		case free.acquire(a):
			begin = append(begin, r.startJob(ctx, now, a))
		default:
			r.backlog.add(a)
		}
	}
	// Peers must see a withdrawal before the queries of the deletion begin, so no job begins
	// before the state is published.
	r.publish(now, p)
	for _, job := range begin {
		job()
	}
	return o, p
}

// publish makes the state of this node available to its peers. A withdrawal ends only here, when
// peers see an observation that began after the end of the deletion.
func (r *Reconciler) publish(now *plan.Round, p plan.Plan) {
	s := serve.State(now, p, r.jobs.ops())
	if r.conditions != nil {
		s.Conditions = r.conditions()
	}
	r.system.Peers.Publish(s)
	r.served.EndWithdrawals(r.jobs.isDeleting)
}

// Copies returns the copies of one image name on the disks of this node, as they are served for a
// direct query. It may be called concurrently.
func (r *Reconciler) Copies(name, mark string) (model.Node, error) {
	return r.served.Copies(context.Background(), name, mark)
}

// Restore sets what a Reconciler remembers about earlier rounds, by the wall clock: the failures
// of jobs on the disks of d.Node, and for how long disks have had a problem. It must be called
// before the first round. A scenario that starts from a saved status uses it; a process does not,
// so that everything is tried again after its restart.
func (r *Reconciler) Restore(d plan.Desired, failed map[ident.CopyRef]model.Failure, problems map[ident.DiskRef]time.Duration) {
	now := r.clock.now()
	for key, f := range failed {
		if d.Owns(key.Disk) {
			r.failures[key] = evidence.Failure{Failure: f.Translated(now.Wall, now.Steady), Image: d.Config.Images[key.ID.Name]}
		}
	}
	for ref, since := range problems {
		declared, _ := d.Disk(ref)
		r.disks.problems[ref] = diskProblem{declared.Path, now.Steady.Add(-since)}
	}
}

// Converge does rounds until everything that remains waits for time to pass or for another node,
// and returns the last observation and plan. The error is context.Cause(ctx); jobs
// may run then, until Close.
func (r *Reconciler) Converge(ctx context.Context, d plan.Desired) (o plan.Observed, p plan.Plan, err error) {
	for {
		r.handleReports()
		r.pace.measure(func() { o, p = r.round(ctx, d) })
		if r.jobs.idle() {
			return o, p, nil
		}
		var paced <-chan time.Time // nil: no round is due
		for due := false; !due; {
			select {
			case <-r.jobs.reports.ready:
				_, wait := r.continuePlan(ctx)
				if due = wait == 0 || r.jobs.idle(); paced == nil {
					paced = time.After(wait)
				}
			case <-paced:
				due = true
			case <-r.local.Changed(): // the new state of a peer may stop a job
				due = true
			case <-ctx.Done():
				return o, p, context.Cause(ctx)
			}
		}
	}
}

// Close stops all jobs, waits until they have ended, and releases the disks and the peers.
// Partial files are kept.
func (r *Reconciler) Close() error {
	for _, run := range r.jobs.running {
		run.cancel("the manager ends")
	}
	// No round decides on deletions any more, so they are aborted when their queries have ended.
	for r.abortDeletions(); !r.jobs.idle(); r.abortDeletions() {
		<-r.jobs.reports.ready
		r.handleReports()
	}
	r.system.Peers.Close()
	r.served.Close()
	return r.disks.close()
}
