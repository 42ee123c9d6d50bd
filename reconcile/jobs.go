package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// jobs are the running jobs of this node. Its methods are for one goroutine; reports and
// transfers may be used by any.
type jobs struct {
	running   map[ident.CopyRef]*activeJob
	reports   *reports
	transfers transfers
}

// activeJob is a running action.
type activeJob struct {
	task     Task
	started  Instant
	stop     context.CancelFunc
	stopped  string    // why its end was requested; "": it was not
	deletion *deletion // nil unless the action deletes the copy
}

// cancel requests the end of the job.
func (r *activeJob) cancel(why string) {
	r.stopped = why
	r.stop()
}

// usesFiles reports whether the job reads or writes the files of its copy. A deletion does so
// only when it is confirmed.
func (r *activeJob) usesFiles() bool { return r.deletion == nil || r.deletion.phase == deleting }

func newJobs() jobs { return jobs{running: map[ident.CopyRef]*activeJob{}, reports: newReports()} }

// idle reports whether no job runs.
func (j *jobs) idle() bool { return len(j.running) == 0 }

// useFiles reports whether the job of the copy key reads or writes the files of that copy.
func (j *jobs) useFiles(key ident.CopyRef) bool {
	run := j.running[key]
	return run != nil && run.usesFiles()
}

// read reports whether a job reads, writes or deletes the copy, as its own or as a source.
func (j *jobs) read(key ident.CopyRef) bool {
	if j.useFiles(key) {
		return true
	}
	for _, run := range j.running {
		if run.task.Action.LocalSource == key || slices.ContainsFunc(run.task.Seeds, func(s Seed) bool { return s.Ref == key }) {
			return true
		}
	}
	return false
}

// useDisk reports whether a job uses the disk.
func (j *jobs) useDisk(ref ident.DiskRef) bool {
	for key, run := range j.running {
		if key.Disk == ref || run.task.Action.LocalSource.Disk == ref {
			return true
		}
	}
	return false
}

// isDeleting reports whether a deletion of the copy runs, in any phase.
func (j *jobs) isDeleting(key ident.CopyRef) bool {
	run := j.running[key]
	return run != nil && run.task.Action.Op.Deletes()
}

// deletionsToConfirm returns the deletions whose queries have ended, sorted.
func (j *jobs) deletionsToConfirm() []ident.CopyRef {
	var keys []ident.CopyRef
	for key, run := range j.running {
		if run.deletion != nil && run.deletion.phase == confirming {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b ident.CopyRef) int {
		return cmp.Or(ident.ID.Compare(a.ID, b.ID), ident.DiskRef.Compare(a.Disk, b.Disk))
	})
	return keys
}

// addTo adds the running jobs to an observation of the disks.
func (j *jobs) addTo(o plan.Observed) {
	for key, run := range j.running {
		a := run.task.Action
		o.Running[key] = true
		o.Jobs[key] = plan.Job{Action: a, Image: run.task.Image}
		if a.LocalSource != (ident.CopyRef{}) {
			o.BeingRead[a.LocalSource] = true
		}
		for _, s := range run.task.Seeds {
			o.BeingRead[s.Ref] = true
		}
		o.MarkLeaving(key, a.Op)
	}
}

// slots are the numbers of jobs that may be started. Deletions have their own, so that they do not
// wait for long transfers: they make space. So have verifications of copies on other nodes, which last
// as long as these nodes like: they must not delay a transfer. So have copies that replicas need, because
// their volumes cannot start.
type slots struct{ deletions, verifications, needed, others int }

// freeSlots returns the slots that the running jobs leave.
func (j *jobs) freeSlots(d plan.Desired) slots {
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := slots{limit, limit, limit, limit}
	for _, run := range j.running {
		free.acquire(run.task.Action)
	}
	return free
}

// acquire acquires a slot for an action, and reports whether one was free. An upload needs none,
// because its client waits. A scrub begins only if one is free, but does not take it: it is slow, and
// must not delay a transfer.
func (s *slots) acquire(a plan.Action) bool {
	n := &s.others
	switch {
	case a.Op == model.Upload:
		return true
	case a.Scrub:
		return s.others > 0
	case a.Op.Deletes():
		n = &s.deletions
	case a.VerifiesPeer(), a.Code == plan.CodeReadBack: // other nodes cause it
		n = &s.verifications
	case a.Needed:
		n = &s.needed
	}
	*n--
	return *n >= 0
}

