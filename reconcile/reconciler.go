package reconcile

import (
	"context"
	"log/slog"
	"reflect"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Reconciler keeps the disks of one node as they are desired. Its methods are for
// one goroutine, but for Transfers.
type Reconciler struct {
	client fetch.Client
	log    *slog.Logger
	disks  disks

	tries     map[Key]tried
	running   map[Key]*running
	unmarked  map[Key]Mark // marks that were due and could not be written yet
	ended     chan outcome
	transfers transfers
	clock     clock
}

// tried is a Try of one declaration; with another declaration it means nothing.
type tried struct {
	Try
	image schema.Image
}

// running is a job under way.
type running struct {
	job     job
	started time.Time
	stop    context.CancelFunc
}

// outcome is how a job ended. One that was told to stop has not failed, whatever
// it says.
type outcome struct {
	key     Key
	err     error
	stopped bool
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

		unmarked: map[Key]Mark{},
	}
}

// Look observes the disks of d.Node. It reads small files and no image data.
func (r *Reconciler) Look(d Desired) Observed {
	declared := map[schema.DiskRef]schema.Disk{}
	for name, one := range d.Config.Nodes[d.Node].Disks {
		if ref := (schema.DiskRef{Node: d.Node, Disk: name}); d.mine(ref) {
			declared[ref] = one
		}
	}
	r.disks.refresh(declared, r.busy)
	o := Observed{Disks: map[schema.DiskRef]Disk{}, Tries: map[Key]Try{}, Running: map[Key]bool{}}
	o.Now = r.clock.now()
	o.ClockStepped = r.clock.step
	for ref, one := range r.disks.open {
		o.Disks[ref] = one.look(func(id disk.ID) bool { return r.reads(Key{ref, id}) })
	}
	for _, m := range r.unmarked {
		o.Disks[m.Key.Disk].remember(m)
	}
	r.forget(d)
	for key, t := range r.tries {
		o.Tries[key] = t.Try
	}
	for key := range r.running {
		o.Running[key] = true
	}
	return o
}

