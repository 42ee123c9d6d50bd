package reconcile

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestNextOfFirstCopies: what is the fault of a node's own source says nothing of that
// of another node.
func TestNextOfFirstCopies(t *testing.T) {
	from := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: disk.ID{Name: "parrot", UUID: "0000000a"}}
	a, b := digestOf(disk.SHA512, "a"), digestOf(disk.SHA512, "b")
	clone := plan.Action{Op: plan.Clone, LocalSource: from, SourceDigest: a}
	for _, tt := range []struct {
		name                 string
		a                    plan.Action
		err                  error
		suspect, final, link bool
	}{
		{"the source of a clone has other bytes than its own", clone, &disk.ChecksumError{Want: a, Got: b}, true, false, true},
		{"the source of a clone has other bytes than are declared", clone, &disk.ChecksumError{Want: b, Got: a}, false, true, false},
		{"a download has other bytes than are declared", plan.Action{Op: plan.Download}, &disk.ChecksumError{Want: a, Got: b}, false, true, false},
		{"a replica cannot be read", plan.Action{Op: plan.Export}, &fetch.Error{Class: fetch.Refused, Err: errors.New("it has no head")}, false, false, true},
		{"a server says no", plan.Action{Op: plan.Download}, &fetch.Error{Class: fetch.Refused, Err: errors.New("403")}, false, false, false},
		{"a volume is no disk", plan.Action{Op: plan.Export}, &fetch.Error{Class: fetch.BadSource, Err: errors.New("it is a folder")}, false, true, false},
	} {
		got := job.NextFailure(plan.Failure{}, tt.a, tt.err, goldenNow, 0.5)
		if (len(got.Suspects) > 0) != tt.suspect || got.Final != tt.final || got.Link != tt.link || !got.Final && !got.RetryAt.After(goldenNow) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// TestNextOfAFullDisk: a disk that is full says nothing of the source, whoever ran into it,
// and a full store of backups nothing of the disk.
func TestNextOfAFullDisk(t *testing.T) {
	lack := &disk.NoSpaceError{Need: gib, Free: 1}
	for _, tt := range []struct {
		err   error
		disk  bool
		space int64
	}{
		{lack, true, gib},
		{fetch.ClassifyDiskError(lack), true, gib},
		{fetch.ClassifyDiskError(fmt.Errorf("write: %w", disk.ErrNoSpace)), true, 0},
		{&fetch.Error{Class: fetch.NoSpace, Err: errors.New("507")}, false, 0},
	} {
		got := job.NextFailure(plan.Failure{}, plan.Action{Op: plan.Download}, tt.err, goldenNow, 0.5)
		if got.Disk != tt.disk || got.NeedsSpace != tt.space || got.Final || got.Link {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
}

// TestForgetsWhatFailedWithALostFile: what failed with a file says nothing when that is gone,
// nor before it is known to be.
func TestForgetsWhatFailedWithALostFile(t *testing.T) {
	a := newAviary(1, 1)
	a.has("node1")
	key := a.key("node1")
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	fail := func(kind plan.Op) {
		r.failures[key] = failureRecord{Failure: job.NextFailure(plan.Failure{}, plan.Action{Op: kind}, fs.ErrNotExist, goldenNow, 0.5), image: a.parrot}
	}
	remembers := func(what string, want bool) {
		t.Helper()
		r.dropStaleFailures(a.desired("node1"), a.seen["node1"])
		if _, got := r.failures[key]; got != want {
			t.Errorf("%s: it remembers: %v, want %v", what, got, want)
		}
	}
	fail(plan.Adopt)
	remembers("the file is there", true)
	seen := a.seen["node1"].Disks[key.Disk]
	seen.Problem = "not mounted"
	copies := seen.Copies
	seen.Copies = nil
	a.seen["node1"].Disks[key.Disk] = seen
	remembers("the disk is away", true)
	seen.Problem = ""
	a.seen["node1"].Disks[key.Disk] = seen
	remembers("there is no folder", false)
	seen.Copies = copies
	copies[key.ID] = plan.Copy{Copy: disk.Copy{ID: key.ID, State: disk.Pending}}
	a.seen["node1"].Disks[key.Disk] = seen
	fail(plan.Repair)
	remembers("there is no file", false)
	fail(plan.Download)
	remembers("a download needs none", true)
}

// TestForgetsWhatFailedOnARemovedDisk: nobody can do anything about it, and a status told of it
// as of a copy.
func TestForgetsWhatFailedOnARemovedDisk(t *testing.T) {
	a := newAviary(1, 1)
	key, away := a.key("node1"), a.key("node1")
	away.Disk.Disk = "removed"
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	for _, on := range []plan.CopyRef{key, away} {
		r.failures[on] = failureRecord{Failure: job.NextFailure(plan.Failure{}, plan.Action{Op: plan.Cleanup}, disk.ErrNoSpace, goldenNow, 0.5), image: a.parrot}
	}
	r.dropStaleFailures(a.desired("node1"), a.seen["node1"])
	if _, got := r.failures[key]; !got {
		t.Error("it remembers nothing of a disk that is declared")
	}
	if _, got := r.failures[away]; got {
		t.Error("it remembers what failed on a disk that is not declared any more")
	}
}
