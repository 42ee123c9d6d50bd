package disk

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/faultfs"
)

// TestDamageThatCannotBeRecorded has an image that rotted, on a disk that takes no more
// writes. Nobody may count on it, though its record says that it is right.
func TestDamageThatCannotBeRecorded(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EROFS} {
		d, v := faultyDisk(t)
		image := sparseImage(ChunkSize)
		readyImage(t, d, image)
		flip(t, v)
		info, err := os.Stat(imagePath(d, imageFile))
		if err != nil {
			t.Fatal(err)
		}
		now := evidenceOf(info) // bits change without a trace in the inode
		if err := d.Update(testID, func(r *Record) { r.Evidence = &now }); err != nil {
			t.Fatal(err)
		}
		v.Plan(fails("write", recordFile+".tmp", errno))
		if c, err := d.Verify(context.Background(), testID, Want{}, func(int64) {}); !errors.Is(err, errno) {
			t.Errorf("verified: %+v, error %v", c, err)
		}
		if c := d.Look(testID); c.State != Unknown {
			t.Errorf("after it could not be recorded: %+v", c)
		}
		if f, _, err := d.OpenBase(testID); err == nil {
			f.Close()
			t.Error("a volume's bytes were read from it")
		}
		if l, err := d.List(); err != nil || l.Copies[0].State != Unknown {
			t.Errorf("in a list: %+v, error %v", l.Copies, err)
		}
		v.Plan(nil)
		if c, err := d.Verify(context.Background(), testID, Want{}, func(int64) {}); err != nil || c.State != Failed {
			t.Errorf("when it can be recorded: %+v, error %v", c, err)
		}
		var asked []int64
		if c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, &asked), func(int64) {}); err != nil || c.State != Ready {
			t.Errorf("repaired: %+v, error %v", c, err)
		}
	}
}

func flip(t *testing.T, v *faultfs.Volume) {
	t.Helper()
	if err := v.Flip(testID.file(imageFile), 5); err != nil {
		t.Fatal(err)
	}
}

// TestFailedSyncIsNotForgotten has a disk that cannot write an image back. The page cache
// has the right bytes all the same, and the next sync has nothing to do and works.
func TestFailedSyncIsNotForgotten(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 2)
	once := func(op faultfs.Op) error {
		if op.Kind == "sync" && strings.HasSuffix(op.Path, "/"+imageFile) && op.N == 1 {
			return syscall.EIO
		}
		return nil
	}
	verify := func(d *Disk) error {
		_, err := d.Verify(context.Background(), testID, Want{}, func(int64) {})
		return err
	}
	repair := func(d *Disk) error {
		var asked []int64
		_, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, &asked), func(int64) {})
		return err
	}
	for name, c := range map[string]struct {
		prepare func(d *Disk) error
		work    func(d *Disk) error
	}{
		"verify": {func(d *Disk) error {
			return errors.Join(os.MkdirAll(filepath.Dir(imagePath(d, imageFile)), 0o755), os.WriteFile(imagePath(d, imageFile), image, 0o644))
		}, verify},
		"repair": {func(d *Disk) error {
			readyImage(t, d, image)
			scribble(t, imagePath(d, imageFile), make([]byte, ChunkSize), 0)
			return verify(d)
		}, repair},
	} {
		d, v := faultyDisk(t)
		v.Cached()
		if err := c.prepare(d); err != nil {
			t.Fatal(err)
		}
		v.Restart()
		v.Plan(once)
		if err := c.work(d); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s, on a disk that fails: error %v", name, err)
		}
		err := c.work(d)
		after := v.SurviveNothing()
		left, readErr := os.ReadFile(filepath.Join(after.Path(), testID.file(imageFile)))
		if c := d.Look(testID); c.State != Ready || readErr != nil || c.SHA512 != digest512(left) {
			t.Errorf("%s once more: %s, error %v; is it what is on the disk: %v, error %v", name, c.State, err, c.SHA512 == digest512(left), readErr)
		}
		after.Close()
	}
}
