package reconcile

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/evidence"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// keepsRunning reports whether the next round lets a running action of an image continue, and
// returns the plan of that round.
func keepsRunning(d plan.Desired, o plan.Observed, a plan.Action, image schema.Image) (on bool, now plan.Plan) {
	o.Running[a.CopyRef()] = true
	o.Jobs = map[ident.CopyRef]plan.Job{a.CopyRef(): {Action: a, Image: image}}
	now = plan.NewRound(d, o).Plan()
	_, ends := now.Ends[a.CopyRef()]
	return !ends, now
}

// While a first copy without a checksum is created, from its source or from another image with
// the same bytes, a node responds that has a ready copy with other bytes. The job must stop, as
// ready copies of one image must not differ.
func TestFirstCopyStopsWhenOtherBytesAreReady(t *testing.T) {
	otherDigest, digest := plantest.Digest(ident.SHA512, "a"), plantest.Digest(ident.SHA512, "b")
	for _, test := range []struct {
		kind          model.Op
		sum, declared ident.Digest
		failed        bool // a failed copy can be repaired now
		stopped       bool
	}{
		{kind: model.Download, stopped: true},
		{kind: model.Sync, sum: digest, stopped: true},
		{kind: model.Sync, sum: otherDigest},
		{kind: model.Sync, sum: otherDigest, declared: otherDigest},
		{kind: model.Sync, sum: digest, failed: true, stopped: true},
		{kind: model.Sync, sum: otherDigest, failed: true},
	} {
		c, image, refs := plantest.TwoNodes(2)
		image.Checksum = test.declared
		c.Images["parrot"] = image
		o := plantest.EmptyDisks(c)
		o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, otherDigest)
		if test.failed {
			o.Disks[refs[1]].Copies[image.ID] = plantest.FailedCopy(image, otherDigest)
		}
		d, o := plantest.AsNode(refs[1].Node, c, o)
		a := plan.NewAction(test.kind, ident.CopyRef{Disk: refs[1], ID: image.ID}, model.Reason{}, plan.UnknownBytes)
		a.SourceDigest = test.sum
		if on, now := keepsRunning(d, o, a, image); on == test.stopped {
			t.Errorf("%s of %v, declared %v, failed %v: it continues: %v\n%+v", a.Op, a.SourceDigest, test.declared, test.failed, on, now.Actions)
		}
	}
}

// While a first copy without a checksum is created, a node responds whose copy failed a minute
// ago. Until the recovery interval has passed, only the digest of that copy is accepted.
func TestFirstCopyStopsWhenADigestIsPinned(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = ident.Digest{}
	c.Images["parrot"] = image
	o := plantest.EmptyDisks(c)
	d, o := plantest.AsNode(refs[0].Node, c, o)
	a := plan.NewAction(model.Download, ident.CopyRef{Disk: refs[0], ID: image.ID}, model.Reason{}, plan.UnknownBytes)
	if on, now := keepsRunning(d, o, a, image); !on {
		t.Errorf("stopped without a reason: %+v", now.Actions)
	}
	o.Disks[refs[1]].Copies[image.ID] = plantest.FailedCopy(image, plantest.Digest(ident.SHA512, "a"))
	if on, now := keepsRunning(d, o, a, image); on {
		t.Errorf("a download that accepts any bytes continues, the plan is %+v", now.Actions)
	}
	a.Pinned = plan.PinnedDigest{Digest: plantest.Digest(ident.SHA512, "a"), Until: plantest.Now.Add(4 * time.Minute)}
	if on, now := keepsRunning(d, o, a, image); !on {
		t.Errorf("stopped although it has the pinned digest: %+v", now.Actions)
	}
	delete(o.Disks[refs[1]].Copies, image.ID)
	if on, now := keepsRunning(d, o, a, image); !on {
		t.Errorf("stopped although any digest is accepted now: %+v", now.Actions)
	}
}

// A running backup must not continue to a target that is not declared any more.
func TestBackupStopsWhenItsTargetChanges(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Backup = &schema.Backup{Target: "s3://wrong/"}
	c.Images["parrot"] = image
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, image.Checksum)
	d, o := plantest.AsNode(refs[0].Node, c, o)
	a := plan.NewAction(model.Backup, ident.CopyRef{Disk: refs[0], ID: image.ID}, model.Reason{}, 0)
	if on, now := keepsRunning(d, o, a, image); !on {
		t.Fatalf("stopped without a reason: %+v", now.Actions)
	}
	was := image
	image.Backup = &schema.Backup{Target: "s3://right/"}
	c.Images["parrot"] = image
	if on, now := keepsRunning(d, o, a, was); on {
		t.Errorf("the backup continues to the old target, the plan is %+v", now.Actions)
	}
	download := plan.NewAction(model.Download, ident.CopyRef{Disk: refs[0], ID: image.ID}, model.Reason{}, 0)
	delete(o.Disks[refs[0]].Copies, image.ID)
	if on, now := keepsRunning(d, o, download, was); !on {
		t.Errorf("a change of the backup target stops a download: %+v", now.Actions)
	}
}

