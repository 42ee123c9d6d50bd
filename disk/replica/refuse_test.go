package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// small creates a replica with the snapshots a, b and c and a head, each with random data.
func small(t testing.TB) (*written, *disk.Disk) {
	m, dir := newModel(t, 3, 1<<20)
	for _, name := range []string{"a", "b", "c", ""} {
		f, parent := m.begin(), m.parent
		m.write(f, 0, 9, m.noise)
		m.must(f.Close())
		if name != "" {
			m.snapshot(name)
			m.layer(m.parent, parent, false)
		}
	}
	return m, openDisk(t, dir)
}

// layer writes the .meta of a layer.
func (m *written) layer(file, parent string, removed bool) {
	m.json(file+metaSuffix, map[string]any{"Name": "x", "Parent": parent, "Removed": removed})
}

// TestOpenAndCheckRefuse checks that replicas that must not be read are rejected, with the reason in
// the error.
func TestOpenAndCheckRefuse(t *testing.T) {
	const a, b, c = "volume-snap-a.img", "volume-snap-b.img", "volume-snap-c.img"
	for _, test := range []struct {
		name     string
		snapshot string
		break_   func(*written)
		want     string
	}{
		{"the head of an attached volume", "", func(m *written) { m.volume(map[string]any{"Dirty": true}) }, "attached"},
		{"a replica that is being rebuilt", "c", func(m *written) { m.volume(map[string]any{"Rebuilding": true}) }, "being rebuilt"},
		{"a replica that failed", "c", func(m *written) { m.volume(map[string]any{"Error": "no\nspace"}) }, `"no\nspace"`},
		{"an unknown snapshot", "d", func(*written) {}, `no snapshot "d"`},
		{"a snapshot that is a path", "../vol-0a1b2c3d/volume-snap-a", func(*written) {}, "not a valid name"},
		{"a snapshot that was removed", "c", func(m *written) { m.layer(c, b, true) }, "was removed"},
		{"a cycle", "c", func(m *written) { m.layer(a, c, false) }, "cycle"},
		{"its own parent", "c", func(m *written) { m.layer(b, b, false) }, "cycle"},
		{"a parent with a path", "c", func(m *written) { m.layer(b, "../vol-0a1b2c3d/"+a, false) }, "not the name of a snapshot"},
		{"an absolute parent", "c", func(m *written) { m.layer(b, m.path(a), false) }, "not the name of a snapshot"},
		{"a parent that is a head", "c", func(m *written) { m.layer(b, m.head, false) }, "not the name of a snapshot"},
		{"a missing .meta", "c", func(m *written) { m.must(os.Remove(m.path(b + metaSuffix))) }, b + ".meta is missing"},
		{"a missing layer", "c", func(m *written) { m.must(os.Remove(m.path(b))) }, b + " is missing"},
		{"a missing parent", "c", func(m *written) { m.layer(a, "volume-snap-gone.img", false) }, "volume-snap-gone.img.meta is missing"},
		{"a truncated .meta", "c", func(m *written) { m.must(os.Truncate(m.path(b+metaSuffix), 9)) }, "unexpected end"},
		{"an empty .meta", "c", func(m *written) { m.must(os.WriteFile(m.path(b+metaSuffix), []byte("{}"), 0o600)) }, "it has no Parent"},
		{"an empty volume.meta", "c", func(m *written) { m.must(os.Truncate(m.path(volumeFile), 0)) }, "read volume.meta"},
		{"no volume.meta", "c", func(m *written) { m.must(os.Remove(m.path(volumeFile))) }, "volume.meta"},
		{"a negative size", "c", func(m *written) { m.volume(map[string]any{"Size": -512}) }, "size -512"},
		{"a size that is no multiple of 512", "c", func(m *written) { m.volume(map[string]any{"Size": 1000}) }, "size 1000"},
		{"a size larger than any file", "c", func(m *written) { m.volume(map[string]any{"Size": int64(1) << 62}) }, "size 4611686018427387904"},
		{"a head outside the folder", "", func(m *written) { m.volume(map[string]any{"Head": "../x"}) }, `head "../x"`},
		{"a head that is a snapshot", "", func(m *written) { m.volume(map[string]any{"Head": a}) }, "head"},
		{"a layer that is a link", "c", func(m *written) {
			m.must(os.Rename(m.path(b), m.path("x")))
			m.must(os.Symlink("x", m.path(b)))
		}, "not a regular file"},
		{"a layer that is a folder", "c", func(m *written) {
			m.must(os.Remove(m.path(b)))
			m.must(os.Mkdir(m.path(b), 0o700))
		}, "not a regular file"},
		{"a .meta that is a link", "c", func(m *written) {
			m.must(os.Rename(m.path(b+metaSuffix), m.path("x")))
			m.must(os.Symlink("x", m.path(b+metaSuffix)))
		}, "not a regular file"},
		{"a folder that is a link", "c", func(m *written) {
			m.must(os.Rename(m.dir, m.dir+"x"))
			m.must(os.Symlink(testReplica+"x", m.dir))
		}, "not a folder"},
		{"a file of the machine as backing file", "c", func(m *written) { m.volume(map[string]any{"BackingFilePath": "/etc/passwd"}) }, "does not name an image"},
		{"another file of an image folder as backing file", "c", func(m *written) {
			m.volume(map[string]any{"BackingFilePath": "/x/backing-images/parrot-6846a0b2/backing.cfg"})
		}, "it is not the file of an image"},
		{"a backing file with dots in its path", "c", func(m *written) { m.volume(map[string]any{"BackingFilePath": "/x/backing-images/../../etc/passwd"}) }, "does not name an image"},
		{"a missing backing image", "c", func(m *written) {
			m.volume(map[string]any{"BackingFilePath": "/x/backing-images/parrot-6846a0b2/backing"})
		}, "parrot-6846a0b2, which does not exist"},
		{"a backing image that is a link", "c", func(m *written) {
			folder := filepath.Join(m.dir, "../../backing-images/parrot-6846a0b2")
			m.must(os.MkdirAll(folder, 0o700))
			m.must(os.Symlink("/etc/passwd", filepath.Join(folder, "backing")))
			m.volume(map[string]any{"BackingFilePath": "/x/backing-images/parrot-6846a0b2/backing"})
		}, "parrot-6846a0b2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, d := small(t)
			test.break_(m)
			at := Location{Disk: d, Folder: testReplica, Snapshot: test.snapshot}
			s, err := Open(at)
			if err == nil {
				s.Close()
				t.Fatal("Open succeeded")
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("error is %q, want %q", err, test.want)
			}
			if checked := Check(at); checked == nil || !strings.Contains(checked.Error(), test.want) {
				t.Errorf("Check returned %v, want %q", checked, test.want)
			}
		})
	}
}

