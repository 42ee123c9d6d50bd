package reconcile

import (
	"context"
	"io/fs"
	"log/slog"
	"reflect"
	"testing"
	"testing/synctest"
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

// finished returns a Reconciler in which a job of an action has just ended with err.
func finished(a plan.Action, err error) *Reconciler {
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true)
	finishJob(r, a, err)
	return r
}

// newRun returns a running job of an action.
func newRun(a plan.Action, image schema.Image) *activeJob {
	return &activeJob{order: job.Order{Action: a, Image: image, Progress: &fetch.Progress{}}, stop: func() {}}
}

func finishJob(r *Reconciler, a plan.Action, err error) {
	run := newRun(a, plantest.NewImage(a.Image))
	r.jobs.add(run)
	r.endJob(report{run: run, err: err})
}

// The wall clock was a year ahead when a job failed, and is set back. The retry must not be
// delayed by a year.
func TestBackoffUsesTheMonotonicClock(t *testing.T) {
	_, image, refs := plantest.TwoNodes(1)
	a := plan.NewAction(model.Download, ident.CopyRef{Disk: refs[0], ID: image.ID}, model.Reason{}, 0)
	right := time.Now().AddDate(-1, 0, 0).UTC()
	pinned := a
	pinned.Pinned = plan.PinnedDigest{Digest: plantest.Digest(ident.SHA512, "a"), Until: time.Now().Add(5 * time.Minute).UTC()}
	for what, r := range map[string]*Reconciler{
		"a failure":       finished(a, context.DeadlineExceeded),
		"a pinned digest": finished(pinned, &disk.ChecksumError{}),
	} {
		kept := r.failures[a.CopyRef()].Failure
		if kept.RetryAt == kept.RetryAt.Round(0) || kept.Since == kept.Since.Round(0) {
			t.Errorf("%s: the times are of the wall clock: %+v", what, kept)
		}
		seen := kept.Translated(time.Now(), right)
		if wait := seen.RetryAt.Sub(right); wait > 6*time.Minute || wait < 0 {
			t.Errorf("%s: the next attempt is in %v", what, wait)
		}
		if since := right.Sub(seen.Since); since < 0 || since > time.Minute {
			t.Errorf("%s: it failed %v ago", what, since)
		}
	}
}

// A copy from which a sync read wrong bytes is suspected until it is verified, even if the sync
// got the bytes elsewhere before that, or its image is declared differently.
func TestCopyStaysSuspectedUntilVerified(t *testing.T) {
	_, image, refs := plantest.TwoNodes(1)
	without := plan.Desired{Config: plantest.NewConfig(2, 1)}
	suspect, sum := ident.CopyRef{Disk: refs[0], ID: image.ID}, plantest.Digest(ident.SHA512, "a")
	read := plan.NewAction(model.Sync, ident.CopyRef{Disk: refs[1], ID: image.ID}, model.Reason{}, 0)
	read.LocalSource, read.SourceDigest = suspect, sum
	wrong := &disk.ChecksumError{Want: sum, Got: plantest.Digest(ident.SHA512, "b")}
	suspected := func(r *Reconciler) bool {
		failures := map[ident.CopyRef]model.Failure{}
		for key, f := range r.failures {
			failures[key] = f.Failure
		}
		return plan.Suspects(failures)[suspect]
	}
	there := plan.Observed{Disks: map[ident.DiskRef]model.Disk{refs[0]: {Copies: map[ident.ID]model.Copy{image.ID: plantest.ReadyCopy(image, sum)}}}}
	for what, then := range map[string]func(r *Reconciler){
		"the sync succeeded": func(r *Reconciler) {
			finishJob(r, plan.NewAction(model.Download, read.CopyRef(), model.Reason{}, 0), nil)
		},
		"another declaration": func(r *Reconciler) { r.failures.DropStale(without, there) },
	} {
		r := finished(read, wrong)
		if then(r); !suspected(r) {
			t.Errorf("%s: the copy is not suspected any more, without a verification", what)
		}
		if f := r.failures[read.CopyRef()]; f.AppliesTo(model.Download) && (f.Final || f.RetryAt.After(time.Now())) {
			t.Errorf("%s: the old failure still delays a download", what)
		}
		finishJob(r, plan.NewAction(model.Verify, suspect, model.Reason{}, 0), nil)
		if suspected(r) || len(r.failures) > 0 {
			t.Errorf("%s, and the copy was verified: the failures are %+v", what, r.failures)
		}
	}
	r := finished(read, wrong)
	delete(there.Disks[refs[0]].Copies, image.ID)
	if r.failures.DropStale(without, there); len(r.failures) > 0 {
		t.Errorf("the copy does not exist any more: the failures are %+v", r.failures)
	}
}

