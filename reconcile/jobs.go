package reconcile

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/delivery"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// jobs are the running jobs of this node, and how earlier jobs ended. Its methods are for one goroutine, except
// transfers, totals and addProof.
type jobs struct {
	// running changes only in the goroutine of the loop, with mu locked. This goroutine reads it without mu.
	running map[ident.CopyRef]*activeJob
	reports *inbox[report]

	mu     sync.Mutex
	counts Counts
}

// activeJob is a running action. Its order and the time of its start do not change.
type activeJob struct {
	order    job.Order
	on       system.Disks // the usable disks of this node
	started  system.Instant
	recovery time.Duration // Settings.RecoveryWaitInterval
	stop     context.CancelFunc
	stopped  string    // why its end was requested; "": it was not
	deletion *deletion // nil unless the action deletes the copy
}

// Counts are totals since the start of the process.
type Counts struct {
	// Fetched is how many bytes came from upstreams, FromPeers how many from other nodes.
	Fetched, FromPeers int64
	// Done has the number of actions that succeeded, by operation.
	Done map[model.Op]int64
	// Failed has the number of actions that failed, by the class of their error: see
	// job.FailureClass.
	Failed map[string]int64
	// Proofs has the number of requested proofs of copies, by outcome.
	Proofs map[plan.ProofResult]int64
	// Reports are the status documents that were sent to settings.report, and Notifications the messages to settings.notify.
	Reports, Notifications delivery.Counts
}

// report is what a job reports from its own goroutine: a copy that it reads has other bytes (damaged), the queries of its
// deletion have ended (responses), or the job has ended.
type report struct {
	run       *activeJob // nil with damaged
	damaged   ident.CopyRef
	responses map[string]plan.Response // by node; nil: the job has ended
	shared    error                    // see deletion
	err       error
	stopped   bool // a job that was stopped has not failed, whatever err is
}

// cancel requests the end of the job.
func (run *activeJob) cancel(why string) {
	run.stopped = why
	run.stop()
}

// key returns the copy of the job.
func (run *activeJob) key() ident.CopyRef { return run.order.Action.CopyRef() }

// usesFiles reports whether the job reads or writes the files of its copy. A deletion does so
// only when it is confirmed.
func (run *activeJob) usesFiles() bool { return run.deletion == nil || run.deletion.phase == deleting }

func newJobs() *jobs {
	counts := Counts{Done: map[model.Op]int64{}, Failed: map[string]int64{}, Proofs: map[plan.ProofResult]int64{}}
	return &jobs{running: map[ident.CopyRef]*activeJob{}, reports: newInbox[report](), counts: counts}
}

// idle reports whether no job runs.
func (j *jobs) idle() bool { return len(j.running) == 0 }

// useFiles reports whether the copy at key has a job that reads or writes its files.
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
		if run.order.Action.LocalSource == key || slices.Contains(run.order.Seeds, key) {
			return true
		}
	}
	return false
}

// useDisk reports whether a job uses the disk.
func (j *jobs) useDisk(ref ident.DiskRef) bool {
	for key, run := range j.running {
		if key.Disk == ref || run.order.Action.LocalSource.Disk == ref {
			return true
		}
	}
	return false
}

// isDeleting reports whether a deletion of the copy runs, in any phase.
func (j *jobs) isDeleting(key ident.CopyRef) bool {
	run := j.running[key]
	return run != nil && run.order.Action.Op.Deletes()
}

// ops returns the operations of the jobs.
func (j *jobs) ops() map[ident.CopyRef]model.Op {
	ops := make(map[ident.CopyRef]model.Op, len(j.running))
	for key, run := range j.running {
		ops[key] = run.order.Action.Op
	}
	return ops
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
		a := run.order.Action
		o.Running[key] = true
		o.Jobs[key] = plan.Job{Action: a, Image: run.order.Image}
		if a.LocalSource != (ident.CopyRef{}) {
			o.BeingRead[a.LocalSource] = true
		}
		for _, seed := range run.order.Seeds {
			o.BeingRead[seed] = true
		}
		o.SetLeaving(key, a.Op)
	}
}