// reads reports whether a job reads the copy, or is about to delete it.
func (r *Reconciler) reads(key Key) bool {
	for own, run := range r.running {
		if own == key || run.job.action.from == key {
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

// forget drops what failed under another declaration.
func (r *Reconciler) forget(d Desired) {
	for key, t := range r.tries {
		now := d.Config.Images[key.ID.Name]
		if !sameImage(t.image, now) {
			delete(r.tries, key)
		}
	}
}

// sameImage reports whether two declarations ask for the same bytes from the same
// places. Where else copies should be is nothing to a transfer under way.
func sameImage(a, b schema.Image) bool {
	for _, image := range []*schema.Image{&a, &b} {
		image.Copies, image.AllDisks, image.Disks = 0, false, nil
		image.NodeSelector, image.DiskSelector = nil, nil
		image.UUIDDeclared, image.Pos = false, schema.Position{}
	}
	return reflect.DeepEqual(a, b)
}

// HeldElsewhere returns an error that is disk.ErrLocked when, at the last look,
// another process wrote to one of the disks.
func (r *Reconciler) HeldElsewhere() error { return r.disks.heldElsewhere() }

// Round looks, writes marks, plans, and starts and stops work until the plan is
// under way as far as the limits allow. It does not wait for work to end: a
// receive from Ended says that another round is due.
func (r *Reconciler) Round(ctx context.Context, d Desired) (Observed, Plan) {
	o := r.Look(d)
	changed, all := r.mark(d, o)
	if all && d.May != schema.ObserveOnly {
		r.clock.step = false
	}
	if changed {
		o = r.Look(d)
	}
	plan := d.Plan(o)
	r.stopObsolete(d, plan)
	free := r.slots(d)
	for _, a := range plan.Actions {
		if drops := a.Kind.drops(); !a.Idle() && r.running[a.Key()] == nil && free[drops] > 0 {
			free[drops]--
			r.start(ctx, d, a)
		}
	}
	return o, plan
}

// slots is how many jobs may be started: deletions (true), and others. Deletions do
// not wait for long transfers, as they make room.
func (r *Reconciler) slots(d Desired) map[bool]int {
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := map[bool]int{true: limit, false: limit}
	for _, run := range r.running {
		free[run.job.action.Kind.drops()]--
	}
	return free
}

// stopObsolete ends jobs that the plan does not have any more, and those of an
// image whose declaration changed. A transfer goes on even if by now there is a
// nearer source.
func (r *Reconciler) stopObsolete(d Desired, plan Plan) {
	wanted := map[Key]Kind{}
	for _, a := range plan.Actions {
		if !a.Idle() {
			wanted[a.Key()] = a.Kind
		}
	}
	for key, run := range r.running {
		kind, ok := wanted[key]
		if !ok || kind.drops() != run.job.action.Kind.drops() || !sameImage(run.job.image, d.Config.Images[key.ID.Name]) {
			run.stop()
		}
	}
}

func (r *Reconciler) start(ctx context.Context, d Desired, a Action) {
	key := a.Key()
	declared, _ := d.disk(key.Disk)
	client := r.client
	client.AllowLoopback = d.Config.Settings.AllowLoopbackSources
	j := job{
		action: a, image: d.Config.Images[a.Image], reserve: declared.StorageReserved,
		client: &client, disk: r.disks.open[key.Disk].Disk, progress: &fetch.Progress{},
	}
	j.progress.Total.Store(a.Bytes)
	if a.Kind == Sync {
		j.source = r.disks.open[a.from.Disk].Disk
	}
	jobCtx, stop := context.WithCancel(ctx)
	r.running[key] = &running{job: j, started: time.Now(), stop: stop}
	r.transfers.add(key, Transfer{Action: a, Progress: j.progress, Started: time.Now()})
	r.log.Info("started", "action", string(a.Kind), "copy", key.String(), "reason", a.Reason)
	go func() {
		err := j.run(jobCtx)
		r.ended <- outcome{key, err, jobCtx.Err() != nil}
	}()
}

// Ended gives the end of a job; pass it to Finish.
func (r *Reconciler) Ended() <-chan outcome { return r.ended }

// Finish takes note of how a job ended.
func (r *Reconciler) Finish(e outcome) {
	run := r.running[e.key]
	delete(r.running, e.key)
	r.transfers.end(e.key, e)
	run.stop()
	a := run.job.action
	log := r.log.With("action", string(a.Kind), "copy", e.key.String())
	switch {
	case e.err == nil:
		r.succeeded(e.key)
		log.Info("done", "seconds", time.Since(run.started).Seconds())
	case e.stopped:
		log.Info("stopped; what is there is kept")
	default:
		next := r.tries[e.key].Try.next(a, e.err, r.clock.now())
		r.tries[e.key] = tried{next, run.job.image}
		log.Warn("failed", "error", e.err, "again", again(next))
	}
}

// succeeded drops what failed before, and what was suspected of the copy.
func (r *Reconciler) succeeded(key Key) {
	delete(r.tries, key)
	for other, t := range r.tries {
		if slices.Contains(t.Suspects, key) {
			t.Suspects = slices.DeleteFunc(slices.Clone(t.Suspects), func(k Key) bool { return k == key })
			r.tries[other] = t
		}
	}
}

func again(t Try) string {
	switch {
	case t.Final:
		return "not before the declaration changes"
	case t.Space > 0:
		return "when " + bytesText(t.Space) + " are free"
	}
	return t.Until.UTC().Format(time.RFC3339)
}

// Idle reports whether no job is under way.
func (r *Reconciler) Idle() bool { return len(r.running) == 0 }

// Close stops all jobs, waits until they have ended, and lets go of the disks.
// Parts are kept for the next time.
func (r *Reconciler) Close() error {
	for _, run := range r.running {
		run.stop()
	}
	for !r.Idle() {
		r.Finish(<-r.ended)
	}
	return r.disks.close()
}

// Converge runs rounds until nothing can be done any more without waiting for
// time to pass, and returns what is left to do then.
func (r *Reconciler) Converge(ctx context.Context, d Desired) (Observed, Plan, error) {
	for {
		o, plan := r.Round(ctx, d)
		if r.Idle() {
			return o, plan, nil
		}
		select {
		case e := <-r.ended:
			r.Finish(e)
		case <-ctx.Done():
			return o, plan, context.Cause(ctx)
		}
	}
}
