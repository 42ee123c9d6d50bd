package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// readyImage creates a ready copy.
func readyImage(t testing.TB, d *Disk, image []byte) {
	t.Helper()
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	if _, err := p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveRestoresFolderAfterDeleteError checks that the folder has its original name again if a
// file cannot be deleted, so that users find the image.
func TestRemoveRestoresFolderAfterDeleteError(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	immutable(t, imagePath(d, imageFile))
	if err := d.Remove(testID, Mark{}); err == nil {
		t.Fatal("an immutable file was removed")
	}
	if c := d.Stat(testID); c.Size != ChunkSize || !c.Owned {
		t.Errorf("the image does not have its name: %+v", c)
	}
}

// immutable makes a file immutable until the test ends.
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
		t.Skipf("this file system does not support immutable files: %v", err)
	}
	t.Cleanup(func() {
		if err := set(0); err != nil {
			t.Error(err)
		}
	})
}

func TestRemoveKeepsImageInUse(t *testing.T) {
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
			err := d.Remove(testID, Mark{})
			if _, inUse := errors.AsType[*InUseError](err); !inUse {
				t.Errorf("error is %v, want an InUseError", err)
			}
			if c := d.Stat(testID); c.State != model.Ready {
				t.Errorf("the image is %+v", c)
			}
		})
	}
}

// TestRemoveKeepsImageWithoutRecord checks that Remove keeps an image whose record is missing or
// unreadable.
func TestRemoveKeepsImageWithoutRecord(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	v.Plan(fails("read", recordFile, syscall.EIO))
	if err := d.Remove(testID, Mark{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("with a record that cannot be read: error %v", err)
	}
	v.Plan(nil)
	if err := os.Remove(imagePath(d, recordFile)); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(testID, Mark{}); err == nil {
		t.Error("an image without a record was removed")
	}
	if c := d.Stat(testID); c.Size != ChunkSize {
		t.Errorf("copy is %+v", c)
	}
}

// TestRemoveFindsUserAfterRename adds a user while Remove runs. Remove either finds the user and
// restores the image, or has already deleted it.
func TestRemoveFindsUserAfterRename(t *testing.T) {
	users := map[string]func(d *Disk, id ident.ID, aside string) error{
		"replica": func(d *Disk, id ident.ID, _ string) error {
			return writeReplica(d, "vol1", id)
		},
		"process": func(d *Disk, id ident.ID, aside string) error {
			f, err := os.Open(filepath.Join(aside, imageFile))
			if err == nil {
				t.Cleanup(func() { f.Close() })
			}
			return err
		},
	}
	for name, use := range users {
		t.Run(name, func(t *testing.T) {
			d, id := newDisk(t), testID
			const tries = 200
			for range tries {
				readyImage(t, d, sparseImage(ChunkSize))
				if useDuringRemove(t, d, id, use) {
					return
				}
			}
			t.Fatalf("no user was found in %d attempts", tries)
		})
	}
}

// useDuringRemove removes an image, and adds a user as soon as the folder is renamed. It reports
// whether the user prevented the removal.
func useDuringRemove(t *testing.T, d *Disk, id ident.ID, use func(*Disk, ident.ID, string) error) bool {
	t.Helper()
	aside := filepath.Join(d.Path(), imagesFolder, removingPrefix+id.String())
	removed := make(chan error, 1)
	go func() { removed <- d.Remove(id, Mark{}) }()
	for {
		if _, err := os.Lstat(aside); err == nil {
			break
		}
		if _, err := os.Lstat(filepath.Join(d.Path(), folderPath(id))); errors.Is(err, fs.ErrNotExist) {
			break // renamed or removed
		}
	}
	useErr := use(d, id, aside)
	err := <-removed
	if err == nil {
		if state := d.Stat(id).State; state != model.Pending {
			t.Fatalf("the image is %s after its removal", state)
		}
		if err := os.RemoveAll(filepath.Join(d.Path(), replicaFolder)); err != nil {
			t.Fatal(err)
		}
		return false
	}
	if _, inUse := errors.AsType[*InUseError](err); !inUse || useErr != nil {
		t.Fatalf("Remove: %v; the user: %v", err, useErr)
	}
	if c := d.Stat(id); c.State != model.Ready {
		t.Fatalf("the image is %s (%s) after a user prevented its removal", c.State, c.Message)
	}
	return true
}

func writeReplica(d *Disk, volume string, id ident.ID) error {
	dir := filepath.Join(d.Path(), replicaFolder, volume)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	meta := `{"Size":1048576,"BackingFilePath":"/host/data/` + filePath(id, imageFile) + `"}`
	tmp := filepath.Join(dir, "volume.meta.tmp")
	if err := os.WriteFile(tmp, []byte(meta), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, "volume.meta"))
}

// TestLockRestoresInterruptedRemoval checks that Lock restores a folder that Remove had renamed
// before a crash. Until then the folder is not listed as an image.
func TestLockRestoresInterruptedRemoval(t *testing.T) {
	d, id := newDisk(t), testID
	readyImage(t, d, sparseImage(ChunkSize))
	aside := filepath.Join(d.Path(), imagesFolder, removingPrefix+id.String())
	if err := os.Rename(filepath.Join(d.Path(), folderPath(id)), aside); err != nil {
		t.Fatal(err)
	}
	if l, err := d.List(); err != nil || len(l.Copies) > 0 || len(l.Unmanaged) != 1 {
		t.Fatalf("a folder under removal is listed as %+v, %v", l, err)
	}
	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if c := d.Stat(id); c.State != model.Ready {
		t.Fatalf("the image is %s (%s) after Lock", c.State, c.Message)
	}
}

