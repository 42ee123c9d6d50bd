package export

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// hookedVolume calls a function once, when a read reaches an offset.
type hookedVolume struct {
	flatDisk
	at int64
	do func()

	read int64 // in bytes
}

func (m *hookedVolume) ReadAt(b []byte, offset int64) (int, error) {
	n, err := m.flatDisk.ReadAt(b, offset)
	m.read += int64(n)
	if m.do != nil && offset >= m.at {
		do := m.do
		m.do = nil
		do()
	}
	return n, err
}

// doHalfway calls do when half of s is read.
func doHalfway(s *Source, do func()) *hookedVolume {
	m := &hookedVolume{at: 4 << 20, do: do}
	open := s.open
	s.open = func() (flatDisk, error) {
		var err error
		m.flatDisk, err = open()
		return m, err
	}
	return m
}

func find(t testing.TB, d *disk.Disk, r Request) *Source {
	t.Helper()
	s, err := Find(&fetch.Client{AllowAnyFile: true}, map[string]*disk.Disk{"a": d}, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestLayerChangedWhileReadIsRefused rewrites a layer that was already read, and a layer that was
// not.
func TestLayerChangedWhileReadIsRefused(t *testing.T) {
	for _, format := range []model.Format{model.Raw, model.QCOW2} {
		for _, at := range []int64{0, 6 << 20} {
			d := openDisk(t, t.TempDir())
			dir := volume{disk: d, folder: "v-00000001", size: 16 << 20, data: 1}.write(t)
			r := Request{Volume: "v", Snapshot: "s1", Format: format}
			s := find(t, d, r)
			doHalfway(s, func() {
				f, err := os.OpenFile(filepath.Join(dir, "volume-snap-s1.img"), os.O_WRONLY, 0)
				if err == nil {
					_, err = f.WriteAt(bytes.Repeat([]byte{9}, 4096), at)
				}
				if err = errors.Join(err, f.Close()); err != nil {
					t.Error(err)
				}
			})
			_, err := export(t.Context(), d, imageID, s)
			var known *fetch.Error
			if !errors.As(err, &known) || known.Class != fetch.Network || !errors.Is(err, disk.ErrModified) {
				t.Errorf("error is %v", err)
			}
			if c := d.Stat(imageID); c.State == model.Ready {
				t.Errorf("copy is %+v", c)
			}
			// The next attempt must reuse none of the bytes.
			s = find(t, d, r)
			again := doHalfway(s, nil)
			if c, err := export(t.Context(), d, imageID, s); err != nil || c.State != model.Ready {
				t.Errorf("the next attempt returned %+v, error %v", c, err)
			}
			if again.read < 8<<20 {
				t.Errorf("the next attempt read %d bytes", again.read)
			}
		}
	}
}

// TestResumeExport interrupts an export in the middle. The next export resumes if the volume is
// unchanged, and creates the same image.
func TestResumeExport(t *testing.T) {
	for _, r := range []Request{
		{Volume: "v", Snapshot: "s1", Format: model.Raw},
		{Volume: "v", Snapshot: "s1", Format: model.QCOW2},
		{Path: "file", Format: model.Raw},
	} {
		d := openDisk(t, t.TempDir())
		dir := volume{disk: d, folder: "v-00000001", size: 16 << 20, data: 1}.write(t)
		if r.Path != "" {
			r.Path = filepath.Join(dir, "volume-snap-s1.img")
		}
		whole, err := export(t.Context(), d, ident.ID{Name: "whole", UUID: "00000001"}, find(t, d, r))
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		s := find(t, d, r)
		doHalfway(s, stop)
		if _, err := export(ctx, d, imageID, s); !errors.Is(err, context.Canceled) {
			t.Fatalf("error is %v", err)
		}
		s = find(t, d, r)
		rest := doHalfway(s, nil)
		c, err := export(t.Context(), d, imageID, s)
		if err != nil || c.SHA512 != whole.SHA512 {
			t.Errorf("image is %+v, error %v; want %v", c, err, whole.SHA512)
		}
		if rest.read == 0 || rest.read > 13<<20 {
			t.Errorf("%s: the resumed export read %d bytes", r.Format, rest.read)
		}
	}
}

// TestRawDiskWithQCOW2HeaderIsRefusedAsRaw exports a raw disk with a qcow2 header that a guest has
// written. The header names another file as the backing file.
func TestRawDiskWithQCOW2HeaderIsRefusedAsRaw(t *testing.T) {
	d := openDisk(t, t.TempDir())
	dir := volume{disk: d, folder: "v-00000001"}.write(t)
	image := filepath.Join(t.TempDir(), "x.qcow2")
	run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-b", "/etc/passwd", "-F", "raw", image, "1M")
	header, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "volume-snap-s1.img"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.Write(header[:64<<10])
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	var format *disk.FormatError
	if _, err := export(t.Context(), d, imageID, find(t, d, Request{Volume: "v", Snapshot: "s1", Format: model.Raw})); !errors.As(err, &format) {
		t.Errorf("as raw: %v", err)
	}
	c, err := export(t.Context(), d, imageID, find(t, d, Request{Volume: "v", Snapshot: "s1", Format: model.QCOW2}))
	if err != nil || c.Format != model.QCOW2 || c.VirtualSize != 1<<20 {
		t.Errorf("encoded as qcow2: %+v, %v", c, err)
	}
}

// TestExportFromPaths exports files and devices instead of volumes.
func TestExportFromPaths(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) string {
		f, err := os.Create(filepath.Join(dir, name))
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		return f.Name()
	}
	good, odd, empty := file("good", 1<<20), file("odd", 1000), file("empty", 0)
	outside, link := filepath.Join(t.TempDir(), "outside"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(outside, make([]byte, 512), 0o600), os.Symlink(outside, link)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path  string
		roots []string
		class fetch.Class // 0: no error expected
		want  string
	}{
		{good, []string{dir}, 0, ""},
		{good, nil, fetch.BadConfig, "--allow-file-root"},
		{good, []string{dir + "/x"}, fetch.BadConfig, "not below an allowed folder"},
		{link, []string{dir}, fetch.BadConfig, "escapes"},
		{dir + "/none", []string{dir}, fetch.Refused, "no such file"},
		{odd, []string{dir}, fetch.BadSource, "has 1000 bytes"},
		{empty, []string{dir}, fetch.BadSource, "has 0 bytes"},
		{dir, []string{"/"}, fetch.BadSource, "neither a file nor a block device"},
		{"/dev/zero", []string{"/dev"}, fetch.BadSource, "neither a file nor a block device"},
	} {
		_, err := Find(&fetch.Client{FileRoots: test.roots}, nil, Request{Path: test.path, Format: model.Raw})
		var known *fetch.Error
		if test.class == 0 && err == nil {
			continue
		}
		if !errors.As(err, &known) || known.Class != test.class || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s below %v: %v, want class %v and %q", test.path, test.roots, err, test.class, test.want)
		}
	}
}

