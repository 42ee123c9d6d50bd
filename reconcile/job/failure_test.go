package job_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/signature"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

var badSignature = signature.Errorf(signature.BadSignature, "other bytes")

// A fault of a source that only this node has must not stop another node from trying its own
// source.
func TestNextFailureOfFirstCopies(t *testing.T) {
	from := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: "parrot", UUID: "0000000a"}}
	a, b := plantest.Digest(ident.SHA512, "a"), plantest.Digest(ident.SHA512, "b")
	clone := plan.Action{Op: model.Clone, LocalSource: from, SourceDigest: a}
	for _, tt := range []struct {
		name                 string
		a                    plan.Action
		err                  error
		suspect, final, link bool
	}{
		{"the source of a clone does not have its own digest", clone, &disk.ChecksumError{Want: a, Got: b}, true, false, true},
		{"the source of a clone does not have the declared digest", clone, &disk.ChecksumError{Want: b, Got: a}, false, true, false},
		{"a download does not have the declared digest", plan.Action{Op: model.Download}, &disk.ChecksumError{Want: a, Got: b}, false, true, false},
		{"a download has no valid signature", plan.Action{Op: model.Download}, &disk.SignatureError{Err: badSignature}, false, true, false},
		{"a list has no valid signature", plan.Action{Op: model.Download}, &fetch.Error{Class: fetch.BadSource, Err: badSignature}, false, true, false},
		{"the keys are missing", plan.Action{Op: model.Download}, &fetch.Error{Class: fetch.BadConfig, Err: signature.Errorf(signature.NoKeys, "none")}, false, false, true},
		{"a replica cannot be read", plan.Action{Op: model.Export}, &fetch.Error{Class: fetch.Refused, Err: errors.New("it has no head")}, false, false, true},
		{"a server refuses", plan.Action{Op: model.Download}, &fetch.Error{Class: fetch.Refused, Err: errors.New("403")}, false, false, false},
		{"a volume is a folder", plan.Action{Op: model.Export}, &fetch.Error{Class: fetch.BadSource, Err: errors.New("it is a folder")}, false, true, false},
	} {
		got := job.NextFailure(model.Failure{}, tt.a, tt.err, plantest.Now, 0.5)
		if (len(got.Suspects) > 0) != tt.suspect || got.Final != tt.final || (got.Fault == model.FaultNetwork) != tt.link || !got.Final && !got.RetryAt.After(plantest.Now) {
			t.Errorf("%s: %+v", tt.name, got)
		}
	}
}

// A download with wrong bytes or without a valid signature is tried again after an hour, and ever more rarely, at least once a day.
// An upload or an export with wrong bytes is not tried again by itself: a person must send another file,
// and another export would have the same bytes.
func TestWrongBytesAreTriedAgainRarely(t *testing.T) {
	wrong := &disk.ChecksumError{Want: plantest.Digest(ident.SHA512, "a"), Got: plantest.Digest(ident.SHA512, "b")}
	for i, op := range []model.Op{model.Download, model.Restore, model.Upload, model.Export, model.Download, model.Download} {
		err := [...]error{4: &disk.SignatureError{Err: badSignature}, 5: &fetch.Error{Class: fetch.BadSource, Err: badSignature}}[i]
		if err == nil {
			err = wrong
		}
		var last model.Failure
		for _, hours := range []int{1, 2, 4, 8, 16, 24, 24} {
			last = job.NextFailure(last, plan.Action{Op: op}, err, plantest.Now, 0)
			want := plantest.Now.Add(time.Duration(hours) * time.Hour)
			if op == model.Upload || op == model.Export {
				want = time.Time{}
			}
			if !last.Final || !last.RetryAt.Equal(want) {
				t.Errorf("%s: attempt %d: final=%v, the next one at %v, want %v", op, last.Attempts, last.Final, last.RetryAt, want)
			}
		}
	}
}

// A full disk is no fault of the source, whatever code reports it. A full backup store is no
// fault of the disk.
func TestNextFailureOfAFullDisk(t *testing.T) {
	noSpace := &disk.NoSpaceError{Need: 1 << 30, Free: 1}
	for _, tt := range []struct {
		err   error
		disk  bool
		space int64
	}{
		{noSpace, true, 1 << 30},
		{fetch.ClassifyDiskError(noSpace), true, 1 << 30},
		{fetch.ClassifyDiskError(fmt.Errorf("write: %w", disk.ErrNoSpace)), true, 0},
		{&fetch.Error{Class: fetch.NoSpace, Err: errors.New("507")}, false, 0},
	} {
		got := job.NextFailure(model.Failure{}, plan.Action{Op: model.Download}, tt.err, plantest.Now, 0.5)
		if (got.Fault == model.FaultDisk) != tt.disk || got.NeedsSpace != tt.space || got.Final || got.Fault == model.FaultNetwork {
			t.Errorf("%v: %+v", tt.err, got)
		}
	}
}

// A server chooses the delay with Retry-After, but neither below the backoff after several
// attempts, nor above an hour.
func TestRetryAfterIsBounded(t *testing.T) {
	a := plan.Action{Op: model.Download}
	for retryAfter, want := range map[time.Duration]time.Duration{
		time.Second:          5 * time.Minute,
		10 * time.Minute:     10 * time.Minute,
		365 * 24 * time.Hour: time.Hour,
	} {
		var last model.Failure
		for range 9 {
			last = job.NextFailure(last, a, &fetch.Error{Class: fetch.Network, RetryAfter: retryAfter, Err: errors.New("503")}, plantest.Now, 0)
		}
		if got := last.RetryAt.Sub(plantest.Now); got != want {
			t.Errorf("Retry-After %v: the delay after 9 attempts is %v, want %v", retryAfter, got, want)
		}
	}
}

// The repair of a copy in use failed, as its upstream has other bytes by now. Then another node
// responds, which has the right bytes: the repair must be planned again.
func TestRepairIsRetriedAfterAnotherChunk(t *testing.T) {
	c, image, refs := plantest.TwoNodes(2)
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, image.Checksum)
	failed := plantest.FailedCopy(image, image.Checksum)
	failed.UsedBy = "a volume uses it"
	o.Disks[refs[1]].Copies[image.ID] = failed
	a := plan.NewAction(model.Repair, ident.CopyRef{Disk: refs[1], ID: image.ID}, model.Reason{}, 0)
	o.Failures[a.CopyRef()] = job.NextFailure(model.Failure{}, a, &fetch.Error{Class: fetch.BadSource, Err: errors.New("chunk 7 does not match the chunk manifest")}, plantest.Now, 0.5)
	o.Now = o.Now.Add(time.Hour)
	d, o := plantest.AsNode(refs[1].Node, c, o)
	plantest.ExpectAction(t, plan.NewRound(d, o).Plan())
}
