package faultfs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// contents returns the content of each file of a volume, by its path in the volume.
func contents(t *testing.T, v *Volume) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(v.Path(), func(name string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(name)
		rel, _ := filepath.Rel(v.Path(), name)
		files[rel] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func syncPath(t *testing.T, name string) {
	t.Helper()
	f, err := os.Open(name)
	check(t, err)
	check(t, f.Sync(), f.Close())
}

func TestOnlyWhatIsSyncedIsDurable(t *testing.T) {
	v := Mount(t).NewVolume()
	file := filepath.Join(v.Path(), "file")
	check(t, os.WriteFile(file, []byte("one"), 0o644))
	if left := contents(t, v.SurviveSynced()); len(left) != 0 {
		t.Errorf("before any sync: %q", left)
	}
	syncPath(t, file)
	if left := contents(t, v.SurviveSynced()); len(left) != 0 {
		t.Errorf("the file was synced, but not its name: %q", left)
	}
	syncPath(t, v.Path())
	if left := contents(t, v.SurviveSynced()); left["file"] != "one" {
		t.Errorf("after both syncs: %q", left)
	}
	check(t, os.WriteFile(file, []byte("second"), 0o644), os.Rename(file, file+"2"))
	if left := contents(t, v.SurviveSynced()); left["file"] != "one" || len(left) != 1 {
		t.Errorf("after a change that was not synced: %q", left)
	}
	if now := contents(t, v); now["file2"] != "second" || len(now) != 1 {
		t.Errorf("before the power failure: %q", now)
	}
}

// TestCutsDiffer checks that the seeds cover all losses of a program that does not sync.
func TestCutsDiffer(t *testing.T) {
	v := Mount(t).NewVolume()
	file := filepath.Join(v.Path(), "file")
	check(t, os.WriteFile(file, []byte("old"), 0o644))
	v.SyncAll()
	image := bytes.Repeat([]byte("new!"), 4*pageSize)
	check(t, os.WriteFile(file+".tmp", image, 0o644), os.Rename(file+".tmp", file))
	seen := map[string]bool{}
	for seed := range uint64(200) {
		after := v.Survive(seed)
		left := contents(t, after)
		if again := contents(t, v.Survive(seed)); again["file"] != left["file"] {
			t.Fatalf("seed %d has different results in two runs", seed)
		}
		switch data := left["file"]; {
		case data == "old":
			seen["the old file"] = true
		case data == string(image):
			seen["the new file"] = true
		case data == "":
			seen["an empty file under the new name"] = true
		case len(data) == len(image):
			seen["a whole size with zeros in it"] = true
		default:
			seen["a short file"] = true
		}
		after.Close()
	}
	if len(seen) < 4 {
		t.Errorf("200 power failures have only the results %v", seen)
	}
}

func TestPlanFailsAndStops(t *testing.T) {
	v := Mount(t).NewVolume()
	file := filepath.Join(v.Path(), "file")
	v.Plan(func(op Op) error {
		switch op.String() {
		case "write file 1":
			return syscall.ENOSPC
		case "rename file 1":
			return ErrStop
		}
		return nil
	})
	if err := os.WriteFile(file, []byte("x"), 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("first write: %v", err)
	}
	if err := os.WriteFile(file, []byte("x"), 0o644); err != nil {
		t.Errorf("second write: %v", err)
	}
	if err := os.Rename(file, file+"2"); !errors.Is(err, syscall.EIO) {
		t.Errorf("the rename at which the volume stops: %v", err)
	}
	if _, err := os.ReadDir(v.Path()); !errors.Is(err, syscall.EIO) {
		t.Errorf("after the stop: %v", err)
	}
	v.Restart()
	if now := contents(t, v); now["file"] != "x" || len(now) != 1 {
		t.Errorf("after the restart: %q", now)
	}
}

func TestFailedSyncLosesWhatItWasToSave(t *testing.T) {
	f := Mount(t)
	lost := 0
	for range 20 {
		v := f.NewVolume()
		name := filepath.Join(v.Path(), "file")
		check(t, os.WriteFile(name, bytes.Repeat([]byte("x"), 4*pageSize), 0o644))
		v.Plan(func(op Op) error {
			if op.String() == "sync file 1" {
				return syscall.EIO
			}
			return nil
		})
		file, err := os.Open(name)
		check(t, err)
		if err := file.Sync(); !errors.Is(err, syscall.EIO) {
			t.Fatalf("first sync: %v", err)
		}
		check(t, file.Sync(), file.Close())
		if data := contents(t, v)["file"]; data != string(bytes.Repeat([]byte("x"), 4*pageSize)) {
			lost++
		}
	}
	if lost == 0 {
		t.Error("no change was ever lost")
	}
}
