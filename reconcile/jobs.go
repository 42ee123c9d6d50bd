package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// localCopies lists what can be repaired from without asking anybody.
func (r *Reconciler) localCopies(d plan.Desired, o plan.Observed, a plan.Action) []job.LocalCopy {
	if a.Op != plan.Repair && a.Op != plan.Verify {
		return nil
	}
	var near []job.LocalCopy
	want := d.DigestOf(o, a)
	for _, ref := range slices.SortedFunc(maps.Keys(r.disks.open), plan.CompareDisks) {
		for id, c := range o.Disks[ref].Copies {
			if c.HasDigest(want) && !c.Leaving && (plan.CopyRef{Disk: ref, ID: id}) != a.CopyRef() {
				near = append(near, job.LocalCopy{Disk: r.disks.open[ref].Disk, ID: id})
			}
		}
	}
	return near
}

// peerCopies says where an action gets its bytes from, if not from this node.
func (s *peers) peerCopies(d plan.Desired, o plan.Observed, a plan.Action) job.PeerCopies {
	f := job.PeerCopies{Client: s.client, Sources: func() []peer.Source { return nil }}
	if a.LocalSource != (plan.CopyRef{}) || !a.Op.ReadsCopies() && a.Op != plan.Verify {
		return f
	}
	f.Digest = d.DigestOf(o, a)
	for _, seen := range o.Disks {
		for _, c := range seen.Copies {
			if c.HasDigest(f.Digest) {
				f.Size = c.Size
			}
		}
	}
	if watch, nodes := s.watch, d.Config.Nodes; watch != nil {
		f.Sources = func() []peer.Source { return sources(watch.Observations(), nodes, f.Digest) }
	}
	return f
}

