package disk

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// A mark changes neither the state of the copy nor its evidence, is listed nowhere, and disappears with the deletion or at
// the start of the next process.
func TestMark(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, make([]byte, 4096))
	before := d.Stat(testID)
	m := Mark{Name: "0123456789abcdef", Secret: "fedcba9876543210"}
	if err := d.SetMark(testID, m); err != nil {
		t.Fatal(err)
	}
	if got := d.Stat(testID); got != before || got.State != model.Ready {
		t.Errorf("with a mark the copy is %+v, before it was %+v", got, before)
	}
	if l, err := d.List(); err != nil || len(l.Unmanaged) > 0 || len(l.Copies) != 1 {
		t.Errorf("the listing is %+v, %v", l, err)
	}
	for name, want := range map[string]string{m.Name: m.Secret, "0000000000000000": ""} {
		if got, err := d.ReadMark(testID, name); err != nil || got != want {
			t.Errorf("mark %s: %q, %v, want %q", name, got, err, want)
		}
	}
	if marked, err := d.Marked(ident.ID{Name: "parrot", UUID: "0000000f"}); err != nil || marked {
		t.Errorf("of a copy that does not exist: %v, %v", marked, err)
	}
	if got, err := d.ReadMark(ident.ID{Name: "parrot", UUID: "0000000f"}, m.Name); err != nil || got != "" {
		t.Errorf("of a copy that does not exist: %q, %v", got, err)
	}
	isMarked := func(want bool) {
		t.Helper()
		if marked, err := d.Marked(testID); err != nil || marked != want {
			t.Errorf("the folder is marked: %v, %v, want %v", marked, err, want)
		}
	}
	isMarked(true)
	must(t, d.RemoveMark(testID, m.Name))
	must(t, d.RemoveMark(testID, m.Name))
	isMarked(false)
	must(t, d.SetMark(testID, m))
	unlock, err := d.Lock() // the next process
	must(t, err)
	must(t, unlock())
	if got, err := d.ReadMark(testID, m.Name); err != nil || got != "" {
		t.Errorf("after the start: %q, %v", got, err)
	}
	must(t, d.SetMark(testID, m))
	must(t, d.Remove(testID, Mark{}))
	if _, err := os.Lstat(filepath.Join(d.Path(), folderPath(testID))); !os.IsNotExist(err) {
		t.Errorf("after the deletion: %v", err)
	}
	for _, name := range []string{"", "../../evil", "0123456789ABCDEF", strings.Repeat("a", 17)} {
		if IsMarkName(name) {
			t.Errorf("%q is a valid name of a mark", name)
		}
	}
}

// newMountedDisk returns a disk with a ready image on its own file system, and a function that makes the file system
// read-only or writable.
func newMountedDisk(t *testing.T) (d *Disk, setReadOnly func(bool)) {
	t.Helper()
	need.Root(t, "mount a file system")
	path := t.TempDir()
	mount := func(flags uintptr) { must(t, unix.Mount("tmpfs", path, "tmpfs", flags, "size=16m")) }
	mount(0)
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	_, err := Init(path)
	must(t, err)
	d, err = Open(path)
	must(t, err)
	t.Cleanup(func() { d.Close() })
	readyImage(t, d, make([]byte, 4096))
	return d, func(readOnly bool) {
		if readOnly {
			mount(unix.MS_REMOUNT | unix.MS_RDONLY)
		} else {
			mount(unix.MS_REMOUNT)
		}
	}
}

var testMark = Mark{Name: "0123456789abcdef", Secret: "fedcba9876543210"}

// listsMarked lists the disk, and reports whether the image is marked then. The image must be ready.
func listsMarked(t *testing.T, d *Disk) bool {
	t.Helper()
	l, err := d.List()
	must(t, err)
	if len(l.Copies) != 1 || l.Copies[0].State != model.Ready {
		t.Errorf("the listing is %+v", l)
	}
	marked, err := d.Marked(testID)
	must(t, err)
	return marked
}

// TestMarkIsRemovedLater has a disk that is read-only when a mark is removed. A later listing removes it.
func TestMarkIsRemovedLater(t *testing.T) {
	d, setReadOnly := newMountedDisk(t)
	must(t, d.SetMark(testID, testMark))
	setReadOnly(true)
	if err := d.RemoveMark(testID, testMark.Name); err == nil {
		t.Fatal("the mark was removed")
	}
	if !listsMarked(t, d) {
		t.Error("a read-only disk has lost its mark")
	}
	setReadOnly(false)
	if listsMarked(t, d) {
		t.Error("the mark stays")
	}
}

