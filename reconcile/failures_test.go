package reconcile

import (
	"context"
	"io/fs"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// finished is a Reconciler in which an action has just ended so.
func finished(a plan.Action, err error) *Reconciler {
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
	finishJob(r, a, err)
	return r
}

func finishJob(r *Reconciler, a plan.Action, err error) {
	r.running[a.CopyRef()] = &activeJob{task: Task{Action: a, Image: plantest.NewImage(a.Image)}, stop: func() {}}
	r.transfers.add(a.CopyRef(), job.Transfer{Action: a, Progress: &fetch.Progress{}})
	r.endJob(jobEnd{key: a.CopyRef(), err: err})
}

// The clock on the wall was a year ahead when something failed. What is set back then is not
// put off for a year.
func TestBackoffUsesTheMonotonicClock(t *testing.T) {
	_, image, refs := plantest.TwoNodes(1)
	a := plan.NewAction(plan.Download, plan.CopyRef{Disk: refs[0], ID: image.ID}, plan.Reason{}, 0)
	right := time.Now().AddDate(-1, 0, 0).UTC()
	recalled := a
	recalled.Pinned = plan.PinnedDigest{Digest: plantest.Digest(disk.SHA512, "a"), Until: time.Now().Add(5 * time.Minute).UTC()}
	for what, r := range map[string]*Reconciler{
		"a failure": finished(a, context.DeadlineExceeded),
		"a recall":  finished(recalled, &disk.ChecksumError{}),
	} {
		kept := r.failures[a.CopyRef()].Failure
		if kept.RetryAt == kept.RetryAt.Round(0) || kept.Since == kept.Since.Round(0) {
			t.Errorf("%s: it is kept by the wall clock: %+v", what, kept)
		}
		seen := kept.OnWallClock(time.Now(), right)
		if wait := seen.RetryAt.Sub(right); wait > 6*time.Minute || wait < 0 {
			t.Errorf("%s: the next attempt is in %v", what, wait)
		}
		if since := right.Sub(seen.Since); since < 0 || since > time.Minute {
			t.Errorf("%s: it failed %v ago", what, since)
		}
	}
}

// A copy that gave other bytes than its own is suspected until it is verified, also when its
// reader got the bytes elsewhere before that, or is declared otherwise.
func TestCopyStaysSuspectedUntilVerified(t *testing.T) {
	_, image, refs := plantest.TwoNodes(1)
	without := plan.Desired{Config: plantest.NewConfig(2, 1)}
	suspect, sum := plan.CopyRef{Disk: refs[0], ID: image.ID}, plantest.Digest(disk.SHA512, "a")
	read := plan.NewAction(plan.Sync, plan.CopyRef{Disk: refs[1], ID: image.ID}, plan.Reason{}, 0)
	read.LocalSource, read.SourceDigest = suspect, sum
	wrong := &disk.ChecksumError{Want: sum, Got: plantest.Digest(disk.SHA512, "b")}
	suspected := func(r *Reconciler) bool {
		tries := map[plan.CopyRef]plan.Failure{}
		for key, t := range r.failures {
			tries[key] = t.Failure
		}
		return plan.Suspects(tries)[suspect]
	}
	there := plan.Observed{Disks: map[schema.DiskRef]plan.Disk{refs[0]: {Copies: map[disk.ID]plan.Copy{image.ID: plantest.ReadyCopy(image, sum)}}}}
	for what, then := range map[string]func(r *Reconciler){
		"its reader succeeded": func(r *Reconciler) {
			finishJob(r, plan.NewAction(plan.Download, read.CopyRef(), plan.Reason{}, 0), nil)
		},
		"another declaration": func(r *Reconciler) { r.dropStaleFailures(without, there) },
	} {
		r := finished(read, wrong)
		if then(r); !suspected(r) {
			t.Errorf("%s: the copy is trusted and was not read", what)
		}
		if f := r.failures[read.CopyRef()]; f.AppliesTo(plan.Download) && (f.Final || f.RetryAt.After(time.Now())) {
			t.Errorf("%s: what is over puts something off", what)
		}
		finishJob(r, plan.NewAction(plan.Verify, suspect, plan.Reason{}, 0), nil)
		if suspected(r) || len(r.failures) > 0 {
			t.Errorf("%s, and the copy was read: remembered is %+v", what, r.failures)
		}
	}
	r := finished(read, wrong)
	delete(there.Disks[refs[0]].Copies, image.ID)
	if r.dropStaleFailures(without, there); len(r.failures) > 0 {
		t.Errorf("the copy is not there any more: remembered is %+v", r.failures)
	}
}

// A disk that could not be used was taken out of the configuration. It is declared anew, or at
// another path, before it is mounted: it is away from then on.
func TestProblemTimeRestartsWhenADiskIsDeclaredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, refs := plantest.TwoNodes(1)
		d := plan.Desired{Node: refs[0].Node, Config: c}
		r := New(fetch.Client{}, slog.New(slog.DiscardHandler), true)
		away := func() time.Duration {
			o := plan.Observed{Disks: map[schema.DiskRef]plan.Disk{}}
			if declared, ok := d.Disk(refs[0]); ok {
				o.Disks[refs[0]] = plan.Disk{Path: declared.Path, Problem: "not mounted"}
			}
			r.trackProblems(d, o, time.Now())
			return o.Disks[refs[0]].ProblemFor
		}
		disks := d.Config.Nodes[refs[0].Node].Disks
		is := disks[refs[0].Disk]
		away()
		time.Sleep(time.Hour)
		if got := away(); got != time.Hour {
			t.Errorf("after an hour it is away for %v", got)
		}
		delete(disks, refs[0].Disk)
		away()
		disks[refs[0].Disk] = is
		if got := away(); got != 0 {
			t.Errorf("declared anew, it is away for %v", got)
		}
		time.Sleep(time.Hour)
		is.Path += "/elsewhere"
		disks[refs[0].Disk] = is
		if got := away(); got != 0 {
			t.Errorf("declared elsewhere, it is away for %v", got)
		}
	})
}

