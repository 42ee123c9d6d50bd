package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// replica writes the metadata of a replica with the given backing file.
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

// TestUsedByReplica checks the forms of a backing file's path in volume.meta. If a path does not name
// an image, every image counts as in use.
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
		if why, inUse := d.Users().mayBeInUse(testID); inUse != c.used {
			t.Errorf("BackingFilePath %q: in use: %q, want %v", c.path, why, c.used)
		}
	}
}

// TestAllUnreadableReplicasAreNamed: a person repairs all of them at once. The message has a limit.
func TestAllUnreadableReplicasAreNamed(t *testing.T) {
	d := newDisk(t)
	for i := range maxReplicaErrors + 2 {
		replica(t, d, fmt.Sprintf("volume-%08d", i), "/some/link/to/it")
	}
	err := d.Users().Err()
	if err == nil || !strings.Contains(err.Error(), "replica volume-00000000: ") || !strings.Contains(err.Error(), "; replica volume-00000009: ") || !strings.HasSuffix(err.Error(), "; and others") {
		t.Errorf("got %v", err)
	}
}

// TestOpenWaitsForLeaseProbe checks that Open waits while another process has a lease on the image,
// as FileOpen has briefly.
func TestOpenWaitsForLeaseProbe(t *testing.T) {
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
		t.Skipf("this file system does not support leases: %v", err)
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

// realMetas returns volume.meta files that Longhorn wrote, by case.
func realMetas(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/volume-meta/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	metas := map[string][]byte{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		metas[strings.TrimSuffix(filepath.Base(file), ".json")] = data
	}
	return metas
}

func TestVolumeMetasOfLonghorn(t *testing.T) {
	want := map[string]struct {
		image             string
		dirty, rebuilding bool
		bad               bool
	}{
		"backing":               {image: "quince-base-87e3c988"},
		"backingodd":            {image: "rowan.img-13562ea9"},
		"backingqcow2":          {image: "spruce-q-2143f318"},
		"single":                {},
		"expanded":              {},
		"dirty":                 {dirty: true},
		"pair-0":                {},
		"pair-1":                {dirty: true, rebuilding: true},
		"bad-empty-volume-meta": {bad: true},
	}
	for name, data := range realMetas(t) {
		want, ok := want[name]
		if !ok {
			t.Errorf("%s is not expected", name)
		}
		m, err := ParseVolumeMeta(data)
		if want.bad != (err != nil) {
			t.Errorf("%s: error %v", name, err)
		}
		image, ok, err := m.BackingImage()
		if image != want.image || ok != (want.image != "") || err != nil || m.Dirty != want.dirty || m.Rebuilding != want.rebuilding {
			t.Errorf("%s: image %q of %+v, error %v; want %+v", name, image, m, err, want)
		}
	}
}

// TestReplicaInAnyStateKeepsImage checks that an image is not removed while a replica in any state
// uses it, or while any replica of the disk cannot be read.
func TestReplicaInAnyStateKeepsImage(t *testing.T) {
	race.Skip(t)
	t.Parallel()
	meta := func(more string) string {
		return `{"Size":1048576,"Head":"volume-head-000.img",` + more +
			`"BackingFilePath":"/host/var/lib/longhorn/backing-images/` + testID.String() + `/backing"}`
	}
	for _, test := range []struct {
		name, text string
		others     bool // other images count as in use as well
	}{
		{"plain", meta(""), false},
		{"dirty", meta(`"Dirty":true,`), false},
		{"rebuilding", meta(`"Rebuilding":true,`), false},
		{"with an error", meta(`"Error":"replica is broken",`), false},
		{"with other keys", meta(`"Color":{"a":[]},`), false},
		{"with keys of another case", strings.ReplaceAll(meta(""), "BackingFilePath", "backingfilepath"), false},
		{"with a newline", meta("") + "\n", false},
		{"empty", "", true},
		{"torn", meta("")[:60], true},
		{"without its last byte", meta("")[:len(meta(""))-1], true},
		{"zeros", strings.Repeat("\x00", 244), true},
		{"null", "null", true},
		{"without a size", `{"BackingFilePath":""}`, true},
		{"with a path that is a number", `{"Size":1,"BackingFilePath":7}`, true},
		{"with bytes after its end", meta("") + "x", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, sparseImage(ChunkSize))
			dir := filepath.Join(d.Path(), replicaFolder, "vol-12345678")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "volume.meta"), []byte(test.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := d.Remove(testID, Mark{}); !isA[*InUseError](err) {
				t.Errorf("error is %v, want an InUseError", err)
			}
			if c := d.Stat(testID); c.State != model.Ready {
				t.Errorf("copy is %+v", c)
			}
			if why, inUse := d.Users().mayBeInUse(ident.ID{Name: "willow", UUID: "00000224"}); inUse != test.others {
				t.Errorf("another image is in use: %q", why)
			}
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			if err := d.Remove(testID, Mark{}); err != nil {
				t.Errorf("without the replica: %v", err)
			}
		})
	}
}

// FuzzParseVolumeMeta checks for any bytes that ParseVolumeMeta does not panic, and that a volume
// with a backing file has either one image or an error.
func FuzzParseVolumeMeta(f *testing.F) {
	for _, data := range realMetas(f) {
		f.Add(data)
	}
	f.Add([]byte(`{"Size":1,"BackingFilePath":"/a/backing-images/b/backing-images/parrot-6846a0b2/../x"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := ParseVolumeMeta(data)
		if err != nil {
			return
		}
		if m.Size <= 0 {
			t.Errorf("size %d", m.Size)
		}
		image, _, err := m.BackingImage()
		if (image != "" || err != nil) != (m.BackingFilePath != "") || strings.Contains(image, "/") {
			t.Errorf("backing file %q: image %q, error %v", m.BackingFilePath, image, err)
		}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := ParseVolumeMeta(text); err != nil || again != m {
			t.Errorf("%+v was written as %s, which reads as %+v, error %v", m, text, again, err)
		}
	})
}

// TestUnreadableFolderMayBeALink checks that every image counts as in use if it is not known whether the folder that a replica names
// has a symlink.
func TestUnreadableFolderMayBeALink(t *testing.T) {
	need.Root(t, "read a folder without the rights")
	d := newDisk(t)
	replica(t, d, "vol-1", "/host/backing-images/"+testID.String()+"/backing")
	must(t, os.MkdirAll(imagePath(d, ""), 0o700))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _ = unix.SetfsuidRetUid(65534)
	err := d.Users().Err()
	_, _ = unix.SetfsuidRetUid(0)
	if err == nil || !strings.Contains(err.Error(), "may refer to any image") {
		t.Errorf("without the rights, the error is %v", err)
	}
	if err := d.Users().Err(); err != nil {
		t.Error(err)
	}
}
