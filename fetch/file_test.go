package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// addFileRoots creates an image below a folder that is allowed for file:// addresses.
func (r *fixture) addFileRoots() (root, path string) {
	r.t.Helper()
	root = r.t.TempDir()
	r.client.FileRoots = []string{r.t.TempDir(), root}
	path = filepath.Join(root, "images", "image.raw")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(path, image, 0o644); err != nil {
		r.t.Fatal(err)
	}
	return root, path
}

func TestDownloadFromFile(t *testing.T) {
	r := newFixture(t)
	_, path := r.addFileRoots()
	if err := r.download(Request{URL: "file://" + path, Digest: digest(image)}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

func TestFileOutsideOfRootsIsRefused(t *testing.T) {
	r := newFixture(t)
	root, path := r.addFileRoots()
	outside := filepath.Join(t.TempDir(), "outside.raw")
	if err := os.WriteFile(outside, image, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link.raw": outside, "up.raw": "../" + filepath.Base(filepath.Dir(outside)) + "/outside.raw", "in.raw": "images/image.raw"} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		path  string
		class Class
	}{
		{outside, BadConfig},
		{filepath.Join(root, "link.raw"), BadConfig},
		{filepath.Join(root, "up.raw"), BadConfig},
		{root + "/images/../../" + filepath.Base(filepath.Dir(outside)) + "/outside.raw", BadConfig},
		{filepath.Join(root, "images"), BadSource},
		{filepath.Join(root, "fifo"), BadSource},
		{filepath.Join(root, "nothing.raw"), Refused},
	}
	for _, tt := range tests {
		wantError(t, r.download(Request{URL: "file://" + tt.path}), tt.class)
	}
	if err := r.download(Request{URL: "file://" + filepath.Join(root, "in.raw")}); err != nil {
		t.Errorf("a link within the root: %v", err)
	}
	r.client.FileRoots = nil
	wantError(t, r.download(Request{URL: "file://" + path}), BadConfig, "--allow-file-root")
	r.client.AllowAnyFile = true
	if err := r.disk.Remove(testID, disk.Mark{}); err != nil {
		t.Fatal(err)
	}
	if err := r.download(Request{URL: "file://" + outside}); err != nil {
		t.Errorf("any file: %v", err)
	}
}

// TestHolesOfFileAreNotRead downloads a file of 64 MiB with 1 MiB of data.
func TestHolesOfFileAreNotRead(t *testing.T) {
	r := newFixture(t)
	_, path := r.addFileRoots()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 20
	_, err = f.WriteAt(image[:1<<20], 32<<20)
	if err := errors.Join(err, f.Truncate(size), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := r.download(Request{URL: "file://" + path}); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	copy(want[32<<20:], image[:1<<20])
	r.wantImage(want)
	body := &sparseBody{size: size}
	if body.f, err = os.Open(path); err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	info, err := body.f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	body.tag = fileVersion(info)
	buf, reads, n := make([]byte, 1<<20), 0, 0
	for body.offset < size {
		if n, err = body.Read(buf); err != nil {
			t.Fatal(err)
		}
		if body.offset-int64(n) >= body.data {
			reads++
		}
	}
	if reads > 2 {
		t.Errorf("%d reads were sent to the file, which has only 1 MiB of data", reads)
	}
}

func TestFileChangedWhileReadIsRefused(t *testing.T) {
	r := newFixture(t)
	_, path := r.addFileRoots()
	a, err := parseAddress("file://" + path)
	if err != nil {
		t.Fatal(err)
	}
	src, err := (&transfer{client: r.client}).newFileSource(a)
	if err != nil {
		t.Fatal(err)
	}
	got, err := src.get(context.Background(), rangeRequest{total: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer got.body.Close()
	buf := make([]byte, 1<<20)
	if _, err := got.body.Read(buf); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = got.body.Read(buf)
	}
	wantError(t, err, Dropped, "changed while it was read")
	_, err = src.get(context.Background(), rangeRequest{offset: 1 << 20, total: got.total, validator: got.etag})
	if !errors.Is(err, errChanged) {
		t.Errorf("got %v for the rest of a file that changed", err)
	}
}

// TestFileChangedThroughMappingIsRefused checks that a write through a mapping is detected if the
// page was already dirty. Such a write alone does not change the modification time.
func TestFileChangedThroughMappingIsRefused(t *testing.T) {
	r := newFixture(t)
	path, memory := fetchtest.Mapped(t, image)
	r.client.AllowAnyFile = true
	a, err := parseAddress("file://" + path)
	if err != nil {
		t.Fatal(err)
	}
	src, err := (&transfer{client: r.client}).newFileSource(a)
	if err != nil {
		t.Fatal(err)
	}
	got, err := src.get(t.Context(), rangeRequest{total: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer got.body.Close()
	if _, err := got.body.Read(make([]byte, 1<<20)); err != nil {
		t.Fatal(err)
	}
	memory[0], memory[len(memory)-1] = 'b', 'b'
	_, err = io.Copy(io.Discard, got.body)
	wantError(t, err, Dropped, "changed while it was read")
}

func TestResumeFromFile(t *testing.T) {
	r := newFixture(t)
	_, path := r.addFileRoots()
	p := r.openPart(disk.PartOptions{})
	a, err := parseAddress("file://" + path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	// The partial file differs from the file, so the result shows from where each byte was read.
	if err := p.Begin(disk.PartSource{ID: a.id(), ETag: fileVersion(info), Size: info.Size()}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(make([]byte, 1<<20))); err != nil {
		t.Fatal(err)
	}
	if err := r.into(p, Request{URL: "file://" + path}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(append(make([]byte, 1<<20), image[1<<20:]...))
}

func TestOpenLocal(t *testing.T) {
	r := newFixture(t)
	root, path := r.addFileRoots()
	dir := t.TempDir()
	for _, name := range []string{"a.caibx", "image.raw"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	missing := func(err error) bool { return errors.Is(err, fs.ErrNotExist) }
	invalid := func(err error) bool { return err != nil && !missing(err) }
	for _, tt := range []struct {
		address, dir, want string
		fails              func(error) bool
	}{
		{address: "file://" + path, dir: dir, want: string(image)},
		{address: "file://" + path + "x", dir: dir, fails: missing},
		{address: "file://" + root, fails: invalid},
		{address: "https://example.com/x/a.caibx?key=1", dir: dir, want: "a.caibx"},
		{address: "s3::https://example.com/bucket/a.caibx", dir: dir, want: "a.caibx"},
		{address: "https://example.com/x/b.caibx", dir: dir, fails: missing},
		{address: "https://example.com/x/a.caibx", fails: missing},
		{address: "https://example.com/x/..", dir: dir, fails: invalid},
		{address: "ftp://example.com/a.caibx", dir: dir, fails: invalid},
	} {
		r.client.AllowAnyFile = true
		f, err := r.client.OpenLocal(tt.address, tt.dir)
		if tt.fails != nil {
			if !tt.fails(err) {
				t.Errorf("%s: error %v", tt.address, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: error %v", tt.address, err)
			continue
		}
		got, err := io.ReadAll(f)
		if string(got) != tt.want || err != nil {
			t.Errorf("%s: got %d bytes, error %v", tt.address, len(got), err)
		}
		f.Close() // it was only read
	}
	r.client.AllowAnyFile = false
	if _, err := r.client.OpenLocal("file:///etc/passwd", ""); !invalid(err) {
		t.Errorf("a file outside the allowed folders: error %v", err)
	}
}
