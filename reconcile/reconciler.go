package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Reconciler keeps the disks of one node as they are desired. Its methods are for
// one goroutine, but for Transfers, Counts, and what Host returns.
type Reconciler struct {
	client fetch.Client
	log    *slog.Logger
	disks  disks
	peers  peers

	// What is told to other nodes.
	published *peer.StateCache
	leaving   leavingCopies
	view      atomic.Pointer[servedDisks]

	failures     map[plan.CopyRef]failureRecord
	running      map[plan.CopyRef]*activeJob
	pendingUsage map[plan.CopyRef]pendingUsage
	ended        chan result
	transfers    transfers
	uploads      *upload.Sessions
	restores     *backup.MemoryBudget
	clock        clock
	problems     map[schema.DiskRef]diskProblem
}

// diskProblem is since when a disk, as it is declared, has a problem.
type diskProblem struct {
	path  string
	since time.Time
}

// failureRecord is a Try of one declaration; with another declaration it means nothing. Its times
// are of the steady clock.
type failureRecord struct {
	plan.Failure
	image schema.Image
	on    string // the uuid of the disk, if that is known: on another one it means nothing either
}

// pendingUsage is a mark that was due and could not be written yet.
type pendingUsage struct {
	plan.Usage
	on string // the uuid of the disk
}

// New returns a Reconciler whose downloads go through client. With readOnly it
// only looks: it takes no lock, and only Look may be called.
func New(client fetch.Client, log *slog.Logger, readOnly bool) *Reconciler {
	return &Reconciler{
		client:   client,
		log:      log,
		disks:    disks{readOnly: readOnly},
		failures: map[plan.CopyRef]failureRecord{},
		running:  map[plan.CopyRef]*activeJob{},
		ended:    make(chan result),

		pendingUsage: map[plan.CopyRef]pendingUsage{},
		problems:     map[schema.DiskRef]diskProblem{},
		published:    peer.NewStateCache(),
		uploads:      upload.NewSessions(),
		restores:     backup.NewMemoryBudget(),
	}
}

// Observe observes the disks of d.Node, and what the other nodes told last. It reads
// small files and no image data, and waits for nobody.
func (r *Reconciler) Observe(d plan.Desired) plan.Observed {
	declared := map[schema.DiskRef]schema.Disk{}
	for name, one := range d.Config.Nodes[d.Node].Disks {
		if ref := (schema.DiskRef{Node: d.Node, Disk: name}); d.Owns(ref) {
			declared[ref] = one
		}
	}
	r.disks.refresh(declared, r.busy)
	o := plan.Observed{Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{}, Running: map[plan.CopyRef]bool{}, Syncing: map[plan.CopyRef]bool{}, BeingRead: map[plan.CopyRef]bool{}}
	o.Now = r.clock.now()
	for ref, one := range r.disks.open {
		seen := one.observe(func(id disk.ID) bool { return r.reads(plan.CopyRef{Disk: ref, ID: id}) })
		seen.ClockStepped = r.clock.outdated(seen.UUID)
		o.Disks[ref] = seen
	}
	for key, m := range r.pendingUsage {
		if seen := o.Disks[key.Disk]; seen.UUID == m.on {
			seen.ApplyUsage(m.Usage)
		}
	}
	r.dropStaleFailures(d, o)
	for key, t := range r.failures {
		o.Failures[key] = t.OnWallClock(time.Now(), o.Now)
	}
	for key, run := range r.running {
		o.Running[key] = true
		if run.job.Action.Op == plan.Sync {
			o.Syncing[key] = true
		}
		if from := run.job.Action.LocalSource; from != (plan.CopyRef{}) {
			o.BeingRead[from] = true
		}
		o.Disks[key.Disk].MarkLeaving(key, run.job.Action.Op)
	}
	o.BackedUp = o.FindBackedUp(d)
	r.peers.mergeInto(d, &o)
	o.CannotPrepare = r.cannotPrepare(d, o)
	r.trackProblems(d, o)
	r.setServed(d, o)
	return o
}

// trackProblems notes for how long disks have had a problem. One that is declared anew, or elsewhere,
// is another one.
func (r *Reconciler) trackProblems(d plan.Desired, o plan.Observed) {
	maps.DeleteFunc(r.problems, func(ref schema.DiskRef, m diskProblem) bool {
		declared, ok := d.Disk(ref)
		return !ok || declared.Path != m.path || o.Disks[ref].Problem == ""
	})
	for ref, seen := range o.Disks {
		if seen.Problem == "" {
			continue
		}
		m, missed := r.problems[ref]
		if !missed {
			declared, _ := d.Disk(ref)
			m = diskProblem{declared.Path, time.Now()}
			r.problems[ref] = m
		}
		seen.ProblemFor = time.Since(m.since)
		o.Disks[ref] = seen
	}
}

// reads reports whether a job reads the copy, or deletes it.
func (r *Reconciler) reads(key plan.CopyRef) bool {
	for own, run := range r.running {
		if own == key && !run.confirming() || run.job.Action.LocalSource == key {
			return true
		}
	}
	return false
}

func (r *Reconciler) busy(ref schema.DiskRef) bool {
	for key, run := range r.running {
		if key.Disk == ref || run.job.Action.LocalSource.Disk == ref {
			return true
		}
	}
	return false
}

// LockedElsewhere returns an error that is disk.ErrLocked when, at the last look,
// another process wrote to one of the disks.
func (r *Reconciler) LockedElsewhere() error { return r.disks.lockedElsewhere() }

// Round looks, writes marks, plans, and starts and stops work until the plan is
// under way as far as the limits allow. What the other nodes have to know is published
// before anything is begun. It does not wait for work to end: a
// receive from Ended says that another round is due.
func (r *Reconciler) Round(ctx context.Context, d plan.Desired) (plan.Observed, plan.Plan) {
	o := r.Observe(d)
	if r.recordUsage(d, o) {
		o = r.Observe(d)
	}
	begin := r.finishDeletions(d, o)
	p := d.Plan(o)
	r.stopObsolete(d, p)
	free := r.freeSlots(d)
	for _, a := range p.Actions {
		drops, limited := a.Op.Deletes(), a.Op != plan.Upload
		if !a.Idle() && (d.Only == nil || d.Only.Allows(a)) && r.running[a.CopyRef()] == nil && (free[drops] > 0 || !limited) {
			if limited {
				free[drops]--
			}
			begin = append(begin, r.startJob(ctx, d, o, a))
		}
	}
	r.publish(d, o)
	for _, work := range begin {
		work()
	}
	return o, p
}

// Idle reports whether no job is under way.
func (r *Reconciler) Idle() bool { return len(r.running) == 0 }

// Close stops all jobs, waits until they have ended, and lets go of the disks and
// of the other nodes. Parts are kept for the next time.
func (r *Reconciler) Close() error {
	for _, run := range r.running {
		run.cancel()
	}
	for r.abortDeletions(); !r.Idle(); r.abortDeletions() {
		r.Finish(<-r.ended)
	}
	r.peers.close()
	r.view.Store(nil)
	return r.disks.close()
}

// Converge runs rounds until nothing can be done any more without waiting for
// time to pass or for another node, and returns what is left to do then.
func (r *Reconciler) Converge(ctx context.Context, d plan.Desired) (plan.Observed, plan.Plan, error) {
	for {
		o, plan := r.Round(ctx, d)
		if r.Idle() {
			return o, plan, nil
		}
		select {
		case e := <-r.ended:
			r.Finish(e)
		case <-r.Changed(): // which may stop what is under way
		case <-ctx.Done():
			return o, plan, context.Cause(ctx)
		}
	}
}