// stopAll stops all jobs.
func (j *jobs) stopAll() {
	for _, run := range j.running {
		run.cancel("the manager ends")
	}
}

// remove removes a job that ended, and returns it.
func (j *jobs) remove(e jobEnd) *activeJob {
	run := j.running[e.key]
	delete(j.running, e.key)
	if run.deletion != nil && run.deletion.mark.Name != "" {
		_ = run.task.Disk.RemoveMark(e.key.ID, run.deletion.mark.Name) // otherwise the next process removes it
	}
	run.stop() // releases its context
	j.transfers.end(e)
	return run
}

// jobEnd is how a job ended. A job that was stopped has not failed, whatever err is.
type jobEnd struct {
	key     ident.CopyRef
	err     error
	stopped bool
}

// reports collects what jobs report from their own goroutines until the loop handles it.
type reports struct {
	ready     chan struct{} // has a value after a report was added
	mu        sync.Mutex
	ends      []jobEnd
	responses []queryResponses
	damaged   []ident.CopyRef
}

func newReports() *reports { return &reports{ready: make(chan struct{}, 1)} }

func (r *reports) addEnd(e jobEnd) {
	r.mu.Lock()
	r.ends = append(r.ends, e)
	r.mu.Unlock()
	notify(r.ready)
}

func (r *reports) addResponses(q queryResponses) {
	r.mu.Lock()
	r.responses = append(r.responses, q)
	r.mu.Unlock()
	notify(r.ready)
}

// addDamaged reports that a copy does not have its own bytes any more.
func (r *reports) addDamaged(copy ident.CopyRef) {
	r.mu.Lock()
	r.damaged = append(r.damaged, copy)
	r.mu.Unlock()
	notify(r.ready)
}

// takeDamaged returns the damaged copies since the last call.
func (r *reports) takeDamaged() []ident.CopyRef {
	r.mu.Lock()
	defer r.mu.Unlock()
	damaged := r.damaged
	r.damaged = nil
	return damaged
}

// take returns the other reports since the last call.
func (r *reports) take() (ends []jobEnd, responses []queryResponses) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ends, responses = r.ends, r.responses
	r.ends, r.responses = nil, nil
	return ends, responses
}

// notify puts a value into a channel with a buffer of one, unless it has one already: one value
// may stand for several events.
func notify(ready chan<- struct{}) {
	select {
	case ready <- struct{}{}:
	default:
	}
}

// startKey marks the context of the log record about the start of a job.
type startKey struct{}

// IsJobStart reports whether a log record with this context is about the start of a job. A
// handler for a terminal with progress bars omits it.
func IsJobStart(ctx context.Context) bool { return ctx.Value(startKey{}) != nil }

// startJob records the job of an action and returns what begins it. It withdraws the copy of a
// deletion.
func (r *Reconciler) startJob(ctx context.Context, now *plan.Round, a plan.Action) (begin func()) {
	d, o, key := now.Desired, now.Observed, a.CopyRef()
	run := &activeJob{task: r.newTask(d, o, a), started: r.clock.now()}
	ctx, run.stop = context.WithCancel(ctx)
	r.jobs.running[key] = run
	r.jobs.transfers.add(key, job.Transfer{Action: a, Progress: run.task.Progress, Started: run.started.Wall})
	level := slog.LevelInfo
	if o.Disks[key.Disk].Copies[key.ID].State == model.Failed && !a.Op.Deletes() {
		level = slog.LevelWarn // a disk that loses bytes must not go unnoticed
	}
	r.log.Log(context.WithValue(ctx, startKey{}, true), level, "started", "op", string(a.Op), "copy", key.String(), "reason", a.Text, "code", string(a.Code))
	if a.Op.Deletes() {
		return r.withdraw(ctx, now, run)
	}
	return func() {
		r.system.Jobs.Start(ctx, run.task, func(err error) { r.jobs.reports.addEnd(jobEnd{key, err, ctx.Err() != nil}) })
	}
}