// TestForgetsWhatFailedWithALostFile: what failed with a file says nothing when that is gone,
// nor before it is known to be.
func TestFailureIsDroppedWhenItsFileIsGone(t *testing.T) {
	c, image := plantest.NewConfig(1, 1), plantest.NewImage("parrot")
	c.Images["parrot"] = image
	d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
	key := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: image.ID}
	o.Disks[key.Disk].Copies[key.ID] = plantest.ReadyCopy(image, image.Checksum)
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	fail := func(kind plan.Op) {
		r.failures[key] = failureRecord{Failure: job.NextFailure(plan.Failure{}, plan.Action{Op: kind}, fs.ErrNotExist, plantest.Now, 0.5), image: image}
	}
	remembers := func(what string, want bool) {
		t.Helper()
		r.dropStaleFailures(d, o)
		if _, got := r.failures[key]; got != want {
			t.Errorf("%s: it remembers: %v, want %v", what, got, want)
		}
	}
	fail(plan.Adopt)
	remembers("the file is there", true)
	seen := o.Disks[key.Disk]
	seen.Problem = "not mounted"
	copies := seen.Copies
	seen.Copies = nil
	o.Disks[key.Disk] = seen
	remembers("the disk is away", true)
	seen.Problem = ""
	o.Disks[key.Disk] = seen
	remembers("there is no folder", false)
	seen.Copies = copies
	copies[key.ID] = plan.Copy{Copy: disk.Copy{ID: key.ID, State: disk.Pending}}
	o.Disks[key.Disk] = seen
	fail(plan.Repair)
	remembers("there is no file", false)
	fail(plan.Download)
	remembers("a download needs none", true)
}

// TestForgetsWhatFailedOnARemovedDisk: nobody can do anything about it, and a status told of it
// as of a copy.
func TestFailureIsDroppedWhenItsDiskIsNotDeclared(t *testing.T) {
	c, image := plantest.NewConfig(1, 1), plantest.NewImage("parrot")
	c.Images["parrot"] = image
	d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
	key := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: image.ID}
	away := key
	away.Disk.Disk = "removed"
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	for _, on := range []plan.CopyRef{key, away} {
		r.failures[on] = failureRecord{Failure: job.NextFailure(plan.Failure{}, plan.Action{Op: plan.Cleanup}, disk.ErrNoSpace, plantest.Now, 0.5), image: image}
	}
	r.dropStaleFailures(d, o)
	if _, got := r.failures[key]; !got {
		t.Error("it remembers nothing of a disk that is declared")
	}
	if _, got := r.failures[away]; got {
		t.Error("it remembers what failed on a disk that is not declared any more")
	}
}
