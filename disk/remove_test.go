package disk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// readyImage makes a ready image of the disk.
func readyImage(t testing.TB, d *Disk, image []byte) {
	t.Helper()
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	if _, err := p.Commit(Digest{}); err != nil {
		t.Fatal(err)
	}
}

// TestRemovePutsBackWhatItCannotDelete has a file that the file system does not
// give up. Its users find it where it was.
func TestRemovePutsBackWhatItCannotDelete(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	immutable(t, imagePath(d, imageFile))
	if err := d.Remove(testID); err == nil {
		t.Fatal("an immutable file was removed")
	}
	if c := d.Look(testID); c.Size != ChunkSize || !c.Owned {
		t.Errorf("the image is not where it was: %+v", c)
	}
}

// immutable makes a file one that nobody may delete, until the test ends.
func immutable(t testing.TB, name string) {
	t.Helper()
	const flag = 0x10 // FS_IMMUTABLE_FL
	set := func(on int) error {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
		if err != nil {
			return err
		}
		return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags&^flag|on)
	}
	if err := set(flag); err != nil {
		t.Skipf("files cannot be made immutable here: %v", err)
	}
	t.Cleanup(func() {
		if err := set(0); err != nil {
			t.Error(err)
		}
	})
}

func TestRemoveLeavesWhatIsUsed(t *testing.T) {
	for name, use := range map[string]func(t *testing.T, d *Disk){
		"replica": func(t *testing.T, d *Disk) {
			replica(t, d, "v-1a2b3c4d", "/disk/backing-images/"+testID.String()+"/backing")
		},
		"process": func(t *testing.T, d *Disk) {
			f, err := os.Open(imagePath(d, imageFile))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
		},
		"unreadable": func(t *testing.T, d *Disk) {
			if err := os.MkdirAll(filepath.Join(d.Path(), replicaFolder, "v-1a2b3c4d"), 0o755); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, sparseImage(ChunkSize))
			use(t, d)
			err := d.Remove(testID)
			if _, inUse := errors.AsType[*InUseError](err); !inUse {
				t.Errorf("got error %v, want that it is in use", err)
			}
			if c := d.Look(testID); c.State != Ready {
				t.Errorf("the image is %+v", c)
			}
		})
	}
}

// TestRemoveLeavesWhatIsNotOurs has an image without a record, or with one that cannot
// be read at the moment. Whoever asked was wrong about it, or knows too little.
func TestRemoveLeavesWhatIsNotOurs(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	v.Plan(fails("read", recordFile, syscall.EIO))
	if err := d.Remove(testID); !errors.Is(err, syscall.EIO) {
		t.Errorf("with a record that cannot be read: error %v", err)
	}
	v.Plan(nil)
	if err := os.Remove(imagePath(d, recordFile)); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(testID); err == nil {
		t.Error("an image without a record was removed")
	}
	if c := d.Look(testID); c.Size != ChunkSize {
		t.Errorf("copy is %+v", c)
	}
}