// The time for which a disk has had a problem begins again when the disk is declared again, or at
// another path.
func TestProblemTimeRestartsWhenADiskIsDeclaredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, refs := plantest.TwoNodes(1)
		d := plan.Desired{Node: refs[0].Node, Config: c}
		r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), true)
		problemFor := func() time.Duration {
			o := plan.Observed{Now: time.Now(), Disks: map[ident.DiskRef]model.Disk{}}
			if declared, ok := d.Disk(refs[0]); ok {
				o.Disks[refs[0]] = model.Disk{Path: declared.Path, Problem: "not mounted"}
			}
			r.disks.trackProblems(d, o, time.Now())
			return o.Disks[refs[0]].ProblemFor(o.Now)
		}
		disks := d.Config.Nodes[refs[0].Node].Disks
		is := disks[refs[0].Disk]
		problemFor()
		time.Sleep(time.Hour)
		if got := problemFor(); got != time.Hour {
			t.Errorf("after an hour it has the problem for %v", got)
		}
		delete(disks, refs[0].Disk)
		problemFor()
		disks[refs[0].Disk] = is
		if got := problemFor(); got != 0 {
			t.Errorf("declared again, it has the problem for %v", got)
		}
		time.Sleep(time.Hour)
		is.Path += "/elsewhere"
		disks[refs[0].Disk] = is
		if got := problemFor(); got != 0 {
			t.Errorf("declared at another path, it has the problem for %v", got)
		}
	})
}

// The failure of a job that needs a file is dropped when the file is gone, but not before a disk
// without problem shows that.
func TestFailureIsDroppedWhenItsFileIsGone(t *testing.T) {
	c, image := plantest.NewConfig(1, 1), plantest.NewImage("parrot")
	c.Images["parrot"] = image
	d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: image.ID}
	o.Disks[key.Disk].Copies[key.ID] = plantest.ReadyCopy(image, image.Checksum)
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	fail := func(op model.Op) {
		r.failures[key] = evidence.Failure{Failure: job.NextFailure(model.Failure{}, plan.Action{Op: op}, fs.ErrNotExist, plantest.Now, 0.5), Image: image}
	}
	expectKept := func(when string, want bool) {
		t.Helper()
		r.failures.DropStale(d, o)
		if _, got := r.failures[key]; got != want {
			t.Errorf("%s: the failure is kept: %v, want %v", when, got, want)
		}
	}
	fail(model.Adopt)
	expectKept("the file exists", true)
	seen := o.Disks[key.Disk]
	seen.Problem = "not mounted"
	copies := seen.Copies
	seen.Copies = nil
	o.Disks[key.Disk] = seen
	expectKept("the disk has a problem", true)
	seen.Problem = ""
	o.Disks[key.Disk] = seen
	expectKept("the folder is gone", false)
	seen.Copies = copies
	copies[key.ID] = model.Copy{ID: key.ID, State: model.Pending}
	o.Disks[key.Disk] = seen
	fail(model.Repair)
	expectKept("the file is gone", false)
	fail(model.Download)
	expectKept("a download needs no file", true)
}

// A failure is dropped when its disk is not declared any more. Nobody can act on it, and the status
// would show a failed copy on a disk that is not declared.
func TestFailureIsDroppedWhenItsDiskIsNotDeclared(t *testing.T) {
	c, image := plantest.NewConfig(1, 1), plantest.NewImage("parrot")
	c.Images["parrot"] = image
	d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: image.ID}
	removed := key
	removed.Disk.Disk = "removed"
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	for _, on := range []ident.CopyRef{key, removed} {
		r.failures[on] = evidence.Failure{Failure: job.NextFailure(model.Failure{}, plan.Action{Op: model.Cleanup}, disk.ErrNoSpace, plantest.Now, 0.5), Image: image}
	}
	r.failures.DropStale(d, o)
	if _, got := r.failures[key]; !got {
		t.Error("the failure on a declared disk is dropped")
	}
	if _, got := r.failures[removed]; got {
		t.Error("the failure on a disk that is not declared any more is kept")
	}
}

// If a copy is deleted after its transfer failed for lack of space, the failure is kept: without the copy,
// the disk has only as much space as before the attempt.
func TestLackOfSpaceOutlivesTheCopy(t *testing.T) {
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "00000001"}}
	for _, tt := range []struct {
		failed, after model.Failure
	}{
		{model.Failure{Op: model.Sync, Attempts: 2, NeedsSpace: 5}, model.Failure{Op: model.Sync, Attempts: 2, NeedsSpace: 5}},
		{model.Failure{Op: model.Verify, Attempts: 1, NeedsSpace: 5}, model.Failure{Attempts: 1, NeedsSpace: 5}},
		{model.Failure{Op: model.Sync, Attempts: 2}, model.Failure{}},
		{model.Failure{Op: model.Cleanup, Attempts: 1, NeedsSpace: 5}, model.Failure{}},
	} {
		f := evidence.Failures{key: {Failure: tt.failed}}
		f.ClearDeleted(key)
		if got := f[key].Failure; !reflect.DeepEqual(got, tt.after) {
			t.Errorf("of %+v remains %+v, want %+v", tt.failed, got, tt.after)
		}
	}
}
