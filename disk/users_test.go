package disk

import (
	"encoding/json"
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// replica puts the metadata of a replica on the disk that lies on the file at
// backing.
func replica(t testing.TB, d *Disk, name, backing string) {
	t.Helper()
	meta, err := json.Marshal(map[string]any{"Size": 1 << 20, "Head": "volume-head-000.img", "BackingFilePath": backing})
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(d.Path(), replicaFolder, name)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "volume.meta"), meta, 0o644)); err != nil {
		t.Fatal(err)
	}
}

// TestUsedByReplica has the ways in which a volume.meta names its backing file.
// What it names cannot always be told; then everything counts as used.
func TestUsedByReplica(t *testing.T) {
	const folder = "parrot-6846a0b2"
	for _, c := range []struct {
		path string
		used bool
	}{
		{"", false},
		{"/host/var/lib/longhorn/backing-images/" + folder + "/backing", true},
		{"/var/lib/longhorn/backing-images/" + folder, true},
		{"/var/lib/longhorn/backing-images/" + folder + "/", true},
		{"backing-images/" + folder + "/backing", true},
		{"/var//lib/longhorn/./backing-images/other/../" + folder + "/backing", true},
		{"/host/var/lib/backing-images/backing-images/" + folder + "/backing", true},
		{"/mnt/backing-images/disk1/backing-images/" + folder + "/backing", true},
		{"/var/lib/longhorn/backing-images/parrot-11111111/backing", false},
		{"/var/lib/longhorn/backing-images/" + folder + "x/backing", false},
		{"/some/link/to/it", true},
		{"/var/lib/longhorn/backing-images/", true},
		{"/var/lib/longhorn/backing-images%2F" + folder + "%2Fbacking", true},
	} {
		d := newDisk(t)
		replica(t, d, "volume-1a2b3c4d", c.path)
		if why := d.Users().Using(testID); (why != "") != c.used {
			t.Errorf("BackingFilePath %q: used is %q, want %v", c.path, why, c.used)
		}
	}
}

// TestOpenWhileUsersAreLookedFor opens an image in the moment in which somebody has the
// lease by which its users are found out.
func TestOpenWhileUsersAreLookedFor(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	f, err := os.Open(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, unix.SIGIO)
	defer signal.Stop(broken)
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("leases do not work here: %v", err)
	}
	released := make(chan error)
	go func() {
		<-broken
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		released <- err
	}()
	r, err := d.Open(testID)
	if err := errors.Join(<-released, closed(r, err)); err != nil {
		t.Error(err)
	}
}
