package reconcile

import (
	"io/fs"
	"log/slog"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestForgetsWhatFailedWithALostFile: what failed with a file says nothing when that is gone,
// nor before it is known to be.
func TestForgetsWhatFailedWithALostFile(t *testing.T) {
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
func TestForgetsWhatFailedOnARemovedDisk(t *testing.T) {
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
