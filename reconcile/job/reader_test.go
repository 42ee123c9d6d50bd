package job

import (
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// unreadableFile is a file on a disk with a bad sector.
type unreadableFile struct{}

func (unreadableFile) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: "backing", Err: syscall.EIO}
}

// A copy on another disk of the node cannot be read. The failure must suspect that copy, so
// that the next attempt reads one on another node, and not the disk that the sync writes to.
func TestUnreadableSourceIsNoFaultOfTheTarget(t *testing.T) {
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	a := plan.NewAction(model.Sync, ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: id}, model.Reason{}, 0)
	a.LocalSource = ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk2"}, ID: id}
	source := localReader{unreadableFile{}}
	_, err := source.Read(nil)
	got := NextFailure(model.Failure{}, a, fmt.Errorf("read image: %w", err), time.Now(), 0.5)
	if got.Fault == model.FaultDisk || got.Final || !slices.Equal(got.Suspects, []ident.CopyRef{a.LocalSource}) {
		t.Errorf("%v: %+v", err, got)
	}
	if got := NextFailure(model.Failure{}, a, fmt.Errorf("write: %w", syscall.EIO), time.Now(), 0.5); got.Fault != model.FaultDisk || got.Suspects != nil {
		t.Errorf("an error of the target: %+v", got)
	}
}
