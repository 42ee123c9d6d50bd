package replica

import (
	"crypto/sha512"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

const fixtures = "../testdata/longhorn/replicas/"

// expectation is the content of a snapshot that Longhorn's own engine read, or the expected error.
type expectation struct {
	Tar, Path, Snapshot, Expect, SHA512, Reason string
	Size                                        int64
}

func readJSON(t testing.TB, name string, to any) {
	t.Helper()
	data, err := os.ReadFile(fixtures + name)
	if err == nil {
		err = json.Unmarshal(data, to)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// unpack unpacks and opens the disk of a test case.
func unpack(t testing.TB, archive string) *disk.Disk {
	t.Helper()
	dir := t.TempDir()
	need.Programs(t, "zstd")
	if out, err := exec.Command("tar", "-C", dir, "--zstd", "-xf", fixtures+archive).CombinedOutput(); err != nil {
		t.Fatalf("tar %s: %v: %s", archive, err, out)
	}
	return openDisk(t, dir)
}

func openDisk(t testing.TB, dir string) *disk.Disk {
	t.Helper()
	d, err := disk.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// sumOf returns the hash of a disk that it reads in pieces of an odd length.
func sumOf(t testing.TB, s *Source) string {
	t.Helper()
	h := sha512.New()
	if _, err := io.CopyBuffer(h, struct{ io.Reader }{io.NewSectionReader(s, 0, s.Size())}, make([]byte, 123457)); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// sumOfData returns the hash of a disk that it reads by the ranges of NextData, with zeros between
// the ranges.
func sumOfData(t testing.TB, s *Source) string {
	t.Helper()
	h := sha512.New()
	zeros := make([]byte, 1<<20)
	at := int64(0)
	upTo := func(end int64) {
		for ; at < end; at += min(end-at, int64(len(zeros))) {
			h.Write(zeros[:min(end-at, int64(len(zeros)))])
		}
	}
	for {
		start, end, err := s.NextData(at)
		if err == io.EOF {
			upTo(s.Size())
			return hex.EncodeToString(h.Sum(nil))
		}
		if err != nil {
			t.Fatal(err)
		}
		if start < at || end <= start || end > s.Size() {
			t.Fatalf("after %d: data [%d, %d)", at, start, end)
		}
		upTo(start)
		data := make([]byte, end-start)
		if _, err := s.ReadAt(data, start); err != nil {
			t.Fatal(err)
		}
		h.Write(data)
		at = end
	}
}

// TestReplicasOfLonghorn checks that every snapshot has the content that Longhorn's own engine read.
func TestReplicasOfLonghorn(t *testing.T) {
	var cases map[string]expectation
	readJSON(t, "expected.json", &cases)
	disks := map[string]*disk.Disk{}
	for name, want := range cases {
		if disks[want.Tar] == nil {
			disks[want.Tar] = unpack(t, want.Tar)
		}
		at := Location{Disk: disks[want.Tar], Folder: path.Base(want.Path), Snapshot: want.Snapshot, AllowRemoved: true}
		t.Run(name, func(t *testing.T) {
			checked := Check(at)
			s, err := Open(at)
			if (err == nil) != (want.Expect == "ok") || (checked == nil) != (err == nil) {
				t.Fatalf("error is %v (Check returned %v), want %s: %s", err, checked, want.Expect, want.Reason)
			}
			if err != nil {
				return
			}
			defer s.Close()
			if s.Size() != want.Size {
				t.Errorf("size is %d, want %d", s.Size(), want.Size)
			}
			if got := sumOf(t, s); got != want.SHA512 {
				t.Errorf("read as a whole: %.16s, want %.16s", got, want.SHA512)
			}
			if got := sumOfData(t, s); got != want.SHA512 {
				t.Errorf("read by ranges: %.16s, want %.16s", got, want.SHA512)
			}
			if err := s.Unchanged(); err != nil {
				t.Error(err)
			}
		})
	}
	if len(cases) < 30 {
		t.Errorf("%d cases", len(cases))
	}
}

// TestFixturesHaveTheirExtents checks that unpacking keeps the holes of the layers. Without them, the
// other tests would prove nothing.
func TestFixturesHaveTheirExtents(t *testing.T) {
	var archives map[string]map[string]struct {
		Data [][2]int64
		Size int64
	}
	readJSON(t, "extents.json", &archives)
	for archive, files := range archives {
		d := unpack(t, archive)
		for name, want := range files {
			f, err := os.Open(filepath.Join(d.Path(), name))
			if err != nil {
				t.Fatal(err)
			}
			file, err := disk.NewFile(f)
			if err != nil {
				t.Fatal(err)
			}
			var got [][2]int64
			list, _, err := new(fiemap).read(file, 0, nil)
			if err != nil {
				t.Fatalf("%v: set TMPDIR to a folder on ext4 or XFS", err)
			}
			for _, e := range list {
				got = append(got, [2]int64{e.start, min(e.end, file.Size()) - e.start})
			}
			if file.Size() != want.Size || !slices.Equal(got, want.Data) {
				t.Errorf("%s of %s has %d bytes with data at %v, want %d at %v", name, strings.TrimSuffix(archive, ".tar.zst"), file.Size(), got, want.Size, want.Data)
			}
			if err := file.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
