package disk

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// xfs mounts a file system that supports reflinks. It is unmounted when the test ends.
func xfs(t *testing.T) string {
	t.Helper()
	return mountNew(t, 320<<20, "xfs", "mkfs.xfs", "-q", "-m", "reflink=1")
}

// mountNew makes a file system with the command mkfs in the file "image" beside the folder that it returns,
// and mounts it there until the test ends.
func mountNew(t testing.TB, size int64, fstype string, mkfs ...string) string {
	t.Helper()
	need.Root(t, "mount a file system")
	need.Device(t, "/dev/loop-control", "mount a file system")
	need.Programs(t, mkfs[0], "mount")
	dir := t.TempDir()
	image, at := filepath.Join(dir, "image"), filepath.Join(dir, "at")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(at, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{append(mkfs, image), {"mount", "-t", fstype, "-o", "loop", image, at}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return at
}

func diskAt(t testing.TB, dir string) *Disk {
	t.Helper()
	_, err := Init(dir)
	if err != nil {
		t.Fatal(err)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// cloneRig is a disk with a ready image and a reader of this image.
type cloneRig struct {
	disk   *Disk
	image  []byte
	copy   model.Copy
	reader *Reader
}

var cloneID = ident.ID{Name: "polly", UUID: "00c0ffee"}

func newCloneRig(t *testing.T, d *Disk, size int) *cloneRig {
	t.Helper()
	r := &cloneRig{disk: d, image: sparseImage(size)}
	p := openPart(t, d, PartOptions{})
	fill(t, p, r.image)
	var err error
	if r.copy, err = p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
	if r.reader, err = d.Open(testID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.reader.Close() })
	return r
}

// part opens the partial file of the clone. It calls Begin unless the file already has the right
// source.
func (r *cloneRig) part(t *testing.T, to *Disk) *Part {
	t.Helper()
	p, err := to.OpenPart(context.Background(), cloneID, PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if p.Source() != CopySource(r.copy) {
		if err := p.Begin(CopySource(r.copy)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// commit makes the clone ready, and compares its bytes with the image.
func (r *cloneRig) commit(t *testing.T, p *Part) model.Copy {
	t.Helper()
	c, err := p.Commit(r.copy.SHA512)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(p.folder.disk.path, filePath(cloneID, imageFile))); err != nil || !bytes.Equal(got, r.image) {
		t.Fatalf("the clone differs from the image (error %v)", err)
	}
	if c.ManifestDigest != r.copy.ManifestDigest || c.ManifestDigest.IsZero() {
		t.Errorf("the manifest digest of the clone is %s, want %s", c.ManifestDigest, r.copy.ManifestDigest)
	}
	return c
}

func free(t testing.TB, d *Disk) int64 {
	t.Helper()
	dir, err := os.Open(d.path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
	s, err := d.Space()
	if err != nil {
		t.Fatal(err)
	}
	return s.Free
}

func TestCloneSharesExtents(t *testing.T) {
	at := xfs(t)
	for _, size := range []int{512, ChunkSize + 512, 16 * ChunkSize, 17*ChunkSize - 4096 - 512} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			dir := filepath.Join(at, fmt.Sprint(size))
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			r := newCloneRig(t, diskAt(t, dir), size)
			before := free(t, r.disk)
			p := r.part(t, r.disk)
			var done int64
			if err := p.Clone(context.Background(), r.reader, func(n int64) { done += n }); err != nil {
				t.Fatal(err)
			}
			r.commit(t, p)
			if done != int64(size) {
				t.Errorf("progress of %d bytes, want %d", done, size)
			}
			if took := before - free(t, r.disk); took > ChunkSize {
				t.Errorf("the clone used %d bytes of the disk: its extents are not shared", took)
			}
		})
	}
}

func TestCloneResumes(t *testing.T) {
	t.Parallel()
	for name, dir := range map[string]func(*testing.T) string{"shared": xfs, "copied": func(t *testing.T) string { return t.TempDir() }} {
		t.Run(name, func(t *testing.T) {
			r := newCloneRig(t, diskAt(t, dir(t)), 9*ChunkSize+512)
			p := r.part(t, r.disk)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			left := 4
			err := p.Clone(ctx, r.reader, func(int64) {
				if left--; left == 0 {
					cancel()
				}
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("error is %v", err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			p = r.part(t, r.disk)
			if p.Offset() != 4*ChunkSize {
				t.Fatalf("resumed at %d, want %d", p.Offset(), 4*ChunkSize)
			}
			if err := p.Clone(context.Background(), r.reader, func(int64) {}); err != nil {
				t.Fatal(err)
			}
			r.commit(t, p)
		})
	}
}

// TestCloneToAnotherFileSystem checks that Clone copies the data if extents cannot be shared.
func TestCloneToAnotherFileSystem(t *testing.T) {
	r := newCloneRig(t, newDisk(t), 6*ChunkSize)
	p := r.part(t, diskAt(t, xfs(t)))
	if err := p.Clone(context.Background(), r.reader, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	if c := r.commit(t, p); c.RealSize > 4*ChunkSize {
		t.Errorf("%d bytes are allocated: holes were filled", c.RealSize)
	}
}

// TestCloneOfModifiedImageFails checks that Clone fails, and that Commit then refuses the bytes.
func TestCloneOfModifiedImageFails(t *testing.T) {
	for name, dir := range map[string]func(*testing.T) string{"shared": xfs, "copied": func(t *testing.T) string { return t.TempDir() }} {
		t.Run(name, func(t *testing.T) {
			r := newCloneRig(t, diskAt(t, dir(t)), 6*ChunkSize)
			p := r.part(t, r.disk)
			poke(t, imagePath(r.disk, imageFile), 3)
			err := p.Clone(context.Background(), r.reader, func(int64) {})
			if !errors.Is(err, ErrModified) {
				t.Fatalf("error is %v, want ErrModified", err)
			}
			if _, err := p.Commit(r.copy.SHA512); err == nil {
				t.Error("the bytes of the modified image were committed")
			}
		})
	}
}
