package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// activeJob is a running action.
type activeJob struct {
	task     Task
	started  Instant
	stop     context.CancelFunc
	stopped  bool
	deletion *deletion // nil unless the action deletes the copy
}

// cancel requests the end of the job.
func (r *activeJob) cancel() {
	r.stopped = true
	r.stop()
}

// touchesFiles reports whether the job reads or writes the files of its copy. A deletion does so
// only when it is confirmed.
func (r *activeJob) touchesFiles() bool { return r.deletion == nil || r.deletion.phase == deleting }

// jobEnd is how a job ended. A job that was stopped has not failed, whatever err is.
type jobEnd struct {
	key     plan.CopyRef
	err     error
	stopped bool
}

// reports collects what jobs report from their own goroutines until the loop handles it.
type reports struct {
	ready     chan struct{} // has a value after a report came
	mu        sync.Mutex
	ends      []jobEnd
	responses []queryResponses
}

func newReports() *reports { return &reports{ready: make(chan struct{}, 1)} }

func (r *reports) addEnd(e jobEnd) {
	r.mu.Lock()
	r.ends = append(r.ends, e)
	r.mu.Unlock()
	r.notify()
}

func (r *reports) addResponses(q queryResponses) {
	r.mu.Lock()
	r.responses = append(r.responses, q)
	r.mu.Unlock()
	r.notify()
}

func (r *reports) notify() {
	select {
	case r.ready <- struct{}{}:
	default: // there is a value
	}
}

// take returns the reports since the last call.
func (r *reports) take() (ends []jobEnd, responses []queryResponses) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ends, responses = r.ends, r.responses
	r.ends, r.responses = nil, nil
	return ends, responses
}

// freeSlots returns how many jobs may be started: deletions (true) and others (false). Deletions
// do not wait for long transfers, because they make space.
func (r *Reconciler) freeSlots(d plan.Desired) map[bool]int {
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := map[bool]int{true: limit, false: limit}
	for _, run := range r.running {
		if a := run.task.Action; !a.Scrub && a.Op != plan.Upload { // scrubs and uploads take no slot
			free[a.Op.Deletes()]--
		}
	}
	return free
}

// stopObsolete stops jobs that are not in the plan any more, and those of an image whose
// declaration changed. A transfer continues even if there is a nearer source by now.
func (r *Reconciler) stopObsolete(d plan.Desired, p plan.Plan) {
	wanted := map[plan.CopyRef]plan.Action{}
	for _, a := range p.Actions {
		if !a.Idle() {
			wanted[a.CopyRef()] = a
		}
	}
	for key, run := range r.running {
		now, ok := wanted[key]
		if a := run.task.Action; !ok || a.SupersededBy(run.task.Image, now) || !a.Op.SameDeclaration(run.task.Image, d.Config.Images[key.ID.Name]) {
			run.cancel()
		}
	}
}

// startJob records the job of an action and returns what begins it. It withdraws the copy of a
// deletion.
func (r *Reconciler) startJob(ctx context.Context, d plan.Desired, o plan.Observed, a plan.Action) (begin func()) {
	key := a.CopyRef()
	run := &activeJob{task: r.newTask(d, o, a), started: r.clock.now()}
	ctx, run.stop = context.WithCancel(ctx)
	r.running[key] = run
	r.transfers.add(key, job.Transfer{Action: a, Progress: run.task.Progress, Started: run.started.Wall})
	level := slog.LevelInfo
	if o.Disks[key.Disk].Copies[key.ID].State == disk.Failed && !a.Op.Deletes() {
		level = slog.LevelWarn // a disk that loses bytes must not go unnoticed
	}
	r.log.Log(ctx, level, "started", "action", string(a.Op), "copy", key.String(), "reason", a.Text, "code", string(a.Code))
	if a.Op.Deletes() {
		return r.withdraw(ctx, d, o, run)
	}
	return func() {
		r.system.Jobs.Start(ctx, run.task, func(err error) { r.reports.addEnd(jobEnd{key, err, ctx.Err() != nil}) })
	}
}

// newTask returns an action with everything that its execution needs.
func (r *Reconciler) newTask(d plan.Desired, o plan.Observed, a plan.Action) Task {
	declared, _ := d.Disk(a.CopyRef().Disk)
	t := Task{
		Action: a, Image: d.Config.Images[a.Image], Reserve: declared.StorageReserved,
		AllowLoopback: d.Config.Settings.AllowLoopbackSources, Progress: &fetch.Progress{},
		Disk: r.disks.open[a.CopyRef().Disk].Disk, LocalCopies: r.localCopies(d, o, a),
	}
	t.Progress.Total.Store(a.Bytes)
	t.Digest, t.Size, t.PeerCopies = r.peers.copiesFor(d, o, a)
	if (a.Op == plan.Sync || a.Op == plan.Clone) && a.LocalSource != (plan.CopyRef{}) {
		t.Source = r.disks.open[a.LocalSource.Disk].Disk
	}
	if a.Op == plan.Export {
		t.Disks = r.disks.usable()
	}
	return t
}