// TestOpenAcceptsConsistentSnapshots checks that problems that do not affect a snapshot do not
// prevent reading it.
func TestOpenAcceptsConsistentSnapshots(t *testing.T) {
	for name, odd := range map[string]func(*written){
		"a snapshot of an attached volume": func(m *written) { m.volume(map[string]any{"Dirty": true}) },
		"a snapshot after a removed one":   func(m *written) { m.layer("volume-snap-b.img", "volume-snap-a.img", true) },
		"without a head":                   func(m *written) { m.must(os.Remove(m.path(m.head))) },
		"with other files":                 func(m *written) { m.json("volume-snap-c.img.checksum", 1); m.json("volume-snap-d.img.snap_tmp", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			m, d := small(t)
			odd(m)
			s, err := Open(Location{Disk: d, Folder: testReplica, Snapshot: "c"})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			got := make([]byte, s.Size())
			if _, err := s.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			differs(t, got, flatten(m.taken["c"].layers, nil, m.size), 0)
		})
	}
}

// TestLongestChain reads a chain with as many layers as Longhorn allows, and then a chain with one
// more layer.
func TestLongestChain(t *testing.T) {
	m, dir := newModel(t, 4, 1<<20)
	for n := range maxLayers + 1 {
		f := m.begin()
		m.write(f, int64(n%256), 1, m.noise)
		m.must(f.Close())
		m.snapshot(fmt.Sprint("n", n))
	}
	m.head = "volume-head-999.img"
	m.volume(nil)
	d := openDisk(t, dir)
	last := fmt.Sprint("n", maxLayers-1)
	s, err := Open(Location{Disk: d, Folder: testReplica, Snapshot: last, AllowRemoved: true})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make([]byte, s.Size())
	if _, err := s.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	differs(t, got, flatten(m.taken[last].layers, nil, m.size), 0)
	if _, err := Open(Location{Disk: d, Folder: testReplica, Snapshot: fmt.Sprint("n", maxLayers), AllowRemoved: true}); err == nil || !strings.Contains(err.Error(), "more than 250 layers") {
		t.Errorf("with one more layer: %v", err)
	}
}