// A removal is interrupted, and the disk is read-only when the next process starts. When a later listing restores the
// folder, it must not keep the mark: nothing else removes it, and the copy would count for nothing.
func TestRestoredFolderHasNoMark(t *testing.T) {
	d, setReadOnly := newMountedDisk(t)
	must(t, d.SetMark(testID, testMark))
	must(t, os.Rename(filepath.Join(d.Path(), folderPath(testID)), filepath.Join(d.Path(), imagesFolder, removingPrefix+testID.String())))
	setReadOnly(true)
	unlock, err := d.Lock()
	must(t, err)
	defer unlock()
	setReadOnly(false)
	if listsMarked(t, d) {
		t.Error("the restored folder has the mark of the earlier process")
	}
}

// putBackLater is a removal that finds a user, and cannot put the folder back, because the disk has become read-only.
type putBackLater struct {
	*folderRemoval
	setReadOnly func(bool)
}

func (r putBackLater) CheckUnused(aside bool) error {
	if !aside {
		return nil
	}
	r.setReadOnly(true)
	return &InUseError{ID: testID}
}

// A removal is cancelled, and its folder gets its name back later than the holder removes the mark.
func TestMarkOfFolderThatIsPutBackLater(t *testing.T) {
	d, setReadOnly := newMountedDisk(t)
	must(t, d.SetMark(testID, testMark))
	r := putBackLater{&folderRemoval{folder: d.image(testID), mark: testMark, now: folderPath(testID)}, setReadOnly}
	if err := RemoveUnused(r); !errors.Is(err, ErrReadOnly) {
		t.Errorf("error %v", err)
	}
	_ = d.RemoveMark(testID, testMark.Name)
	setReadOnly(false)
	if listsMarked(t, d) {
		t.Error("the mark stays")
	}
}

// A folder cannot be listed when a process starts. A later listing of the disk removes its old mark.
func TestOldMarkInUnreadableFolder(t *testing.T) {
	for _, unreadable := range []string{imagesFolder, folderPath(testID)} {
		d, v := faultyDisk(t)
		readyImage(t, d, sparseImage(ChunkSize))
		v.Put(path.Join(folderPath(testID), markPrefix+testMark.Name), nil)
		v.Restart()
		lists := 0
		v.Plan(func(op faultfs.Op) error {
			if op.Kind == "list" && op.Path == unreadable {
				if lists++; unreadable != imagesFolder || lists > 2 { // the first two are of other steps
					return syscall.EIO
				}
			}
			return nil
		})
		unlock, err := d.Lock()
		must(t, err)
		v.Plan(nil)
		if lists == 0 || listsMarked(t, d) {
			t.Errorf("%s: the mark stays (%d lists)", unreadable, lists)
		}
		must(t, unlock())
	}
}

// Two disks that show one folder have one identity of it.
func TestFolder(t *testing.T) {
	a, b := newDisk(t), newDisk(t)
	if f, err := a.Folder(); err != nil || f != (model.FolderID{}) {
		t.Errorf("without a folder: %+v, %v", f, err)
	}
	readyImage(t, a, make([]byte, 4096))
	readyImage(t, b, make([]byte, 4096))
	fa, errA := a.Folder()
	fb, errB := b.Folder()
	if errA != nil || errB != nil || fa == fb || fa.Device != fb.Device || a.Stat(testID).Folder == b.Stat(testID).Folder {
		t.Errorf("%+v, %v and %+v, %v", fa, errA, fb, errB)
	}
}

// A proof compares the chunk with the hash, and reports a chunk with other bytes as damage.
func TestProve(t *testing.T) {
	d := newDisk(t)
	image := make([]byte, 2*ChunkSize+512)
	for i := range image {
		image[i] = byte(i * 7 / 3)
	}
	readyImage(t, d, image)
	m, err := d.Manifest(testID)
	must(t, err)
	defer m.Close()
	for secret := range uint64(8) {
		chunk, err := SelectChunk(m.Encoded(), m.Size(), secret)
		must(t, err)
		if err := d.Prove(testID, chunk); err != nil && !errors.Is(err, errCached) {
			t.Errorf("chunk at %d: %v", chunk.From, err)
		}
		chunk.Hash = ChunkSHA256.hash([]byte("other"), false)
		if err := d.Prove(testID, chunk); !errors.Is(err, ErrDamaged) && !errors.Is(err, errCached) {
			t.Errorf("chunk at %d with other bytes: %v", chunk.From, err)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