// slots are the numbers of jobs that may be started. Three kinds of jobs have their own slots. Deletions
// make space, and must not wait for long transfers. Verifications because of other nodes may last as long
// as these nodes like, and must not delay a transfer. Copies that replicas need must not wait, because
// their volumes cannot start.
type slots struct{ deletions, verifications, needed, others int }

// freeSlots returns the slots that the running jobs leave.
func (j *jobs) freeSlots(d plan.Desired) slots {
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := slots{limit, limit, limit, limit}
	for _, run := range j.running {
		free.acquire(run.order.Action)
	}
	return free
}

// acquire acquires a slot for an action, and reports whether a slot was free. An upload needs no slot,
// because its client waits. A scrub begins only if a slot is free, but does not take the slot: a scrub is
// slow, and must not delay a transfer.
func (s *slots) acquire(a plan.Action) bool {
	n := &s.others
	switch {
	case a.Op == model.Upload:
		return true
	case a.Scrub:
		return s.others > 0
	case a.Op.Deletes():
		n = &s.deletions
	case a.VerifiesPeer(), a.Code == plan.CodeReadBack: // because of other nodes
		n = &s.verifications
	case a.Needed:
		n = &s.needed
	}
	*n--
	return *n >= 0
}

// add adds a job.
func (j *jobs) add(run *activeJob) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.running[run.key()] = run
}

// remove removes a job that ended, and counts its outcome. A stopped job counts only if it succeeded.
func (j *jobs) remove(e report) {
	run, key := e.run, e.run.key()
	if run.deletion != nil && run.deletion.mark.Name != "" {
		_ = run.on[key.Disk.Disk].RemoveMark(key.ID, run.deletion.mark.Name) // after an error, a later listing of the disk removes it
	}
	run.stop() // releases its context
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.running, key)
	j.counts.addBytes(run.order.Progress)
	switch {
	case e.err == nil:
		j.counts.Done[run.order.Action.Op]++
	case !e.stopped && !upload.IsDiscarded(e.err):
		j.counts.Failed[job.FailureClass(e.err)]++
	}
}

// addProof counts the outcome of a requested proof.
func (j *jobs) addProof(result plan.ProofResult) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.counts.Proofs[result]++
}

// totals returns the counts, which include the bytes of running actions.
func (j *jobs) totals() Counts {
	j.mu.Lock()
	defer j.mu.Unlock()
	c := j.counts
	c.Done, c.Failed, c.Proofs = maps.Clone(c.Done), maps.Clone(c.Failed), maps.Clone(c.Proofs)
	for _, run := range j.running {
		c.addBytes(run.order.Progress)
	}
	return c
}

func (c *Counts) addBytes(p *fetch.Progress) {
	c.Fetched += p.UpstreamBytes.Load()
	c.FromPeers += p.PeerBytes.Load()
}

// transfers returns the running actions with their progress.
func (j *jobs) transfers() map[ident.CopyRef]job.Transfer {
	j.mu.Lock()
	defer j.mu.Unlock()
	all := make(map[ident.CopyRef]job.Transfer, len(j.running))
	for key, run := range j.running {
		all[key] = job.Transfer{Action: run.order.Action, Progress: run.order.Progress}
	}
	return all
}

// startJob records the job of an action and returns the function that begins it. For a deletion,
// it withdraws the copy.
func (r *Reconciler) startJob(ctx context.Context, now *plan.Round, a plan.Action) (begin func()) {
	d, o, key := now.Desired, now.Observed, a.CopyRef()
	run := &activeJob{order: r.newOrder(d, o, a), on: r.disks.usable(), started: r.clock.now(), recovery: d.Config.Settings.RecoveryWaitInterval}
	ctx, run.stop = context.WithCancel(ctx)
	r.jobs.add(run)
	level := slog.LevelInfo
	if o.Disks[key.Disk].Copies[key.ID].State == model.Failed && !a.Op.Deletes() {
		level = slog.LevelWarn // a disk that loses bytes must not go unnoticed
	}
	r.log.Log(ctx, level, "started", "op", string(a.Op), "copy", key.String(), "reason", a.Text, "code", string(a.Code))
	if a.Op.Deletes() {
		return r.withdraw(ctx, now, run)
	}
	return func() {
		r.system.Jobs.Start(ctx, run.order, run.on, func(err error) {
			r.jobs.reports.add(report{run: run, err: err, stopped: ctx.Err() != nil})
		})
	}
}

