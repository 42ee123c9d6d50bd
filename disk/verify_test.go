package disk

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// unpack unpacks a disk that Longhorn wrote, and opens it.
func unpack(t testing.TB, name string) *Disk {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		extract(t, filepath.Join(dir, h.Name), h, r)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func extract(t testing.TB, name string, h *tar.Header, r io.Reader) {
	t.Helper()
	if h.Typeflag == tar.TypeDir {
		if err := os.MkdirAll(name, 0o755); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	if err == nil {
		err = os.WriteFile(name, data, 0o644)
	}
	if err == nil {
		err = os.Chtimes(name, h.ModTime, h.ModTime)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestVerifyAdoptsImagesOfLonghorn checks that Verify adopts the images of disks that Longhorn's own
// programs wrote, and detects images that were damaged afterwards. It must read each image once.
func TestVerifyAdoptsImagesOfLonghorn(t *testing.T) {
	t.Parallel()
	var cases map[string]struct {
		UUID, Image, SHA512, Expect, Format string
		Size                                int64
		VirtualSize                         int64 `json:"virtual_size"`
	}
	data, err := os.ReadFile("testdata/longhorn/expected.json")
	if err == nil {
		err = json.Unmarshal(data, &cases)
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range cases {
		t.Run(name, func(t *testing.T) {
			d := unpack(t, "testdata/longhorn/"+name+".tar.zst")
			id := ident.ID{Name: want.Image, UUID: want.UUID}
			before := d.Stat(id)
			if before.State != model.Unknown || before.Owned {
				t.Fatalf("before: %+v, want unknown and not owned", before)
			}
			var read int64
			c, err := d.Verify(context.Background(), id, Expected{}, func(n int64) { read += n })
			if err != nil {
				t.Fatal(err)
			}
			if read != before.Size {
				t.Errorf("read %d bytes of %d", read, before.Size)
			}
			if want.Expect == "error" {
				if c.State != model.Failed || !strings.Contains(c.Message, "damaged") {
					t.Errorf("damaged image is %+v", c)
				}
				return
			}
			if c.State != model.Ready || c.Size != want.Size || c.SHA512.String() != want.SHA512 ||
				c.VirtualSize != want.VirtualSize || string(c.Format) != want.Format || !c.HasCfg || !c.Owned {
				t.Errorf("adopted image is %+v, want %+v", c, want)
			}
		})
	}
}

func TestVerifyDetectsChanges(t *testing.T) {
	image := sparseImage(3 * ChunkSize)
	commit := func(t *testing.T) *Disk {
		d := newDisk(t)
		p := openPart(t, d, PartOptions{})
		fill(t, p, image)
		if _, err := p.Commit(ident.Digest{}); err != nil {
			t.Fatal(err)
		}
		return d
	}
	verify := func(t *testing.T, d *Disk) model.Copy {
		t.Helper()
		if _, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil {
			t.Fatal(err)
		}
		return d.Stat(testID)
	}
	t.Run("a changed mtime, and adopts it", func(t *testing.T) {
		d := commit(t)
		stat, _ := os.Stat(imagePath(d, imageFile))
		later := stat.ModTime().Add(1)
		if err := os.Chtimes(imagePath(d, imageFile), later, later); err != nil {
			t.Fatal(err)
		}
		if c := d.Stat(testID); c.State != model.Unknown || !strings.Contains(c.Message, "mtime") {
			t.Fatalf("with a changed mtime: %+v", c)
		}
		if c := verify(t, d); c.State != model.Ready || !c.HasCfg {
			t.Errorf("after Verify: %+v", c)
		}
	})
	t.Run("wrong bytes with a restored mtime", func(t *testing.T) {
		d := commit(t)
		stat, _ := os.Stat(imagePath(d, imageFile))
		poke(t, imagePath(d, imageFile), 2*ChunkSize)
		if err := os.Chtimes(imagePath(d, imageFile), stat.ModTime(), stat.ModTime()); err != nil {
			t.Fatal(err)
		}
		if c := d.Stat(testID); c.State != model.Unknown {
			t.Fatalf("before Verify: %+v", c)
		}
		if c := verify(t, d); c.State != model.Failed || !strings.Contains(c.Message, "checksum mismatch") {
			t.Errorf("after Verify: %+v", c)
		}
		poke(t, imagePath(d, imageFile), 2*ChunkSize) // restores the bit
		if c := verify(t, d); c.State != model.Ready {
			t.Errorf("with the right bytes again: %+v", c)
		}
	})
	t.Run("a truncated record, and adopts the image again", func(t *testing.T) {
		d := commit(t)
		truncate(t, imagePath(d, recordFile), 20)
		if c := d.Stat(testID); c.State != model.Unknown || c.Owned {
			t.Fatalf("with a truncated record: %+v", c)
		}
		if c := verify(t, d); c.State != model.Ready || c.SHA512 != digest512(image) {
			t.Errorf("after Verify: %+v", c)
		}
	})
}

// TestVerifyChecksExpectedChecksumOfCfg checks files that Longhorn itself would not use, because they
// do not have the checksum that was declared to Longhorn.
func TestVerifyChecksExpectedChecksumOfCfg(t *testing.T) {
	image := sparseImage(ChunkSize)
	sum, other := digest512(image).String(), digest512(image[:512]).String()
	for _, c := range []struct {
		expected, current string
		want              model.State
	}{
		{"", "", model.Ready},
		{"", sum, model.Ready},
		{sum, "", model.Ready},
		{sum, sum, model.Ready},
		{"?", sum, model.Ready},
		{"", other, model.Failed},
		{sum, other, model.Failed},
		{other, sum, model.Failed},
		{other, "", model.Failed},
	} {
		d := newDisk(t)
		if _, err := d.image(testID).create(); err != nil {
			t.Fatal(err)
		}
		cfg, err := json.Marshal(longhornCfg{UUID: testID.UUID, Size: int64(len(image)), ExpectedChecksum: c.expected, CurrentChecksum: c.current})
		err = errors.Join(err, os.Remove(imagePath(d, recordFile)), os.WriteFile(imagePath(d, imageFile), image, 0o644), os.WriteFile(imagePath(d, cfgFile), cfg, 0o644))
		if err != nil {
			t.Fatal(err)
		}
		got, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
		if err != nil || got.State != c.want {
			t.Errorf("expected %.4q, current %.4q: %s %s, error %v; want %s", c.expected, c.current, got.State, got.Message, err, c.want)
		}
		// A file that contradicts the declared digest is kept: the operator decides.
		declared := Expected{Digest: digest512(image[:512])}
		if got, err = d.Verify(context.Background(), testID, declared, func(int64) {}); c.current != other && (err != nil || got.State != model.Ready) {
			t.Errorf("expected %.4q, current %.4q, with another digest declared: %s %s, error %v", c.expected, c.current, got.State, got.Message, err)
		}
	}
}

// TestVerifyDetectsWriteBeforeRecord checks that Verify detects a write after the file was read and
// before the result is recorded.
func TestVerifyDetectsWriteBeforeRecord(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(2 * ChunkSize)
	readyImage(t, d, image)
	s, err := openChunkReader(d.root, filePath(testID, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	v := verification{folder: d.image(testID), reader: s}
	if err := v.hash(context.Background(), func(int64) {}); err != nil {
		t.Fatal(err)
	}
	r, _, _ := d.image(testID).readRecord()
	damage := append([]byte{image[0] ^ 1}, image[1:]...)
	if err := os.WriteFile(imagePath(d, imageFile), damage, 0o644); err != nil {
		t.Fatal(err)
	}
	_ = v.recordResult(r)
	if c := d.Stat(testID); c.State == model.Ready {
		t.Error("the file is ready with bytes that were not verified")
	}
}

// TestWriteCfgRefusesChangedFile checks that WriteCfg fails for a file whose mtime changed.
func TestWriteCfgRefusesChangedFile(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, sparseImage(ChunkSize))
	r, _, _ := d.image(testID).readRecord()
	if err := os.Chtimes(imagePath(d, imageFile), r.VerifiedAt, r.VerifiedAt); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteCfg(testID, ident.Digest{}); err == nil {
		t.Error("WriteCfg described a file that changed since it was verified")
	}
}

// TestCommitDetectsWriteAfterRename checks that Commit detects a write after the rename and before
// the record is valid.
func TestCommitDetectsWriteAfterRename(t *testing.T) {
	d, v := faultyDisk(t)
	image := sparseImage(2 * ChunkSize)
	p := openPart(t, d, PartOptions{})
	fill(t, p, image)
	damage := append([]byte{image[0] ^ 1}, image[1:]...)
	v.Plan(func(op faultfs.Op) error {
		if op.Kind == "rename" && op.Path == filePath(testID, partChunksFile) {
			v.Put(filePath(testID, imageFile), damage)
		}
		return nil
	})
	if c, err := p.Commit(digest512(image)); !errors.Is(err, ErrModified) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Stat(testID); c.State != model.Unknown {
		t.Errorf("after Commit: %+v", c)
	}
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
		t.Errorf("verified: %+v, error %v", c, err)
	}
}

// TestVerifyRefusesFileOpenForWriting checks that Verify does not accept a file that another program
// has open for writing, even if that program pauses.
func TestVerifyRefusesFileOpenForWriting(t *testing.T) {
	d := newDisk(t)
	if err := os.MkdirAll(imagePath(d, ""), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	image := sparseImage(2 * ChunkSize)
	verify := func() (model.Copy, error) { return d.Verify(context.Background(), testID, Expected{}, func(int64) {}) }
	if _, err := f.Write(image[:ChunkSize]); err != nil {
		t.Fatal(err)
	}
	if c, err := verify(); !errors.Is(err, ErrModified) {
		t.Fatalf("half an image is %+v, error %v", c, err)
	}
	if _, err := f.Write(image[ChunkSize:]); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if c, err := verify(); err != nil || c.State != model.Ready || c.SHA512 != digest512(image) {
		t.Errorf("the image is %+v, error %v", c, err)
	}
}

// TestVerifyWaitsForInheritedDescriptor verifies a file that another descriptor has open for writing
// for a moment. A process that this one is just starting has such descriptors until it executes its
// program.
func TestVerifyWaitsForInheritedDescriptor(t *testing.T) {
	d := newDisk(t)
	if err := os.MkdirAll(imagePath(d, ""), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(imagePath(d, imageFile), sparseImage(ChunkSize), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := probeLease(f, unix.F_RDLCK); !errors.Is(err, unix.EAGAIN) {
		t.Fatalf("a lease on a file that is open for writing: %v", err)
	}
	time.AfterFunc(20*time.Millisecond, func() { f.Close() })
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
		t.Errorf("the image is %+v, error %v", c, err)
	}
}

// TestWriteWithinOneTickIsDetected checks that a write immediately after Commit or Verify is detected
// on a file system whose times are whole seconds.
func TestWriteWithinOneTickIsDetected(t *testing.T) {
	f := faultfs.Mount(t)
	image := sparseImage(2 * ChunkSize)
	for name, prepare := range map[string]func(t *testing.T, d *Disk) error{
		"commit": func(t *testing.T, d *Disk) error {
			readyImage(t, d, image)
			return nil
		},
		"verify": func(t *testing.T, d *Disk) error {
			_, err := d.image(testID).create()
			err = errors.Join(err, os.WriteFile(imagePath(d, imageFile), image, 0o644))
			if err == nil {
				_, err = d.Verify(context.Background(), testID, Expected{}, func(int64) {})
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := newVolumeDisk(t, f)
			v.UseWholeSeconds()
			d, err := Open(v.Path())
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if err := prepare(t, d); err != nil {
				t.Fatal(err)
			}
			before := d.Stat(testID)
			poke(t, imagePath(d, imageFile), 5)
			if c := d.Stat(testID); before.State != model.Ready || c.State != model.Unknown {
				t.Errorf("the copy was %s and is %s after a bit was changed", before.State, c.State)
			}
		})
	}
}
