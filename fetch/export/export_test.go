package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

const fixtures = "../../disk/testdata/longhorn/replicas/"

var imageID = ident.ID{Name: "exported", UUID: "00000001"}

func openDisk(t testing.TB, dir string) *disk.Disk {
	t.Helper()
	_, err := disk.Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func unpack(t testing.TB, archive string) *disk.Disk {
	t.Helper()
	dir := t.TempDir()
	need.Programs(t, "zstd")
	run(t, "tar", "-C", dir, "--zstd", "-xf", fixtures+archive)
	return openDisk(t, dir)
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if name == "qemu-img" {
		need.Programs(t, name)
	}
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

// export exports to a disk, like a job.
func export(ctx context.Context, to *disk.Disk, id ident.ID, s *Source) (model.Copy, error) {
	part, err := to.OpenPart(ctx, id, disk.PartOptions{Format: s.request.Format})
	if err != nil {
		return model.Copy{}, err
	}
	if err := s.Fill(ctx, part, &fetch.Progress{}); err != nil {
		return model.Copy{}, errors.Join(err, part.Close())
	}
	return part.Commit(ident.Digest{})
}

// TestExportLonghornReplicas exports every snapshot of the fixtures that Longhorn's own engine has
// read, some of them also to qcow2. A snapshot that must not be exported must leave no file.
func TestExportLonghornReplicas(t *testing.T) {
	var cases map[string]struct {
		Tar, Path, Snapshot, Expect, SHA512, Reason string
		Size                                        int64
	}
	text, err := os.ReadFile(fixtures + "expected.json")
	if err == nil {
		err = json.Unmarshal(text, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	disks := map[string]*disk.Disk{}
	to := openDisk(t, t.TempDir())
	for n, name := range slices.Sorted(maps.Keys(cases)) {
		want := cases[name]
		if disks[want.Tar] == nil {
			disks[want.Tar] = unpack(t, want.Tar)
		}
		refused := want.Expect != "ok" || name == "replica-removed/s02" // this snapshot is marked as removed
		if strings.HasPrefix(name, "replica-pair/7b60faae/") {
			continue // only the other replica has this snapshot
		}
		if race.Enabled && n%4 != 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			volume := filepath.Base(want.Path)
			volume = volume[:len(volume)-len("-12345678")]
			find := func(format model.Format, compress bool) (*Source, error) {
				return Find(&fetch.Client{}, map[string]*disk.Disk{"disk1": disks[want.Tar]},
					Request{Volume: volume, Snapshot: want.Snapshot, Format: format, Compress: compress})
			}
			s, err := find(model.Raw, false)
			if refused {
				var known *fetch.Error
				if !errors.As(err, &known) || known.Class != fetch.Refused || !strings.HasPrefix(err.Error(), "volume "+volume+": replica "+volume+"-") {
					t.Errorf("error is %v, want a refusal: %s", err, want.Reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			raw := ident.ID{Name: fmt.Sprintf("raw%d", n), UUID: "00000001"}
			c, err := export(t.Context(), to, raw, s)
			if err != nil || c.SHA512.String() != want.SHA512 || c.Size != want.Size || c.Format != model.Raw {
				t.Fatalf("raw image is %+v, error %v; want %.16s", c, err, want.SHA512)
			}
			for _, compress := range []bool{false, true}[:n%6/5*2] { // compression only for some of them
				if s, err = find(model.QCOW2, compress); err != nil {
					t.Fatal(err)
				}
				packed := ident.ID{Name: fmt.Sprintf("qcow2-%d", n), UUID: fmt.Sprintf("0000000%d", len(fmt.Sprint(compress)))}
				c, err := export(t.Context(), to, packed, s)
				if err != nil || c.VirtualSize != want.Size || c.Format != model.QCOW2 {
					t.Fatalf("qcow2 image is %+v, error %v", c, err)
				}
				file := func(id ident.ID) string { return filepath.Join(to.Path(), "backing-images", id.String(), "backing") }
				run(t, "qemu-img", "check", "-q", "-f", "qcow2", file(packed))
				run(t, "qemu-img", "compare", "-f", "raw", "-F", "qcow2", file(raw), file(packed))
			}
		})
	}
}

// volume creates the folder of a replica with a head and a snapshot s1 with data.
type volume struct {
	disk           *disk.Disk
	folder         string
	data           byte
	size, revision int64
	head           int64 // number of bytes written to the head; each later volume has a later modification time
	more           map[string]any
}

func (v volume) write(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(v.disk.Path(), "replicas", v.folder)
	put := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	object := func(name string, o map[string]any) {
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		put(name, text)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	size := max(v.size, 1<<20)
	layer := make([]byte, size)
	for i := range layer[:size/2] {
		layer[i] = v.data + byte(i>>12)
	}
	put("volume-snap-s1.img", layer)
	object("volume-snap-s1.img.meta", map[string]any{"Parent": "", "Removed": false})
	put("volume-head-001.img", make([]byte, v.head*4096))
	object("volume-head-001.img.meta", map[string]any{"Parent": "volume-snap-s1.img"})
	meta := map[string]any{"Size": size, "Head": "volume-head-001.img", "Parent": "volume-snap-s1.img", "BackingFilePath": ""}
	maps.Copy(meta, v.more)
	object("volume.meta", meta)
	if v.revision > 0 {
		put("revision.counter", append([]byte(fmt.Sprint(v.revision)), make([]byte, 100)...))
	}
	return dir
}

// TestFindChoosesReplica checks which of several replicas is selected, and the error if no replica is
// usable.
func TestFindChoosesReplica(t *testing.T) {
	dirty, rebuilding := map[string]any{"Dirty": true}, map[string]any{"Rebuilding": true, "Dirty": true}
	for _, test := range []struct {
		name     string
		snapshot string
		volumes  func(a, b *disk.Disk) []volume // the modification times increase
		want     string                         // the selected replica, or the error
	}{
		{"none", "", func(a, b *disk.Disk) []volume { return nil }, "volume v has no replica on this node"},
		{"a replica of another volume", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-1-00000001"}, {disk: a, folder: "vv-00000001"}, {disk: a, folder: "v"}}
		}, "volume v has no replica on this node"},
		{"the first of equal replicas", "s1", func(a, b *disk.Disk) []volume {
			return []volume{{disk: b, folder: "v-00000001"}, {disk: a, folder: "v-00000003"}, {disk: a, folder: "v-00000002"}}
		}, "v-00000002 on a"},
		{"the replica of the larger volume", "s1", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001"}, {disk: b, folder: "v-00000002", size: 2 << 20}}
		}, "v-00000002 on b"},
		{"the healthy replica", "s1", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001", more: rebuilding}, {disk: b, folder: "v-00000002", more: dirty}}
		}, "v-00000002 on b"},
		{"the head of the healthy replica, not of one that is being rebuilt", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: b, folder: "v-00000002"}, {disk: a, folder: "v-00000001", more: rebuilding}}
		}, "v-00000002 on b"},
		{"the replica that has not failed", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: b, folder: "v-00000002"}, {disk: a, folder: "v-00000001", more: map[string]any{"Error": "gone"}}}
		}, "v-00000002 on b"},
		{"only a failed replica", "s1", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001", more: map[string]any{"Error": "gone"}}}
		}, `volume v: replica v-00000001 on a: was marked as failed by Longhorn: "gone"`},
		{"the head written last", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001"}, {disk: b, folder: "v-00000002"}}
		}, "v-00000002 on b"},
		{"the head with the larger revision counter", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: b, folder: "v-00000002", revision: 9}, {disk: a, folder: "v-00000001", revision: 8}}
		}, "v-00000002 on b"},
		{"an attached volume", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001", more: dirty}}
		}, "volume v: replica v-00000001 on a: the volume is attached, or was not detached cleanly: take a snapshot and declare its name in snapshotName, or detach the volume"},
		{"a stale head and an attached volume", "", func(a, b *disk.Disk) []volume {
			return []volume{{disk: b, folder: "v-00000002", revision: 9, more: dirty}, {disk: a, folder: "v-00000001", revision: 8}}
		}, "replica v-00000001 on a may have older data"},
		{"the snapshot of an attached volume", "s1", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001", more: dirty}}
		}, "v-00000001 on a"},
		{"no such snapshot", "s2", func(a, b *disk.Disk) []volume {
			return []volume{{disk: a, folder: "v-00000001"}}
		}, `volume v: replica v-00000001 on a: has no snapshot "s2" (it has s1)`},
	} {
		t.Run(test.name, func(t *testing.T) {
			disks := map[string]*disk.Disk{"a": openDisk(t, t.TempDir()), "b": openDisk(t, t.TempDir())}
			for n, v := range test.volumes(disks["a"], disks["b"]) {
				dir := v.write(t)
				at := epoch.AddDate(0, 0, n)
				if err := os.Chtimes(filepath.Join(dir, "volume-head-001.img"), at, at); err != nil {
					t.Fatal(err)
				}
			}
			s, err := Find(&fetch.Client{}, disks, Request{Volume: "v", Snapshot: test.snapshot, Format: model.Raw})
			got := fmt.Sprint(err)
			if err == nil {
				got = s.name
			}
			if !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
