package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// restart opens the disk again, as a restarted manager does. It records the users before if record is true.
func restart(t *testing.T, d *Disk, record bool) *Disk {
	t.Helper()
	if record {
		d.Users()
		if err := d.RecordUsers(); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(d.Path())
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { again.Close() })
	return again
}

// TestUseEndsByEvidence checks that a folder of replicas that is not mounted any more ends no use, in the same process and
// after a restart, and that a deleted replica does.
func TestUseEndsByEvidence(t *testing.T) {
	need.Root(t, "mount a file system of its own for the replicas")
	used := func(d *Disk) bool {
		u := d.Users()
		_, inUse := u.InUse(testID)
		if _, needed := u.Needs()[testID]; needed != inUse || u.Err() != nil {
			t.Errorf("in use: %v, needed: %v, error %v", inUse, needed, u.Err())
		}
		return inUse
	}
	folder := func(d *Disk) string { return filepath.Join(d.Path(), replicaFolder) }
	mount := func(d *Disk) error {
		return errors.Join(os.MkdirAll(folder(d), 0o755), unix.Mount("none", folder(d), "tmpfs", 0, ""))
	}
	unmount := func(d *Disk) error { return unix.Unmount(folder(d), unix.MNT_DETACH) }
	remove := func(d *Disk) error { return os.RemoveAll(filepath.Join(folder(d), "vol-1")) }
	removeAll := func(d *Disk) error { return os.RemoveAll(folder(d)) }
	other := func(d *Disk) error { return errors.Join(unmount(d), mount(d)) }
	cover := mount
	bind := func(d *Disk) error { // of a folder of the same file system
		other := d.Path() + "-replicas"
		return errors.Join(os.MkdirAll(folder(d), 0o755), os.MkdirAll(other, 0o755), unix.Mount(other, folder(d), "", unix.MS_BIND, ""))
	}
	for _, c := range []struct {
		name    string
		mounted bool // replicas is a mount of its own
		mount   func(*Disk) error
		vanish  func(*Disk) error
		ended   bool
		back    func(*Disk) error // makes the replica visible again
	}{
		{name: "deleted", vanish: remove, ended: true},
		{name: "all deleted", vanish: removeAll, ended: true},
		{name: "deleted on a mount", mounted: true, vanish: remove, ended: true},
		{name: "not mounted", mounted: true, vanish: unmount},
		{name: "not mounted and removed", mounted: true, vanish: func(d *Disk) error { return errors.Join(unmount(d), removeAll(d)) }},
		{name: "another file system", mounted: true, vanish: other},
		{name: "covered", vanish: cover, back: unmount},
		{name: "not bound", mounted: true, mount: bind, vanish: unmount},
		{name: "deleted on a bind mount", mounted: true, mount: bind, vanish: remove, ended: true},
	} {
		for _, restarted := range []bool{false, true} {
			d := newDisk(t)
			path := folder(d)
			t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
			if c.mounted {
				if c.mount == nil {
					c.mount = mount
				}
				if err := c.mount(d); err != nil {
					t.Fatal(err)
				}
			}
			replica(t, d, "vol-1", "/host/backing-images/"+testID.String()+"/backing")
			if !used(d) {
				t.Fatalf("%s: a replica is no user", c.name)
			}
			if restarted {
				d = restart(t, d, true)
			}
			if err := c.vanish(d); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if got := used(d); got == c.ended {
					t.Errorf("%s (restarted: %v): in use: %v, want %v", c.name, restarted, got, !c.ended)
				}
				d = restart(t, d, true) // the use continues across further restarts
			}
			if c.ended {
				continue
			}
			if why, _ := d.Users().InUse(testID); !strings.Contains(why, "may not be mounted") {
				t.Errorf("%s: the reason is %q", c.name, why)
			}
			if c.back != nil {
				if err := errors.Join(c.back(d), remove(d)); err != nil {
					t.Fatal(err)
				}
			} else {
				d.EndUses(testID.Name, "00000000")
				if !used(d) {
					t.Errorf("%s: the use ended with that of another generation", c.name)
				}
				d.EndUses(testID.Name, testID.UUID)
			}
			if used(d) || used(restart(t, d, true)) {
				t.Errorf("%s: the use did not end", c.name)
			}
		}
	}
}

// TestDamagedUsersFile checks that nothing counts as unused while the recorded users cannot be read, and that the file stays.
func TestDamagedUsersFile(t *testing.T) {
	for _, content := range []string{"", "{", "[]", "null garbage", `{}`, `{"version":2,"users":{}}`, strings.Repeat("x", maxSmallFile+1)} {
		d := newDisk(t)
		file := filepath.Join(d.Path(), usersFile)
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if why, inUse := d.Users().mayBeInUse(testID); !inUse || !strings.Contains(why, usersFile) || strings.Contains(why, "\n") {
			t.Errorf("%.20q: in use: %v, %q", content, inUse, why)
		}
		if got, err := os.ReadFile(file); errors.Join(err, d.RecordUsers()) != nil || string(got) != content {
			t.Errorf("%.20q: the file was changed: %.20q, %v", content, got, err)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
		if why, inUse := d.Users().mayBeInUse(testID); inUse {
			t.Errorf("%.20q: still in use without the file: %s", content, why)
		}
	}
}

// TestRecordUsersWritesOnlyChanges checks that a disk whose replicas do not change is not written to.
func TestRecordUsersWritesOnlyChanges(t *testing.T) {
	d := newDisk(t)
	file := filepath.Join(d.Path(), usersFile)
	d = restart(t, d, true)
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a disk without replicas has %s: %v", usersFile, err)
	}
	replica(t, d, "vol-1", "/host/backing-images/"+testID.String()+"/backing")
	d = restart(t, d, true)
	before, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	restart(t, d, true)
	if after, err := os.Stat(file); err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again: %v", err)
	}
}