// TestHolesAreNotRead reads a file with holes.
func TestHolesAreNotRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "disk")
	want := make([]byte, 3<<20)
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, at := range []int{0, 1<<20 - 4096, 2<<20 + 8192} {
		for i := range want[at : at+12288] {
			want[at+i] = byte(i) | 1
		}
		if _, err := f.WriteAt(want[at:at+12288], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(int64(len(want))); err != nil {
		t.Fatal(err)
	}
	v, err := openPath(&fetch.Client{AllowAnyFile: true}, name)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for _, piece := range []int{4096, 100000, 3 << 20} {
		var got bytes.Buffer
		if _, err := io.CopyBuffer(struct{ io.Writer }{&got}, struct{ io.Reader }{io.NewSectionReader(v, 0, v.Size())}, make([]byte, piece)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			t.Errorf("read in pieces of %d bytes, the disk differs", piece)
		}
	}
	if n, err := fetch.DataSize(v.NextData); n != 3<<20 || err != nil {
		t.Errorf("data is %d, error %v", n, err)
	}
	if err := v.Unchanged(); err != nil {
		t.Error(err)
	}
}

// TestExportOfSecondGeneration exports a volume whose backing image is an exported, possibly
// compressed image.
func TestExportOfSecondGeneration(t *testing.T) {
	for _, r := range []Request{{Format: model.Raw}, {Format: model.QCOW2}, {Format: model.QCOW2, Compress: true}} {
		d := openDisk(t, t.TempDir())
		volume{disk: d, folder: "first-00000001", size: 2 << 20, data: 1}.write(t)
		r.Volume = "first"
		if _, err := export(t.Context(), d, imageID, find(t, d, r)); err != nil {
			t.Fatal(err)
		}
		dir := volume{disk: d, folder: "second-00000002", size: 3 << 20, data: 7, more: map[string]any{
			"BackingFilePath": "/host/var/lib/longhorn/backing-images/" + imageID.String() + "/backing",
		}}.write(t)
		// Keep only the first 64 KiB of the layer of the volume.
		layer := filepath.Join(dir, "volume-snap-s1.img")
		if err := errors.Join(os.Truncate(layer, 64<<10), os.Truncate(layer, 3<<20)); err != nil {
			t.Fatal(err)
		}
		want := make([]byte, 3<<20)
		for i := range want[:1<<20] {
			want[i] = 1 + byte(i>>12)
		}
		for i := range want[:64<<10] {
			want[i] = 7 + byte(i>>12)
		}
		id := ident.ID{Name: "again", UUID: "00000002"}
		c, err := export(t.Context(), d, id, find(t, d, Request{Volume: "second", Format: model.Raw}))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(d.Path(), "backing-images", id.String(), "backing"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("on %+v the image differs: %+v, error %v", r, c, err)
		}
	}
}