// A verification at full rate must replace a running scrub when an operator requests it: the scrub
// is slow, and has read a part of the copy before the request.
func TestScrubStopsWhenAVerificationIsRequested(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	c.Settings.ScrubInterval = time.Hour
	c.Images["parrot"] = image
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, image.Checksum)
	d, o := plantest.AsNode(refs[0].Node, c, o)
	a := plan.NewAction(model.Verify, ident.CopyRef{Disk: refs[0], ID: image.ID}, model.Reason{}, 0)
	a.Scrub = true
	if on, now := keepsRunning(d, o, a, image); !on {
		t.Fatalf("stopped without a reason: %+v", now.Actions)
	}
	d.Verify = map[ident.CopyRef]bool{a.CopyRef(): true}
	if on, now := keepsRunning(d, o, a, image); on {
		t.Errorf("the scrub continues, the plan is %+v", now.Actions)
	}
	a.Scrub = false
	if on, now := keepsRunning(d, o, a, image); !on {
		t.Errorf("the requested verification is stopped: %+v", now.Actions)
	}
}

// A scrub lasts for hours: neither its start nor its run may take the slot of a transfer.
func TestScrubTakesNoSlot(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: plantest.NewImage("parrot").ID}
	scrub, transfer := plan.NewAction(model.Verify, key, model.Reason{}, 0), plan.NewAction(model.Sync, key, model.Reason{}, 0)
	scrub.Scrub = true
	j := newJobs()
	j.running[key] = &activeJob{order: job.Order{Action: scrub}}
	free := j.freeSlots(plan.Desired{}) // one of each kind
	if !free.acquire(scrub) || !free.acquire(transfer) {
		t.Error("a transfer waits for a scrub")
	}
	if free.acquire(scrub) {
		t.Error("a scrub begins beside as many transfers as may run")
	}
}

// A request that arrives while another job runs on the same copy must stay until the request is
// fulfilled.
func TestRequestsOutliveOtherJobs(t *testing.T) {
	image := plantest.NewImage("parrot")
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: image.ID}
	for _, test := range []struct {
		kind           model.Op
		end            report
		verify, upload bool // requests that stay
	}{
		{kind: model.Backup, verify: true, upload: true},
		{kind: model.Cleanup, end: report{err: &disk.InUseError{ID: image.ID, Reason: "it is open"}}, verify: true, upload: true},
		{kind: model.Verify, end: report{stopped: true}, verify: true, upload: true},
		{kind: model.Verify, upload: true},
		{kind: model.Download, end: report{err: context.Canceled, stopped: true}, verify: true, upload: true},
		{kind: model.Upload, verify: true},
		{kind: model.Upload, end: report{err: context.Canceled, stopped: true}, verify: true},
	} {
		l := NewLoop(New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true), LoopOptions{})
		test.end.run = newRun(plan.NewAction(test.kind, key, model.Reason{}, 0), image)
		l.reconciler.jobs.add(test.end.run)
		l.reconciler.jobs.reports.add(test.end)
		l.requested.verify[key], l.requested.uploads[key] = true, true
		reports, _ := l.reconciler.handleReports()
		l.requested.note(reports)
		if l.requested.verify[key] != test.verify || l.requested.uploads[key] != test.upload {
			t.Errorf("%s ended with %+v: verification requested: %v, upload: %v", test.kind, test.end, l.requested.verify[key], l.requested.uploads[key])
		}
	}
}

// A failed copy can be repaired from another image on its node, but by now another node has a
// ready copy with other bytes: the failed copy must be replaced by a sync of those bytes.
func TestRepairStopsWhenReadyCopiesHaveOtherBytes(t *testing.T) {
	otherDigest, digest := plantest.Digest(ident.SHA512, "a"), plantest.Digest(ident.SHA512, "b")
	c, image, refs := plantest.TwoNodes(2)
	image.Checksum = ident.Digest{}
	other := plantest.NewImage("other")
	other.Checksum, other.Disks = digest, []ident.DiskRef{refs[1]}
	c.Images["parrot"], c.Images["other"] = image, other
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, otherDigest)
	o.Disks[refs[1]].Copies[image.ID] = plantest.FailedCopy(image, digest)
	o.Disks[refs[1]].Copies[other.ID] = plantest.ReadyCopy(other, digest)
	d, o := plantest.AsNode(refs[1].Node, c, o)
	for _, a := range plan.NewRound(d, o).Plan().Actions {
		if a.Image == "parrot" && (a.Op != model.Sync || d.DigestOf(o, a) != otherDigest) {
			t.Errorf("%s (%s) from %s", a.Op, a.Reason, a.From)
		}
	}
	repair := plan.NewAction(model.Repair, ident.CopyRef{Disk: refs[1], ID: image.ID}, model.Reason{}, 0)
	repair.SourceDigest = digest
	if on, now := keepsRunning(d, o, repair, image); on {
		t.Errorf("the repair continues, the plan is %+v", now.Actions)
	}
}