// sources are the copies of the bytes want that the nodes which answer have to give.
func sources(answers map[string]peer.Observation, nodes map[string]schema.Node, want disk.Digest) []peer.Source {
	var all []peer.Source
	for _, name := range slices.Sorted(maps.Keys(answers)) {
		a := answers[name]
		if !a.Polled || a.Problem != "" {
			continue
		}
		at := peer.Address{Node: name, URL: a.URL} // that a transfer began with may be out of date
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

// activeJob is a job under way.
type activeJob struct {
	job      job.Job
	started  time.Time
	stop     context.CancelFunc
	stopped  bool
	deleting bool // it is decided that the copy goes
	// responses is what was answered about a copy that was withdrawn; nil before.
	responses map[string]plan.Response
}

// confirming reports whether the job is about a withdrawn copy and does nothing to it yet.
func (r *activeJob) confirming() bool { return r.job.Action.Op.Deletes() && !r.deleting }

// cancel tells the job to stop.
func (r *activeJob) cancel() {
	r.stopped = true
	r.stop()
}

// result is how a job ended. One that was told to stop has not failed, whatever
// it says.
type result struct {
	key     plan.CopyRef
	err     error
	stopped bool
	// heard: the job has not ended, but asked, and waits for a decision.
	responses map[string]plan.Response
}

// freeSlots is how many jobs may be started: deletions (true), and others. Deletions do
// not wait for long transfers, as they make room.
func (r *Reconciler) freeSlots(d plan.Desired) map[bool]int {
	limit := max(1, d.Config.Settings.ConcurrentReplenishPerNodeLimit)
	free := map[bool]int{true: limit, false: limit}
	for _, run := range r.running {
		if a := run.job.Action; !a.Scrub && a.Op != plan.Upload { // neither a scrub nor an upload keeps others waiting
			free[a.Op.Deletes()]--
		}
	}
	return free
}

// stopObsolete ends jobs that the plan does not have any more, and those of an
// image whose declaration changed. A transfer goes on even if by now there is a
// nearer source.
func (r *Reconciler) stopObsolete(d plan.Desired, p plan.Plan) {
	wanted := map[plan.CopyRef]plan.Action{}
	for _, a := range p.Actions {
		if !a.Idle() {
			wanted[a.CopyRef()] = a
		}
	}
	for key, run := range r.running {
		now, ok := wanted[key]
		if a := run.job.Action; !ok || a.SupersededBy(run.job.Image, now) || !a.Op.SameDeclaration(run.job.Image, d.Config.Images[key.ID.Name]) {
			run.cancel()
		}
	}
}

// startJob takes note of the job of an action and returns what begins it. A copy that
// is to go is withdrawn from here on.
func (r *Reconciler) startJob(ctx context.Context, d plan.Desired, o plan.Observed, a plan.Action) (begin func()) {
	key := a.CopyRef()
	j := r.newJob(d, o, a)
	j.Progress.Total.Store(a.Bytes)
	if a.Op.Deletes() {
		r.leaving.add(key)
	}
	jobCtx, stop := context.WithCancel(ctx)
	r.running[key] = &activeJob{job: j, started: time.Now(), stop: stop}
	r.transfers.add(key, job.Transfer{Action: a, Progress: j.Progress, Started: time.Now()})
	level := slog.LevelInfo
	if o.Disks[key.Disk].Copies[key.ID].State == disk.Failed && !a.Op.Deletes() {
		level = slog.LevelWarn // a disk that loses bytes should not go unnoticed
	}
	r.log.Log(ctx, level, "started", "action", string(a.Op), "copy", key.String(), "reason", a.Reason)
	work := func() result { return result{key: key, err: j.Run(jobCtx)} }
	if a.Op.Deletes() {
		work = func() result {
			return result{key: key, responses: responsesFromPeers(d.Config.Nodes, j.QueryPeers(jobCtx))}
		}
	}
	return func() {
		go func() {
			e := work()
			e.stopped = jobCtx.Err() != nil
			r.ended <- e
		}()
	}
}

// newJob is the action with everything that it needs.
func (r *Reconciler) newJob(d plan.Desired, o plan.Observed, a plan.Action) job.Job {
	declared, _ := d.Disk(a.CopyRef().Disk)
	client := r.client
	client.AllowLoopback = d.Config.Settings.AllowLoopbackSources
	j := job.Job{
		Action: a, Image: d.Config.Images[a.Image], Reserve: declared.StorageReserved,
		Client: &client, Disk: r.disks.open[a.CopyRef().Disk].Disk, Progress: &fetch.Progress{},
		LocalCopies: r.localCopies(d, o, a), Peers: r.peers.peerCopies(d, o, a), Uploads: r.uploads, Restores: r.restores,
	}
	if (a.Op == plan.Sync || a.Op == plan.Clone) && a.LocalSource != (plan.CopyRef{}) {
		j.Source = r.disks.open[a.LocalSource.Disk].Disk
	}
	if a.Op == plan.Export {
		j.Disks = r.disks.usable()
	}
	j.Peers.Warn = func(err error) { r.log.Warn("bytes are wrong", "copy", a.CopyRef().String(), "error", err) }
	if a.Op.Deletes() {
		j.Query = r.peers.query(d, d.NodesToQuery(o, a))
	}
	return j
}

// Ended gives the end of a job; pass it to Finish.
func (r *Reconciler) Ended() <-chan result { return r.ended }

// Finish takes note of how a job ended, or of what it was answered; a Round has to
// come next.
func (r *Reconciler) Finish(e result) {
	run := r.running[e.key]
	if e.responses != nil && !e.stopped {
		run.responses = e.responses
		return
	}
	delete(r.running, e.key)
	r.transfers.end(e.key, e)
	run.stop()
	a := run.job.Action
	log := r.log.With("action", string(a.Op), "copy", e.key.String())
	switch {
	case e.err == nil && e.responses == nil: // also if it was told to stop just before
		r.clearCopy(e.key)
		log.Info("done", "seconds", time.Since(run.started).Seconds())
	case e.stopped:
		log.Info("stopped; what is there is kept")
	case upload.IsDiscarded(e.err):
		r.clearFailure(e.key)
		log.Info("ended", "reason", e.err)
	default:
		next := job.NextFailure(r.failures[e.key].Failure, a, e.err, time.Now(), rand.Float64())
		r.failures[e.key] = failureRecord{next, run.job.Image, r.disks.uuid(e.key.Disk)}
		log.Warn("failed", "error", e.err, "again", retryText(next))
	}
}

// clearCopy drops what failed before, and what was suspected of the copy.
func (r *Reconciler) clearCopy(key plan.CopyRef) {
	r.clearFailure(key)
	r.clearSuspicions(func(suspect plan.CopyRef) bool { return suspect == key })
}

// clearFailure drops what failed with a copy, but not what other copies are suspected of since.
func (r *Reconciler) clearFailure(key plan.CopyRef) {
	t, failed := r.failures[key]
	if failed {
		r.failures[key] = failureRecord{plan.Failure{Suspects: t.Suspects}, t.image, t.on}
	}
	if len(t.Suspects) == 0 {
		delete(r.failures, key)
	}
}

// clearSuspicions drops what was suspected of some copies.
func (r *Reconciler) clearSuspicions(cleared func(plan.CopyRef) bool) {
	for key, t := range r.failures {
		if !slices.ContainsFunc(t.Suspects, cleared) {
			continue
		}
		t.Suspects = slices.DeleteFunc(slices.Clone(t.Suspects), cleared)
		r.failures[key] = t
		if t.Attempts == 0 && t.Op == "" {
			r.clearFailure(key) // there was nothing else to remember
		}
	}
}

func retryText(t plan.Failure) string {
	switch {
	case t.AppliesTo(plan.Upload):
		return "when somebody uploads it again"
	case t.Final:
		return "not before the declaration changes"
	case t.NeedsSpace > 0:
		return "when " + plan.FormatBytes(t.NeedsSpace) + " are free"
	}
	return t.RetryAt.UTC().Format(time.RFC3339)
}

// dropStaleFailures drops what failed under another declaration, on another disk or on one that is not
// declared any more, and what failed with a file that is not there any more.
func (r *Reconciler) dropStaleFailures(d plan.Desired, o plan.Observed) {
	for key, t := range r.failures {
		now := d.Config.Images[key.ID.Name]
		_, declared := d.Disk(key.Disk)
		if !declared || !t.Op.SameDeclaration(t.image, now) || t.Op.NeedsFile() && o.LostFile(key) || o.IsOtherDisk(key.Disk, t.on) {
			r.clearFailure(key)
		}
	}
	r.clearSuspicions(o.LostFile)
}