// newOrder returns the order of an action.
func (r *Reconciler) newOrder(d plan.Desired, o plan.Observed, a plan.Action) job.Order {
	declared, _ := d.Disk(a.CopyRef().Disk)
	image := d.Config.Images[a.Image]
	w := job.Order{
		Action: a, Image: image, Private: d.Config.IsPrivate(a.Image), Reserve: declared.StorageReserved,
		Progress: &fetch.Progress{}, AllowLoopback: d.Config.Settings.AllowLoopbackSources,
		LocalCopies: job.LocalCopiesFor(a, d.DigestOf(o, a), o.Disks), Seeds: job.SeedsOf(a, image, o.Disks),
		Damaged: r.jobs.reportDamage,
	}
	w.Progress.Total.Store(a.Bytes)
	w.Digest, w.PeerCopies = r.peers.copiesFor(d, o, a)
	w.Verified = func(manifest ident.Digest) { r.ledger.AddManifest(manifest, w.Digest) }
	return w
}

// reportDamage reports that a copy on this node does not have its own bytes any more.
func (j *jobs) reportDamage(copy ident.CopyRef) { j.reports.add(report{damaged: copy}) }

// handleReports handles and returns the reports of jobs since the last call.
// A round has to follow: there may be a free slot, or a deletion to decide on. The round can wait if jobs
// only ended by themselves and deleted nothing.
func (r *Reconciler) handleReports() (reports []report, canWait bool) {
	reports, canWait = r.jobs.reports.take(), true
	for _, e := range reports {
		switch {
		case e.run == nil:
		case e.responses != nil && !e.stopped:
			r.jobs.handleResponses(e)
			canWait = false
		default:
			r.endJob(e)
			canWait = canWait && !e.stopped && !e.run.order.Action.Op.Deletes()
		}
	}
	return reports, canWait
}

// continuePlan calls handleReports, and returns for how long the next round can wait. If the round
// can wait, continuePlan starts the next actions of the last plan.
func (r *Reconciler) continuePlan(ctx context.Context) (reports []report, wait time.Duration) {
	reports, canWait := r.handleReports()
	if canWait {
		wait = r.pace.delay()
	}
	b := &r.backlog
	if wait == 0 || len(b.actions) == 0 {
		return reports, wait
	}
	free, usable := r.jobs.freeSlots(b.round.Desired), r.disks.usable()
	for a, ok := b.next(&free); ok; a, ok = b.next(&free) {
		if on := usable[a.Disk]; on == nil || on.Check() != nil {
			b.drop() // the disk is not at its path any more
			break
		}
		r.startJob(ctx, b.round, a)()
	}
	return reports, wait
}

// endJob records how a job ended.
func (r *Reconciler) endJob(e report) {
	r.jobs.remove(e)
	run, key, a := e.run, e.run.key(), e.run.order.Action
	log := r.log.With("op", string(a.Op), "copy", key.String())
	switch {
	case e.err == nil: // also if it was stopped just before its end
		if a.Op.Deletes() {
			r.failures.ClearDeleted(key)
		} else if a.VerifiesPeer() { // the job read another copy
			r.failures.ClearFailure(key)
		} else {
			r.failures.ClearCopy(key)
		}
		log.Info("done", "seconds", r.clock.now().Steady.Sub(run.started.Steady).Seconds())
	case e.stopped:
		log.Info("stopped", "reason", run.stopped)
	case upload.IsDiscarded(e.err):
		r.failures.ClearFailure(key)
		log.Info("upload discarded", "reason", e.err)
	default:
		next := r.recordFailure(run, e.err)
		if next.Fault == model.FaultDisk || next.NeedsSpace > 0 {
			r.backlog.drop() // the next plan may use another disk
		}
		log.Warn("failed", "error", e.err, "retry", retryText(next))
	}
}