// The only source of two running syncs did not respond to one query. Their data may still flow:
// neither the sync on the best remaining disk nor the other one must be stopped.
func TestSyncContinuesWhenItsSourceMissesOneQuery(t *testing.T) {
	sum := plantest.Digest(ident.SHA512, "a")
	for _, checksum := range []ident.Digest{sum, {}} {
		for which := 1; which <= 2; which++ {
			c, image := plantest.NewConfig(3, 1), plantest.NewImage("parrot")
			image.Copies, image.Checksum = 3, checksum
			c.Images["parrot"] = image
			c.Settings.RecoveryWaitInterval, c.Settings.ConcurrentReplenishPerNodeLimit = 5*time.Minute, 5
			refs := plantest.RankedDisks(c, image)
			o := plantest.EmptyDisks(c)
			o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, sum)
			for _, ref := range refs[1:] {
				o.Disks[ref].Copies[image.ID] = model.Copy{ID: image.ID, State: model.Pending, Owned: true, PartBytes: 1 << 19, PartTotal: 1 << 20}
				o.Running[ident.CopyRef{Disk: ref, ID: image.ID}] = true
			}
			o.Peers[refs[0].Node] = model.Peer{Queried: true, Problem: "it does not answer in time", UnreachableSince: o.Now.Add(-11 * time.Second)}
			d, o := plantest.AsNode(refs[which].Node, c, o)
			a := plan.NewAction(model.Sync, ident.CopyRef{Disk: refs[which], ID: image.ID}, model.Reason{}, plan.UnknownBytes)
			a.SourceDigest = sum
			if on, now := keepsRunning(d, o, a, image); !on {
				t.Errorf("declared %v: the sync on the disk of rank %d is stopped: %+v", checksum, which, now.Actions)
			}
			a.Op = model.Download
			if on, now := keepsRunning(d, o, a, image); on && which == 2 {
				t.Errorf("declared %v: a download continues beside one on a better disk: %+v", checksum, now.Actions)
			}
		}
	}
}

// A query of peers before a deletion is stopped. It must not count as a clean-up, nor clear the
// suspicion against the copy.
func TestStoppedQueryIsNoCleanup(t *testing.T) {
	_, image, refs := plantest.TwoNodes(1)
	key, other := ident.CopyRef{Disk: refs[0], ID: image.ID}, ident.CopyRef{Disk: refs[1], ID: image.ID}
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true)
	run := newRun(plan.NewAction(model.Cleanup, key, model.Reason{}, 0), image)
	run.deletion = &deletion{}
	r.jobs.add(run)
	r.failures[other] = evidence.Failure{Failure: model.Failure{Op: model.Sync, Suspects: []ident.CopyRef{key}}, Image: image}
	r.jobs.reports.add(report{run: run, responses: map[string]plan.Response{}, err: context.Canceled, stopped: true})
	r.handleReports()
	if n := r.jobs.totals().Done[model.Cleanup]; n != 0 || len(r.failures[other].Suspects) == 0 {
		t.Errorf("%d clean-ups are counted, suspects left: %v", n, r.failures[other].Suspects)
	}
}

// TestSeedsAreBeingRead checks that a copy is not deleted while a sync reads chunks from it, and that this
// is no use of it, which would restart its clean-up interval.
func TestSeedsAreBeingRead(t *testing.T) {
	at := ident.DiskRef{Node: "node1", Disk: "disk1"}
	old := ident.CopyRef{Disk: at, ID: ident.ID{Name: "parrot", UUID: "00000001"}}
	new := ident.CopyRef{Disk: at, ID: ident.ID{Name: "parrot", UUID: "00000002"}}
	j := newJobs()
	j.running[new] = &activeJob{order: job.Order{Action: plan.Action{Op: model.Sync}, Seeds: []ident.CopyRef{old}}}
	o := plan.Observed{Running: map[ident.CopyRef]bool{}, BeingRead: map[ident.CopyRef]bool{}, Jobs: map[ident.CopyRef]plan.Job{}, Disks: map[ident.DiskRef]model.Disk{}}
	j.addTo(o)
	if !j.read(old) || !o.BeingRead[old] {
		t.Errorf("read %v, being read %v", j.read(old), o.BeingRead[old])
	}
}
