package disk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// TestRemoveLooksAgain lets users come while an image is on its way out: either
// they come too late, or the image is back as it was.
func TestRemoveLooksAgain(t *testing.T) {
	users := map[string]func(d *Disk, id ID, aside string) error{
		"replica": func(d *Disk, id ID, _ string) error {
			return writeReplica(d, "vol1", id)
		},
		"process": func(d *Disk, id ID, aside string) error {
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
				if comeDuringRemoval(t, d, id, use) {
					return
				}
			}
			t.Fatalf("nobody came in time in %d tries", tries)
		})
	}
}

// comeDuringRemoval removes an image and uses it as soon as its folder is aside. It
// reports whether the user came in time.
func comeDuringRemoval(t *testing.T, d *Disk, id ID, use func(*Disk, ID, string) error) bool {
	t.Helper()
	aside := filepath.Join(d.Path(), imagesFolder, removingPrefix+id.String())
	removed := make(chan error, 1)
	go func() { removed <- d.Remove(id) }()
	for {
		if _, err := os.Lstat(aside); err == nil {
			break
		}
		if _, err := os.Lstat(filepath.Join(d.Path(), id.folder())); errors.Is(err, fs.ErrNotExist) {
			break // aside now, or gone
		}
	}
	came := use(d, id, aside)
	err := <-removed
	if err == nil {
		if state := d.Look(id).State; state != Pending {
			t.Fatalf("the image is %s after its removal", state)
		}
		if err := os.RemoveAll(filepath.Join(d.Path(), replicaFolder)); err != nil {
			t.Fatal(err)
		}
		return false
	}
	if _, inUse := errors.AsType[*InUseError](err); !inUse || came != nil {
		t.Fatalf("Remove: %v; the user: %v", err, came)
	}
	if c := d.Look(id); c.State != Ready {
		t.Fatalf("the image is %s (%s) after a user kept it from its removal", c.State, c.Message)
	}
	return true
}

func writeReplica(d *Disk, volume string, id ID) error {
	dir := filepath.Join(d.Path(), replicaFolder, volume)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	meta := `{"Size":1048576,"BackingFilePath":"/host/data/` + id.file(imageFile) + `"}`
	tmp := filepath.Join(dir, "volume.meta.tmp")
	if err := os.WriteFile(tmp, []byte(meta), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, "volume.meta"))
}

// TestLockPutsBack: what a crash left on its way out is an image again, or what was
// left of it, and is not taken for another one.
func TestLockPutsBack(t *testing.T) {
	d, id := newDisk(t), testID
	readyImage(t, d, sparseImage(ChunkSize))
	aside := filepath.Join(d.Path(), imagesFolder, removingPrefix+id.String())
	if err := os.Rename(filepath.Join(d.Path(), id.folder()), aside); err != nil {
		t.Fatal(err)
	}
	if l, err := d.List(); err != nil || len(l.Copies) > 0 || len(l.Foreign) != 1 {
		t.Fatalf("a folder on its way out is listed as %+v, %v", l, err)
	}
	unlock, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if c := d.Look(id); c.State != Ready {
		t.Fatalf("the image is %s (%s) after it was put back", c.State, c.Message)
	}
}