// localCopies returns the copies on this node that a repair can read.
func (r *Reconciler) localCopies(d plan.Desired, o plan.Observed, a plan.Action) []LocalCopy {
	if a.Op != plan.Repair && a.Op != plan.Verify { // a verification may turn into a repair
		return nil
	}
	var copies []LocalCopy
	want := d.DigestOf(o, a)
	for _, ref := range slices.SortedFunc(maps.Keys(r.disks.open), plan.CompareDisks) {
		for id, c := range o.Disks[ref].Copies {
			if c.HasDigest(want) && !c.Leaving && (plan.CopyRef{Disk: ref, ID: id}) != a.CopyRef() {
				copies = append(copies, LocalCopy{Disk: r.disks.open[ref].Disk, ID: id})
			}
		}
	}
	return copies
}

// copiesFor returns which bytes of peers an action may use, and a function that returns the
// peer copies with these bytes at the time of the call. An action that reads a copy of this
// node, or none, uses no peers.
func (s *peers) copiesFor(d plan.Desired, o plan.Observed, a plan.Action) (want disk.Digest, size int64, copies func() []peer.Source) {
	if a.LocalSource != (plan.CopyRef{}) || !a.Op.ReadsCopies() && a.Op != plan.Verify {
		return disk.Digest{}, 0, func() []peer.Source { return nil }
	}
	want = d.DigestOf(o, a)
	for _, seen := range o.Disks {
		for _, c := range seen.Copies {
			if c.HasDigest(want) {
				size = c.Size
			}
		}
	}
	nodes := d.Config.Nodes
	return want, size, func() []peer.Source { return sources(s.system.Observations(), nodes, want) }
}

// sources returns the copies with the digest want that the responding nodes offer.
func sources(observations map[string]peer.Observation, nodes map[string]schema.Node, want disk.Digest) []peer.Source {
	var all []peer.Source
	for _, name := range slices.Sorted(maps.Keys(observations)) {
		a := observations[name]
		if !a.Polled || a.Problem != "" {
			continue
		}
		at := peer.Address{Node: name, URL: a.URL} // the address at the start of the job may be out of date
		for _, one := range a.State.Disks {
			if _, declared := nodes[name].Disks[one.Name]; !declared || one.Problem != "" {
				continue
			}
			for _, c := range one.Copies {
				if c := copyFromPeer(c); c.HasDigest(want) && !c.Leaving && !c.ManifestDigest.IsZero() {
					all = append(all, peer.Source{Address: at, Disk: one.Name, ID: c.ID, ManifestDigest: c.ManifestDigest})
				}
			}
		}
	}
	return all
}

// endedJob is a job that is not running any more.
type endedJob struct {
	key     plan.CopyRef
	op      plan.Op
	stopped bool
}

// handleReports handles what jobs reported since the last call, and returns the jobs that ended.
// A Round has to follow: there may be a free slot, or a deletion to decide on.
func (r *Reconciler) handleReports() (ended []endedJob) {
	ends, responses := r.reports.take()
	for _, q := range responses {
		if one, ok := r.handleResponses(q); ok {
			ended = append(ended, one)
		}
	}
	for _, e := range ends {
		ended = append(ended, r.endJob(e))
	}
	return ended
}

// endJob records how a job ended.
func (r *Reconciler) endJob(e jobEnd) endedJob {
	run := r.running[e.key]
	delete(r.running, e.key)
	run.stop()
	a := run.task.Action
	r.transfers.end(e)
	log := r.log.With("action", string(a.Op), "copy", e.key.String())
	switch {
	case e.err == nil: // also if it was stopped just before its end
		r.clearCopy(e.key)
		log.Info("done", "seconds", r.clock.now().Steady.Sub(run.started.Steady).Seconds())
	case e.stopped:
		log.Info("stopped; what is there is kept")
	case upload.IsDiscarded(e.err):
		r.clearFailure(e.key)
		log.Info("ended", "reason", e.err)
	default:
		next := r.recordFailure(run, e)
		log.Warn("failed", "error", e.err, "again", retryText(next))
	}
	return endedJob{e.key, a.Op, e.stopped}
}
