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
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Reconciler keeps the disks of one node as they are desired. Its methods are for
// one goroutine, but for Transfers, Counts, and what Host returns.
type Reconciler struct {
	client fetch.Client
	log    *slog.Logger
	disks  disks
	others others

	// What is told to other nodes.
	board   *peer.StateCache
	leaving leaving
	shown   atomic.Pointer[shown]

	tries     map[Key]tried
	running   map[Key]*running
	unmarked  map[Key]unmarked
	ended     chan outcome
	transfers transfers
	uploads   *upload.Sessions
	restores  *backup.MemoryBudget
	clock     clock
	missed    map[schema.DiskRef]absence
}

// absence is since when a disk, as it is declared, has a problem.
type absence struct {
	path  string
	since time.Time
}

// tried is a Try of one declaration; with another declaration it means nothing. Its times
// are of the steady clock.
type tried struct {
	Try
	image schema.Image
	on    string // the uuid of the disk, if that is known: on another one it means nothing either
}

// unmarked is a mark that was due and could not be written yet.
type unmarked struct {
	Mark
	on string // the uuid of the disk
}

// New returns a Reconciler whose downloads go through client. With readOnly it
// only looks: it takes no lock, and only Look may be called.
func New(client fetch.Client, log *slog.Logger, readOnly bool) *Reconciler {
	return &Reconciler{
		client:  client,
		log:     log,
		disks:   disks{readOnly: readOnly},
		tries:   map[Key]tried{},
		running: map[Key]*running{},
		ended:   make(chan outcome),

		unmarked: map[Key]unmarked{},
		missed:   map[schema.DiskRef]absence{},
		board:    peer.NewStateCache(),
		uploads:  upload.NewSessions(),
		restores: backup.NewMemoryBudget(),
	}
}

// Look observes the disks of d.Node, and what the other nodes told last. It reads
// small files and no image data, and waits for nobody.
func (r *Reconciler) Look(d Desired) Observed {
	declared := map[schema.DiskRef]schema.Disk{}
	for name, one := range d.Config.Nodes[d.Node].Disks {
		if ref := (schema.DiskRef{Node: d.Node, Disk: name}); d.mine(ref) {
			declared[ref] = one
		}
	}
	r.disks.refresh(declared, r.busy)
	o := Observed{Disks: map[schema.DiskRef]Disk{}, Tries: map[Key]Try{}, Running: map[Key]bool{}, Syncing: map[Key]bool{}, Read: map[Key]bool{}}
	o.Now = r.clock.now()
	for ref, one := range r.disks.open {
		seen := one.look(func(id disk.ID) bool { return r.reads(Key{ref, id}) })
		seen.ClockStepped = r.clock.outdated(seen.UUID)
		o.Disks[ref] = seen
	}
	for key, m := range r.unmarked {
		if seen := o.Disks[key.Disk]; seen.UUID == m.on {
			seen.remember(m.Mark)
		}
	}
	r.forget(d, o)
	for key, t := range r.tries {
		o.Tries[key] = t.seen(time.Now(), o.Now)
	}
	for key, run := range r.running {
		o.Running[key] = true
		if run.job.action.Kind == Sync {
			o.Syncing[key] = true
		}
		if from := run.job.action.from; from != (Key{}) {
			o.Read[from] = true
		}
		o.Disks[key.Disk].withdraw(key, run.job.action.Kind)
	}
	o.BackedUp = o.backedUp(d)
	r.others.hear(d, &o)
	o.Unable = r.unable(d, o)
	r.miss(d, o)
	r.show(d, o)
	return o
}

// miss notes for how long disks have had a problem. One that is declared anew, or elsewhere,
// is another one.
func (r *Reconciler) miss(d Desired, o Observed) {
	maps.DeleteFunc(r.missed, func(ref schema.DiskRef, m absence) bool {
		declared, ok := d.disk(ref)
		return !ok || declared.Path != m.path || o.Disks[ref].Problem == ""
	})
	for ref, seen := range o.Disks {
		if seen.Problem == "" {
			continue
		}
		m, missed := r.missed[ref]
		if !missed {
			declared, _ := d.disk(ref)
			m = absence{declared.Path, time.Now()}
			r.missed[ref] = m
		}
		seen.Away = time.Since(m.since)
		o.Disks[ref] = seen
	}
}

// reads reports whether a job reads the copy, or deletes it.
func (r *Reconciler) reads(key Key) bool {
	for own, run := range r.running {
		if own == key && !run.asks() || run.job.action.from == key {
			return true
		}
	}
	return false
}

func (r *Reconciler) busy(ref schema.DiskRef) bool {
	for key, run := range r.running {
		if key.Disk == ref || run.job.action.from.Disk == ref {
			return true
		}
	}
	return false
}

// HeldElsewhere returns an error that is disk.ErrLocked when, at the last look,
// another process wrote to one of the disks.
func (r *Reconciler) HeldElsewhere() error { return r.disks.heldElsewhere() }

// Round looks, writes marks, plans, and starts and stops work until the plan is
// under way as far as the limits allow. What the other nodes have to know is published
// before anything is begun. It does not wait for work to end: a
// receive from Ended says that another round is due.
func (r *Reconciler) Round(ctx context.Context, d Desired) (Observed, Plan) {
	o := r.Look(d)
	if r.mark(d, o) {
		o = r.Look(d)
	}
	begin := r.decide(d, o)
	plan := d.Plan(o)
	r.stopObsolete(d, plan)
	free := r.slots(d)
	for _, a := range plan.Actions {
		drops, limited := a.Kind.drops(), a.Kind != Upload
		if !a.Idle() && (d.Only == nil || d.Only.allows(a)) && r.running[a.Key()] == nil && (free[drops] > 0 || !limited) {
			if limited {
				free[drops]--
			}
			begin = append(begin, r.book(ctx, d, o, a))
		}
	}
	r.publish(d, o)
	for _, work := range begin {
		work()
	}
	return o, plan
}

// Idle reports whether no job is under way.
func (r *Reconciler) Idle() bool { return len(r.running) == 0 }

// Close stops all jobs, waits until they have ended, and lets go of the disks and
// of the other nodes. Parts are kept for the next time.
func (r *Reconciler) Close() error {
	for _, run := range r.running {
		run.end()
	}
	for r.forgoAsked(); !r.Idle(); r.forgoAsked() {
		r.Finish(<-r.ended)
	}
	r.others.close()
	r.shown.Store(nil)
	return r.disks.close()
}

// Converge runs rounds until nothing can be done any more without waiting for
// time to pass or for another node, and returns what is left to do then.
func (r *Reconciler) Converge(ctx context.Context, d Desired) (Observed, Plan, error) {
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