// newTask returns the task of an action.
func (r *Reconciler) newTask(d plan.Desired, o plan.Observed, a plan.Action) Task {
	declared, _ := d.Disk(a.CopyRef().Disk)
	t := Task{
		Order: job.Order{
			Action: a, Image: d.Config.Images[a.Image], Private: d.Config.IsPrivate(a.Image), Reserve: declared.StorageReserved,
			Progress: &fetch.Progress{},
		},
		AllowLoopback: d.Config.Settings.AllowLoopbackSources, RecoveryInterval: d.Config.Settings.RecoveryWaitInterval,
		Disk: r.disks.open[a.CopyRef().Disk].handle, LocalCopies: r.disks.localCopies(d, o, a),
	}
	t.Progress.Total.Store(a.Bytes)
	t.Digest, t.PeerCopies = r.peers.copiesFor(d, o, a)
	t.Verified = func(manifest ident.Digest) { r.peers.claims.addManifest(manifest, t.Digest) }
	if (a.Op == model.Sync || a.Op == model.Clone) && a.LocalSource != (ident.CopyRef{}) {
		t.Source = r.disks.open[a.LocalSource.Disk].handle
	}
	if a.Op == model.Export {
		t.Disks = r.disks.usable()
	}
	t.Seeds = r.disks.seeds(t.Image, o, a, r.jobs.reports.addDamaged)
	return t
}

// endedJob is a job that is not running any more.
type endedJob struct {
	key     ident.CopyRef
	op      model.Op
	stopped bool
	ofPeer  bool // see plan.Action.VerifiesPeer
}

// handleReports handles what jobs reported since the last call, and returns the jobs that ended.
// A round has to follow: there may be a free slot, or a deletion to decide on. It can wait if all that
// happened is that jobs ended by themselves that deleted nothing.
func (r *Reconciler) handleReports() (ended []endedJob, canWait bool) {
	ends, responses := r.jobs.reports.take()
	canWait = len(responses) == 0
	for _, q := range responses {
		if one, ok := r.handleResponses(q); ok {
			ended = append(ended, one)
		}
	}
	for _, e := range ends {
		one := r.endJob(e)
		ended = append(ended, one)
		canWait = canWait && !one.stopped && !one.op.Deletes()
	}
	return ended, canWait
}

// continuePlan is handleReports before a round that has a pace. It returns for how long the round
// can wait, and starts the next actions of the last plan if that is not 0.
func (r *Reconciler) continuePlan(ctx context.Context) (ended []endedJob, wait time.Duration) {
	ended, canWait := r.handleReports()
	if canWait {
		wait = r.pace.delay()
	}
	if wait == 0 {
		return ended, 0
	}
	b := &r.backlog
	if len(b.actions) == 0 {
		return ended, wait
	}
	free := r.jobs.freeSlots(b.round.Desired)
	for a, ok := b.next(&free); ok; a, ok = b.next(&free) {
		if r.disks.open[a.CopyRef().Disk].handle.Check() != nil {
			b.drop() // the disk is not at its path any more
			break
		}
		r.startJob(ctx, b.round, a)()
	}
	return ended, wait
}

// endJob records how a job ended.
func (r *Reconciler) endJob(e jobEnd) endedJob {
	run := r.jobs.remove(e)
	a := run.task.Action
	log := r.log.With("op", string(a.Op), "copy", e.key.String())
	if errors.Is(e.err, job.ErrOtherBytes) {
		r.peers.claims.disprove(a.From, e.err.Error(), r.clock.now().Steady)
	}
	switch {
	case e.err == nil: // also if it was stopped just before its end
		if a.Op.Deletes() {
			r.failures.clearDeleted(e.key)
		} else if a.VerifiesPeer() { // it read no bytes of the copy itself
			r.failures.clearFailure(e.key)
		} else {
			r.failures.clearCopy(e.key)
		}
		log.Info("done", "seconds", r.clock.now().Steady.Sub(run.started.Steady).Seconds())
	case e.stopped:
		log.Info("stopped", "reason", run.stopped)
	case upload.IsDiscarded(e.err):
		r.failures.clearFailure(e.key)
		log.Info("upload discarded", "reason", e.err)
	default:
		if a.VerifiesPeer() && !errors.Is(e.err, job.ErrOtherBytes) {
			r.peers.claims.recordOne(a.From, plan.ProofMissing) // another copy is read before it
		}
		next := r.recordFailure(run, e)
		if next.Fault == model.FaultDisk || next.NeedsSpace > 0 {
			r.backlog.drop() // the next plan may use another disk
		}
		log.Warn("failed", "error", e.err, "retry", retryText(next))
	}
	return endedJob{e.key, a.Op, e.stopped, a.VerifiesPeer()}
}