// TestBackingImageOnAnotherDisk checks that the backing image may be on another disk of the node.
func TestBackingImageOnAnotherDisk(t *testing.T) {
	m, d := small(t)
	m.useBackingImage("raw", 4096*40)
	m.volume(nil)
	other, elsewhere := newModel(t, 5, 1<<20)
	other.begin().Close()
	m.must(os.Rename(filepath.Join(d.Path(), "backing-images"), filepath.Join(elsewhere, "backing-images")))
	at := Location{Disk: d, Folder: testReplica, Snapshot: "c", AllowRemoved: true}
	if _, err := Open(at); err == nil || !strings.Contains(err.Error(), "does not exist on the disks of this node") {
		t.Errorf("without the other disk: %v", err)
	}
	at.OtherDisks = []*disk.Disk{openDisk(t, elsewhere)}
	s, err := Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	got := make([]byte, s.Size())
	if _, err := s.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	differs(t, got, flatten(m.taken["c"].layers, m.base, m.size), 0)
}

// TestUnchangedAndFingerprint changes an open volume in the ways in which Longhorn does when it
// merges layers or attaches the volume, and in other ways.
func TestUnchangedAndFingerprint(t *testing.T) {
	for _, test := range []struct {
		name    string
		changed bool
		do      func(*written)
	}{
		{"a write to a layer", true, func(m *written) {
			f, err := os.OpenFile(m.path("volume-snap-a.img"), os.O_WRONLY, 0)
			m.must(err)
			_, err = f.Write([]byte{1})
			m.must(errors.Join(err, f.Close()))
		}},
		{"a layer replaced by another one", true, func(m *written) {
			m.must(os.Rename(m.path("volume-snap-a.img"), m.path("volume-snap-b.img")))
			m.layer("volume-snap-b.img", "", false)
		}},
		{"a layer replaced by an identical one", true, func(m *written) {
			data, err := os.ReadFile(m.path("volume-snap-b.img"))
			m.must(err)
			m.must(os.WriteFile(m.path("x"), data, 0o600))
			m.must(os.Rename(m.path("x"), m.path("volume-snap-b.img")))
		}},
		{"a layer removed from the chain", true, func(m *written) { m.layer("volume-snap-c.img", "volume-snap-a.img", false) }},
		{"a larger volume", true, func(m *written) { m.volume(map[string]any{"Size": m.size + 512}) }},
		{"a replica under rebuild", true, func(m *written) { m.volume(map[string]any{"Rebuilding": true}) }},
		{"a modified backing image", true, func(m *written) {
			m.must(os.Truncate(filepath.Join(m.dir, "../../backing-images/parrot-6846a0b2/backing"), 512))
		}},
		{"a removed folder", true, func(m *written) { m.must(os.RemoveAll(m.dir)) }},
		{"a volume that is attached", false, func(m *written) { m.volume(map[string]any{"Dirty": true}) }},
		{"a new snapshot, and a write", false, func(m *written) {
			m.snapshot("later")
			f := m.begin()
			m.write(f, 3, 1, m.noise)
			m.must(f.Close())
		}},
		{"a snapshot marked as removed", false, func(m *written) { m.layer("volume-snap-c.img", "volume-snap-b.img", true) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, d := small(t)
			m.useBackingImage("raw", 5120)
			m.volume(nil)
			at := Location{Disk: d, Folder: testReplica, Snapshot: "c", AllowRemoved: true}
			s, err := Open(at)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			test.do(m)
			if err := s.Unchanged(); errors.Is(err, disk.ErrModified) != test.changed || !test.changed && err != nil {
				t.Errorf("error is %v, changed is %v", err, test.changed)
			}
			again, err := Open(at)
			if err != nil {
				return // no fingerprint to compare
			}
			defer again.Close()
			if same := again.Fingerprint() == s.Fingerprint(); same == test.changed {
				t.Errorf("same fingerprint: %v", same)
			}
		})
	}
}

// TestUnchangedDetectsAttachedHead checks that Unchanged detects that the volume was attached while
// its head was read.
func TestUnchangedDetectsAttachedHead(t *testing.T) {
	m, d := small(t)
	s, err := Open(Location{Disk: d, Folder: testReplica})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	m.volume(map[string]any{"Dirty": true})
	if err := s.Unchanged(); !errors.Is(err, disk.ErrModified) || !errors.Is(err, ErrAttached) {
		t.Errorf("error is %v", err)
	}
}
