package upload

import (
	"context"
	"errors"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// TestJobOutlivesItsClient: a job may read the partial file for minutes before it opens the upload.
// The client may disconnect before that, and the next client must find the upload.
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
	if now := s.find(one.ID); now != one {
		t.Error("the upload of the job cannot be found")
	}
	s.End(one, errTerminated, false)
	if len(s.running) > 0 {
		t.Error("the upload has ended, but is listed")
	}
}

// TestCreateBeforeInterruptedUploadIsFound: a client may create an upload before the daemon has found
// an interrupted one. The error must be temporary.
func TestCreateBeforeInterruptedUploadIsFound(t *testing.T) {
	s := NewSessions()
	one, err := s.create(metadata{Name: parrot.Name}, 512)
	if err != nil {
		t.Fatal(err)
	}
	left := disk.PartSource{Kind: model.PartFromUpload, ETag: "OLDER", Metadata: "name cGFycm90", Size: 1024}
	if had, err := s.Begin(t.Context(), parrot, left); err != nil || had.ID != left.ETag {
		t.Fatalf("the job has %+v, %v", had, err)
	}
	if no, ok := errors.AsType[*httperror.Error](one.outcome()); !ok || !isTemporary(no) {
		t.Errorf("the client got %v, want a temporary error", one.outcome())
	}
}

// TestJobsDoNotShareUpload: a job that is being stopped may still write its last bytes when a job for
// another generation of the image starts.
func TestJobsDoNotShareUpload(t *testing.T) {
	s := NewSessions()
	one, err := s.create(metadata{Name: parrot.Name}, 512)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Begin(t.Context(), parrot, disk.PartSource{}); err != nil {
		t.Fatal(err)
	}
	older := ident.ID{Name: parrot.Name, UUID: "00000224"}
	left := disk.PartSource{Kind: model.PartFromUpload, ETag: "OLDER", Metadata: "name cGFycm90", Size: 1024}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Begin(ctx, older, left); !errors.Is(err, context.Canceled) {
		t.Errorf("another job has the same upload, or ended with %v", err)
	}
	ended := make(chan error, 1)
	go func() {
		another, err := s.Begin(context.Background(), older, left)
		if err == nil && another.ID != left.ETag {
			err = errors.New("the partial file is of upload " + another.ID)
		}
		ended <- err
	}()
	s.End(one, context.Canceled, true)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
