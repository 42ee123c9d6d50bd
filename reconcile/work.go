package reconcile

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// running is a job under way.
type running struct {
	job     job
	started time.Time
	stop    context.CancelFunc
	stopped bool
	removes bool // it is decided that the copy goes
	// heard is what was answered about a copy that was withdrawn; nil before.
	heard map[string]Answer
}

// asks reports whether the job is about a withdrawn copy and does nothing to it yet.
func (r *running) asks() bool { return r.job.action.Kind.drops() && !r.removes }

// end tells the job to stop.
func (r *running) end() {
	r.stopped = true
	r.stop()
}

// outcome is how a job ended. One that was told to stop has not failed, whatever
// it says.
type outcome struct {
	key     Key
	err     error
	stopped bool
	// heard: the job has not ended, but asked, and waits for a decision.
	heard map[string]Answer
}

// slots is how many jobs may be started: deletions (true), and others. Deletions do
// not wait for long transfers, as they make room.
func (r *Reconciler) slots(d Desired) map[bool]int {
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := map[bool]int{true: limit, false: limit}
	for _, run := range r.running {
		if a := run.job.action; !a.slow && a.Kind != Upload { // neither a scrub nor an upload keeps others waiting
			free[a.Kind.drops()]--
		}
	}
	return free
}

// stopObsolete ends jobs that the plan does not have any more, and those of an
// image whose declaration changed. A transfer goes on even if by now there is a
// nearer source.
func (r *Reconciler) stopObsolete(d Desired, plan Plan) {
	wanted := map[Key]Action{}
	for _, a := range plan.Actions {
		if !a.Idle() {
			wanted[a.Key()] = a
		}
	}
	for key, run := range r.running {
		now, ok := wanted[key]
		if a := run.job.action; !ok || a.overtaken(run.job.image, now) || !a.Kind.same(run.job.image, d.Config.Images[key.ID.Name]) {
			run.end()
		}
	}
}

// overtaken reports whether what is under way must not come about any more, as the plan
// has something else for the copy by now. A removal goes on for its own reason only. Bytes
// that nobody declared must not come beside others that are there, or that the image has to
// have for now, and nobody has to send what is there.
func (a Action) overtaken(image schema.Image, now Action) bool {
	switch {
	case a.Kind.drops() || now.Kind.drops():
		return a.Kind != now.Kind
	case a.Kind.prepares() && !now.Kind.prepares():
		return image.Checksum.IsZero() || a.Kind == Upload
	case a.slow && now.Kind == Verify && !now.slow:
		return true // what was read before may have changed, and somebody waits
	case !image.Checksum.IsZero() || !a.Kind.prepares() && !a.Kind.pulls():
		return false
	}
	due := now.bears()
	return !due.IsZero() && a.bears() != due
}

// bears is the digest that the copy of an image without a checksum will have, zero if any
// will do.
func (a Action) bears() disk.Digest {
	if a.Kind.pulls() {
		return a.sum
	}
	return a.recall.digest
}

// book takes note of the job of an action and returns what begins it. A copy that
// is to go is withdrawn from here on.
func (r *Reconciler) book(ctx context.Context, d Desired, o Observed, a Action) (begin func()) {
	key := a.Key()
	j := r.job(d, o, a)
	j.progress.Total.Store(a.Bytes)
	if a.Kind.drops() {
		r.leaving.add(key)
	}
	jobCtx, stop := context.WithCancel(ctx)
	r.running[key] = &running{job: j, started: time.Now(), stop: stop}
	r.transfers.add(key, Transfer{Action: a, Progress: j.progress, Started: time.Now()})
	level := slog.LevelInfo
	if o.Disks[key.Disk].Copies[key.ID].State == disk.Failed && !a.Kind.drops() {
		level = slog.LevelWarn // a disk that loses bytes should not go unnoticed
	}
	r.log.Log(ctx, level, "started", "action", string(a.Kind), "copy", key.String(), "reason", a.Reason)
	work := func() outcome { return outcome{key: key, err: j.run(jobCtx)} }
	if a.Kind.drops() {
		work = func() outcome { return outcome{key: key, heard: responsesOf(d.Config.Nodes, j.ask(jobCtx))} }
	}
	return func() {
		go func() {
			e := work()
			e.stopped = jobCtx.Err() != nil
			r.ended <- e
		}()
	}
}

// job is the action with everything that it needs.
func (r *Reconciler) job(d Desired, o Observed, a Action) job {
	declared, _ := d.disk(a.Key().Disk)
	client := r.client
	client.AllowLoopback = d.Config.Settings.AllowLoopbackSources
	j := job{
		action: a, image: d.Config.Images[a.Image], reserve: declared.StorageReserved,
		client: &client, disk: r.disks.open[a.Key().Disk].Disk, progress: &fetch.Progress{},
		near: r.near(d, o, a), far: r.others.far(d, o, a), uploads: r.uploads, restores: r.restores,
	}
	if (a.Kind == Sync || a.Kind == Clone) && a.from != (Key{}) {
		j.source = r.disks.open[a.from.Disk].Disk
	}
	if a.Kind == Export {
		j.disks = r.disks.usable()
	}
	j.far.warn = func(err error) { r.log.Warn("bytes are wrong", "copy", a.Key().String(), "error", err) }
	if a.Kind.drops() {
		j.asking = r.others.asking(d, d.Asks(o, a))
	}
	return j
}

