package disk

import (
	"errors"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/faultfs"
)

// TestRemovalThatCannotBeSynced has a disk that fails when the folder was just
// renamed aside. Users and the next try find the image where it was.
func TestRemovalThatCannotBeSynced(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "sync" && op.Path == imagesFolder {
			return syscall.EIO
		}
		return nil
	})
	err := d.Remove(testID)
	v.Plan(nil)
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("error is %v, want EIO", err)
	}
	if c := d.Look(testID); c.Size != ChunkSize {
		t.Errorf("the image is not under its name any more: %+v", c)
	}
	if err := d.Remove(testID); err != nil {
		t.Errorf("the next try: %v", err)
	}
}