// TestRemoveRestoresFolderAfterSyncError checks that the folder has its original name again if the
// sync after the rename fails, so that users and the next attempt find the image.
func TestRemoveRestoresFolderAfterSyncError(t *testing.T) {
	d, v := faultyDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "sync" && op.Path == imagesFolder {
			return syscall.EIO
		}
		return nil
	})
	err := d.Remove(testID, Mark{})
	v.Plan(nil)
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("error is %v, want EIO", err)
	}
	if c := d.Stat(testID); c.Size != ChunkSize {
		t.Errorf("the image does not have its name: %+v", c)
	}
	if err := d.Remove(testID, Mark{}); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
}

var metaOfUser = []byte(`{"Size":1048576,"BackingFilePath":"/host/disk/backing-images/` + testID.String() + `/backing"}`)

// TestRemoveFindsReplicaAddedAtEveryOperation adds a replica before each file operation of Remove. A
// replica that is created before the last check prevents the removal.
func TestRemoveFindsReplicaAddedAtEveryOperation(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	f := faultfs.Mount(t)
	image := sparseImage(4096)
	setUp := func(t *testing.T) (*Disk, *faultfs.Volume) {
		v := newVolumeDisk(t, f)
		v.Put(replicaFolder+"/other-00000001/volume.meta", []byte(`{"Size":1048576}`))
		d, err := Open(v.Path())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		readyImage(t, d, image)
		v.Restart()
		return d, v
	}
	d, v := setUp(t)
	if err := d.Remove(testID, Mark{}); err != nil {
		t.Fatal(err)
	}
	ops := v.Trace()
	lastCheck := 0
	for i, op := range ops {
		if op.Kind == "list" && op.Path == replicaFolder && op.Count%2 == 1 { // a list has two operations; the second one reads its end
			lastCheck = i
		}
	}
	if !slices.ContainsFunc(ops[:lastCheck], func(op faultfs.Op) bool { return op.Kind == "rename" }) {
		t.Fatalf("the last check is before the rename: %v", ops)
	}
	var kept atomic.Int64
	before := 0 // the last check
	t.Run("during", func(t *testing.T) {
		for i, op := range ops {
			if i <= lastCheck {
				before++
			}
			t.Run(op.String(), func(t *testing.T) {
				t.Parallel()
				d, v := setUp(t)
				v.Plan(func(now faultfs.Op) error {
					if now == op {
						v.Put(replicaFolder+"/user-00000002/volume.meta", metaOfUser)
					}
					return nil
				})
				err := d.Remove(testID, Mark{})
				c := d.Stat(testID)
				switch {
				case i > lastCheck: // after the last check
				case !isA[*InUseError](err) || c.State == model.Pending:
					t.Errorf("error is %v, and the copy is %+v", err, c)
				default:
					kept.Add(1)
				}
				if err == nil != (c.State == model.Pending) {
					t.Errorf("error is %v, but the copy is %+v", err, c)
				}
			})
		}
	})
	if n := kept.Load(); n < int64(before-1) {
		t.Errorf("the image was kept %d times, want %d", n, before)
	}
}

// TestRemoveRacesWithStartingReplica writes the metadata of a replica and then opens the image, as a
// starting replica does. If the open succeeds, Remove must keep the image.
func TestRemoveRacesWithStartingReplica(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	image := sparseImage(4096)
	rounds, got, removed := 150, 0, 0
	if testing.Short() || race.Enabled {
		rounds = 30
	}
	for i := range rounds {
		readyImage(t, d, image)
		folder := filepath.Join(d.Path(), replicaFolder, fmt.Sprintf("user-%08x", i))
		begin, opened := make(chan struct{}), make(chan *os.File)
		go func() {
			<-begin
			for range i * 6 { // a little later in each round
				_, _ = os.Lstat(d.Path())
			}
			tmp := filepath.Join(d.Path(), "tmp-replica")
			err := errors.Join(os.Mkdir(tmp, 0o755), os.WriteFile(filepath.Join(tmp, "volume.meta"), metaOfUser, 0o644),
				os.MkdirAll(filepath.Dir(folder), 0o755), os.Rename(tmp, folder))
			f, openErr := os.Open(imagePath(d, imageFile))
			if err != nil || openErr != nil && !errors.Is(openErr, fs.ErrNotExist) {
				t.Error(err, openErr)
			}
			opened <- f
		}()
		close(begin)
		err := d.Remove(testID, Mark{})
		f := <-opened
		c := d.Stat(testID)
		switch {
		case f != nil && (c.State == model.Pending || !isA[*InUseError](err)):
			t.Errorf("round %d: a user has the image open, Remove returned %v, the copy is %+v", i, err, c)
		case err != nil && !isA[*InUseError](err):
			t.Errorf("round %d: %v", i, err)
		}
		if f != nil {
			got++
			f.Close()
		} else {
			removed++
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Fatal(err)
		}
		if c.State != model.Pending {
			if err := d.Remove(testID, Mark{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d users prevented the removal, %d were too late", got, removed)
}

// TestRemoveKeepsUnmanagedFiles checks that Remove keeps files of other programs in the folder.
func TestRemoveKeepsUnmanagedFiles(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	if err := os.MkdirAll(imagePath(d, "theirs/backing"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, "backing.tmp"), []byte("Longhorn's"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(testID, Mark{}); err == nil {
		t.Error("want an error about the remaining files")
	}
	got := strings.Join(tree(t, filepath.Join(d.Path(), imagesFolder)), "\n")
	for _, name := range []string{"theirs/backing", "backing.tmp"} {
		if !strings.Contains(got, testID.String()+"/"+name) {
			t.Errorf("%s was removed:\n%s", name, got)
		}
	}
	if c := d.Stat(testID); c.State != model.Pending || c.Owned {
		t.Errorf("copy is %+v", c)
	}
}