// Ended gives the end of a job; pass it to Finish.
func (r *Reconciler) Ended() <-chan outcome { return r.ended }

// Finish takes note of how a job ended, or of what it was answered; a Round has to
// come next.
func (r *Reconciler) Finish(e outcome) {
	run := r.running[e.key]
	if e.heard != nil && !e.stopped {
		run.heard = e.heard
		return
	}
	delete(r.running, e.key)
	r.transfers.end(e.key, e)
	run.stop()
	a := run.job.action
	log := r.log.With("action", string(a.Kind), "copy", e.key.String())
	switch {
	case e.err == nil && e.heard == nil: // also if it was told to stop just before
		r.succeeded(e.key)
		log.Info("done", "seconds", time.Since(run.started).Seconds())
	case e.stopped:
		log.Info("stopped; what is there is kept")
	case upload.IsDiscarded(e.err):
		r.forgive(e.key)
		log.Info("ended", "reason", e.err)
	default:
		next := NextFailure(r.tries[e.key].Try, a, e.err, time.Now(), rand.Float64())
		r.tries[e.key] = tried{next, run.job.image, r.disks.uuid(e.key.Disk)}
		log.Warn("failed", "error", e.err, "again", again(next))
	}
}

// succeeded drops what failed before, and what was suspected of the copy.
func (r *Reconciler) succeeded(key Key) {
	r.forgive(key)
	r.trust(func(suspect Key) bool { return suspect == key })
}

// forgive drops what failed with a copy, but not what other copies are suspected of since.
func (r *Reconciler) forgive(key Key) {
	t, failed := r.tries[key]
	if failed {
		r.tries[key] = tried{Try{Suspects: t.Suspects}, t.image, t.on}
	}
	if len(t.Suspects) == 0 {
		delete(r.tries, key)
	}
}

// trust drops what was suspected of some copies.
func (r *Reconciler) trust(cleared func(Key) bool) {
	for key, t := range r.tries {
		if !slices.ContainsFunc(t.Suspects, cleared) {
			continue
		}
		t.Suspects = slices.DeleteFunc(slices.Clone(t.Suspects), cleared)
		r.tries[key] = t
		if t.Attempts == 0 && t.Kind == "" {
			r.forgive(key) // there was nothing else to remember
		}
	}
}

func again(t Try) string {
	switch {
	case t.of(Upload):
		return "when somebody uploads it again"
	case t.Final:
		return "not before the declaration changes"
	case t.Space > 0:
		return "when " + bytesText(t.Space) + " are free"
	}
	return t.Until.UTC().Format(time.RFC3339)
}

// forget drops what failed under another declaration, on another disk or on one that is not
// declared any more, and what failed with a file that is not there any more.
func (r *Reconciler) forget(d Desired, o Observed) {
	for key, t := range r.tries {
		now := d.Config.Images[key.ID.Name]
		_, declared := d.disk(key.Disk)
		if !declared || !t.Kind.same(t.image, now) || t.Kind.needsFile() && o.lost(key) || o.exchanged(key.Disk, t.on) {
			r.forgive(key)
		}
	}
	r.trust(o.lost)
}

// lost reports whether a disk that can be read has no file of the copy.
func (o Observed) lost(key Key) bool {
	seen, known := o.Disks[key.Disk]
	c, there := seen.Copies[key.ID]
	return known && seen.Problem == "" && (!there || c.State == disk.Pending)
}

// exchanged reports whether a disk that can be read is another one than was.
func (o Observed) exchanged(ref schema.DiskRef, was string) bool {
	seen, known := o.Disks[ref]
	return known && seen.Problem == "" && was != "" && seen.UUID != was
}

// same reports whether two declarations are one to an action of that kind.
func (k Kind) same(a, b schema.Image) bool {
	return sameImage(a, b) && (k != Backup || sameBackup(a, b))
}

// sameBackup reports whether two declarations keep a backup in one place.
func sameBackup(a, b schema.Image) bool { return reflect.DeepEqual(a.Backup, b.Backup) }

// sameImage reports whether two declarations ask for the same bytes from the same
// places. Where else copies should be is nothing to a transfer under way.
func sameImage(a, b schema.Image) bool { return reflect.DeepEqual(bytesOf(a), bytesOf(b)) }

// bytesOf is a declaration without what is nothing to the bytes and the way to them.
func bytesOf(image schema.Image) schema.Image {
	image.Copies, image.AllDisks, image.Disks = 0, false, nil
	image.NodeSelector, image.DiskSelector = nil, nil
	image.UUIDDeclared, image.Pos, image.Backup, image.Suspend = false, document.Position{}, nil, nil
	return image
}
