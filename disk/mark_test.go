package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
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

// TestMarkIsRemovedLater has a disk that is read-only when a mark is removed. A later listing removes it.
func TestMarkIsRemovedLater(t *testing.T) {
	need.Root(t, "mount a file system")
	path := t.TempDir()
	mount := func(flags uintptr) {
		if err := unix.Mount("tmpfs", path, "tmpfs", flags, "size=16m"); err != nil {
			t.Fatal(err)
		}
	}
	mount(0)
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	if _, err := Init(path); err != nil {
		t.Fatal(err)
	}
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := os.MkdirAll(filepath.Join(path, folderPath(testID)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.SetMark(testID, Mark{Name: "0123456789abcdef", Secret: "fedcba9876543210"}); err != nil {
		t.Fatal(err)
	}
	for _, readOnly := range []bool{true, false} {
		if readOnly {
			mount(unix.MS_REMOUNT | unix.MS_RDONLY)
			if err := d.RemoveMark(testID, "0123456789abcdef"); err == nil {
				t.Fatal("the mark was removed")
			}
		} else {
			mount(unix.MS_REMOUNT)
		}
		if _, err := d.List(); err != nil {
			t.Fatal(err)
		}
		if marked, err := d.Marked(testID); err != nil || marked != readOnly {
			t.Errorf("read-only %t: marked %t, %v", readOnly, marked, err)
		}
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
