package upload

import (
	"context"
	"errors"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// A job may read for minutes what is left of something else before it opens the part.
// Its client may be gone by then, and the upload has to be found by the next one.
func TestJobOutlivesItsClient(t *testing.T) {
	s := NewSessions()
	one, err := s.create(metadata{Name: parrot.Name}, 512)
	if err != nil {
		t.Fatal(err)
	}
	if had, err := s.Begin(t.Context(), parrot, disk.PartSource{}); had != one || err != nil {
		t.Fatalf("the job has %v, %v", had, err)
	}
	s.drop(one)
	if now, _ := s.find(one.ID); now != one {
		t.Error("the job has an upload that nobody can go on with or end")
	}
	s.End(one, errTerminated, false)
	if len(s.running) > 0 {
		t.Error("the upload has ended, and is under way all the same")
	}
}

// A client may come when nobody has seen yet what the daemon before this one left of its
// upload. It has to come again, and is not to be told that it cannot be.
func TestCreateBeforeInterruptedUploadIsFound(t *testing.T) {
	s := NewSessions()
	one, err := s.create(metadata{Name: parrot.Name}, 512)
	if err != nil {
		t.Fatal(err)
	}
	left := disk.PartSource{ID: disk.PartFromUpload, ETag: "OLDER", Metadata: "name cGFycm90", Size: 1024}
	if had, err := s.Begin(t.Context(), parrot, left); err != nil || had.ID != left.ETag {
		t.Fatalf("the job has %+v, %v", had, err)
	}
	if no, ok := errors.AsType[*httperror.Error](one.outcome()); !ok || !isTemporary(no) {
		t.Errorf("the client is told %v, want that it may come again", one.outcome())
	}
}

// A job that was stopped may be at its last writes when one of another generation of
// the image begins.
func TestJobsDoNotShareUpload(t *testing.T) {
	s := NewSessions()
	one, err := s.create(metadata{Name: parrot.Name}, 512)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(t.Context(), parrot, disk.PartSource{}); err != nil {
		t.Fatal(err)
	}
	older := disk.ID{Name: parrot.Name, UUID: "00000224"}
	left := disk.PartSource{ID: disk.PartFromUpload, ETag: "OLDER", Metadata: "name cGFycm90", Size: 1024}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Begin(ctx, older, left); !errors.Is(err, context.Canceled) {
		t.Errorf("another job has the same upload, or ended with %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		another, err := s.Begin(context.Background(), older, left)
		if err == nil && another.ID != left.ETag {
			err = errors.New("the part is given to upload " + another.ID)
		}
		ended <- err
	}()
	s.End(one, context.Canceled, true)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
