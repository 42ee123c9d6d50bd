package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/faultfs"
)

// fetchFrom returns a FetchChunk that reads from image. It appends the number of each chunk to
// fetched.
func fetchFrom(image []byte, fetched *[]int64) FetchChunk {
	return func(ctx context.Context, n int64, sum ChunkHash, buf []byte) (int, error) {
		*fetched = append(*fetched, n)
		return copy(buf, image[n*ChunkSize:]), nil
	}
}

// scribble overwrites bytes of a file.
func scribble(t *testing.T, name string, data []byte, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt(data, at)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// verifyFails verifies the image of testID and checks that the copy becomes failed.
func verifyFails(t *testing.T, d *Disk) {
	t.Helper()
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
		t.Fatalf("verified: %+v, error %v; want failed", c, err)
	}
}

func TestRepair(t *testing.T) {
	t.Parallel()
	const length = 4*ChunkSize + 1024 // chunks 1 and 3 are zeros
	image := sparseImage(length)
	tests := []struct {
		name    string
		damage  func(t *testing.T, name string)
		fetches []int64
	}{
		{"a bit", func(t *testing.T, name string) { poke(t, name, 2*ChunkSize+77) }, []int64{2}},
		{"the first and the last byte", func(t *testing.T, name string) {
			poke(t, name, 0)
			poke(t, name, length-1)
		}, []int64{0, 4}},
		{"bytes in a hole", func(t *testing.T, name string) { scribble(t, name, []byte("here"), 3*ChunkSize+5) }, nil},
		{"a hole in data", func(t *testing.T, name string) {
			f, err := os.OpenFile(name, os.O_RDWR, 0)
			if err == nil {
				err = errors.Join(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 2*ChunkSize, ChunkSize), f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		}, []int64{2}},
		{"the whole file", func(t *testing.T, name string) { scribble(t, name, bytes.Repeat([]byte{7}, length), 0) }, []int64{0, 2, 4}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, image)
			was := d.Stat(testID)
			test.damage(t, imagePath(d, imageFile))
			verifyFails(t, d)
			var fetched []int64
			var read int64
			c, err := d.Repair(context.Background(), testID, was.SHA512, fetchFrom(image, &fetched), func(n int64) { read += n })
			if err != nil || c.State != model.Ready || c.SHA512 != was.SHA512 || c.ManifestDigest != was.ManifestDigest || !c.HasCfg {
				t.Fatalf("repaired: %+v, error %v", c, err)
			}
			if !slices.Equal(fetched, test.fetches) || read != length {
				t.Errorf("Repair fetched chunks %v and read %d bytes, want %v and %d", fetched, read, test.fetches, int64(length))
			}
			if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, image) {
				t.Errorf("the file differs (error %v)", err)
			}
			if c.RealSize > was.RealSize+ChunkSize/16 {
				t.Errorf("%d bytes are allocated, before %d: holes were filled", c.RealSize, was.RealSize)
			}
			if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
				t.Errorf("verified: %+v, error %v", c, err)
			}
		})
	}
}

func TestRepairRefusesUnusableCopies(t *testing.T) {
	t.Parallel()
	image := sparseImage(3 * ChunkSize)
	tests := []struct {
		name    string
		prepare func(t *testing.T, d *Disk)
		want    ident.Digest
		is      func(error) bool
	}{
		{"a ready copy that changed", func(t *testing.T, d *Disk) { poke(t, imagePath(d, imageFile), 5) }, ident.Digest{}, isA[error]},
		{"a copy that changed since it failed", func(t *testing.T, d *Disk) {
			poke(t, imagePath(d, imageFile), 5)
			verifyFails(t, d)
			poke(t, imagePath(d, imageFile), 6)
		}, ident.Digest{}, isA[error]},
		{"a copy without a manifest", func(t *testing.T, d *Disk) {
			poke(t, imagePath(d, imageFile), 5)
			verifyFails(t, d)
			os.Remove(imagePath(d, chunksFile))
		}, ident.Digest{}, func(err error) bool { return errors.Is(err, ErrNoManifest) }},
		{"a copy with a wrong manifest", func(t *testing.T, d *Disk) {
			poke(t, imagePath(d, imageFile), 5)
			verifyFails(t, d)
			poke(t, imagePath(d, chunksFile), chunkHeaderSize)
		}, ident.Digest{}, func(err error) bool { return errors.Is(err, ErrNoManifest) }},
		{"a file that is short", func(t *testing.T, d *Disk) {
			truncate(t, imagePath(d, imageFile), 3*ChunkSize-512)
			verifyFails(t, d)
		}, ident.Digest{}, func(err error) bool { return errors.Is(err, ErrNoManifest) }},
		{"a file that is long", func(t *testing.T, d *Disk) {
			truncate(t, imagePath(d, imageFile), 3*ChunkSize+512)
			verifyFails(t, d)
		}, ident.Digest{}, func(err error) bool { return errors.Is(err, ErrNoManifest) }},
		{"another image", func(t *testing.T, d *Disk) {
			poke(t, imagePath(d, imageFile), 5)
			verifyFails(t, d)
		}, digest512(nil), isA[*ChecksumError]},
		{"another declared SHA-256", func(t *testing.T, d *Disk) {
			poke(t, imagePath(d, imageFile), 5)
			verifyFails(t, d)
		}, digest256(nil), isA[*ChecksumError]},
		{"an image that is open for writing", func(t *testing.T, d *Disk) {
			poke(t, imagePath(d, imageFile), 5)
			verifyFails(t, d)
			f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.Close() })
		}, ident.Digest{}, func(err error) bool { return errors.Is(err, ErrModified) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, image)
			test.prepare(t, d)
			was := d.Stat(testID).State
			var fetched []int64
			if c, err := d.Repair(context.Background(), testID, test.want, fetchFrom(image, &fetched), func(int64) {}); !test.is(err) {
				t.Errorf("%+v, error %v", c, err)
			}
			if c := d.Stat(testID); c.State != was {
				t.Errorf("the copy was %s and is %s", was, c.State)
			}
		})
	}
}

// TestRepairResumesAfterError interrupts a repair in different ways. The next repair must not fetch
// repaired chunks again, and needs no Verify before it.
func TestRepairResumesAfterError(t *testing.T) {
	t.Parallel()
	image := sparseImage(7 * ChunkSize)
	boom := errors.New("boom")
	tests := []struct {
		name  string
		fetch func(cancel context.CancelFunc, buf []byte) (int, error)
		is    error
	}{
		{"an error", func(_ context.CancelFunc, buf []byte) (int, error) { return 0, boom }, boom},
		{"other bytes", func(_ context.CancelFunc, buf []byte) (int, error) { return copy(buf, image[2*ChunkSize:]), nil }, nil},
		{"too few", func(_ context.CancelFunc, buf []byte) (int, error) { return copy(buf, image[4*ChunkSize:][:512]), nil }, nil},
		{"cancelled", func(cancel context.CancelFunc, buf []byte) (int, error) {
			cancel()
			return copy(buf, image[4*ChunkSize:]), nil
		}, context.Canceled},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, image)
			for _, n := range []int64{2, 4, 6} {
				poke(t, imagePath(d, imageFile), n*ChunkSize)
			}
			verifyFails(t, d)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var fetched []int64
			good := fetchFrom(image, &fetched)
			bad := func(ctx context.Context, n int64, sum ChunkHash, buf []byte) (int, error) {
				if n == 4 {
					return test.fetch(cancel, buf)
				}
				return good(ctx, n, sum, buf)
			}
			_, err := d.Repair(ctx, testID, ident.Digest{}, bad, func(int64) {})
			if err == nil || test.is != nil && !errors.Is(err, test.is) {
				t.Fatalf("error is %v", err)
			}
			if c := d.Stat(testID); c.State != model.Failed || c.ManifestDigest.IsZero() || !strings.Contains(c.Message, "checksum") {
				t.Fatalf("after the interruption: %+v", c)
			}
			if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !slices.Contains([]byte{image[4*ChunkSize], image[4*ChunkSize] ^ 1}, got[4*ChunkSize]) ||
				!bytes.Equal(got[4*ChunkSize+1:5*ChunkSize], image[4*ChunkSize+1:5*ChunkSize]) {
				t.Errorf("wrong bytes were written (error %v)", err)
			}
			fetched = nil
			c, err := d.Repair(context.Background(), testID, ident.Digest{}, good, func(int64) {})
			if err != nil || c.State != model.Ready || slices.Contains(fetched, 2) {
				t.Errorf("the second repair returned %+v, error %v, and fetched %v", c, err, fetched)
			}
		})
	}
}

// TestRepairWithOpenReaders checks that a reader, such as a virtual machine, reads the repaired
// bytes, and that a process that opens the file for writing is detected at the end.
func TestRepairWithOpenReaders(t *testing.T) {
	image := sparseImage(3*ChunkSize - 512)
	d := newDisk(t)
	readyImage(t, d, image)
	damage := func() {
		scribble(t, imagePath(d, imageFile), []byte("damage"), 512)
		scribble(t, imagePath(d, imageFile), []byte("damage"), int64(len(image))-6)
		verifyFails(t, d)
	}
	damage()
	user, err := os.Open(imagePath(d, imageFile))
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	mapped, err := unix.Mmap(int(user.Fd()), 0, len(image), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(mapped)
	if bytes.Equal(mapped, image) {
		t.Fatal("no chunk is damaged")
	}
	var fetched []int64
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {}); err != nil || c.State != model.Ready {
		t.Fatalf("%+v, error %v", c, err)
	}
	got, err := io.ReadAll(user)
	if err != nil || !bytes.Equal(got, image) || !bytes.Equal(mapped, image) {
		t.Errorf("the reader does not get the repaired bytes (error %v)", err)
	}
	damage()
	writer := func(ctx context.Context, n int64, sum ChunkHash, buf []byte) (int, error) {
		f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return copy(buf, image[n*ChunkSize:]), nil
	}
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, writer, func(int64) {}); !errors.Is(err, ErrModified) {
		t.Errorf("with a writer: %+v, error %v", c, err)
	}
	if c := d.Stat(testID); c.State == model.Ready {
		t.Error("the copy is ready while a process writes to it")
	}
}

// TestRepairedFileIsDurable checks that a repaired file is durable when Repair returns. Otherwise
// only the record would survive a power failure.
func TestRepairedFileIsDurable(t *testing.T) {
	d, v := faultyDisk(t)
	image := sparseImage(3*ChunkSize - 512)
	readyImage(t, d, image)
	for _, at := range []int64{5, 2*ChunkSize + 5} {
		if err := v.FlipBit(filePath(testID, imageFile), at); err != nil {
			t.Fatal(err)
		}
	}
	verifyFails(t, d)
	var fetched []int64
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {}); err != nil || c.State != model.Ready {
		t.Fatalf("%+v, error %v", c, err)
	}
	after := v.SurviveSynced()
	defer after.Close()
	got, err := os.ReadFile(filepath.Join(after.Path(), filePath(testID, imageFile)))
	if err != nil || !bytes.Equal(got, image) {
		t.Errorf("the file does not have the repaired bytes (error %v)", err)
	}
}

// During the repair, another process opens the file, writes to a chunk that Repair has already read, and
// closes the file. Repair must fail.
func TestRepairDetectsConcurrentWrite(t *testing.T) {
	image := sparseImage(5 * ChunkSize)
	d := newDisk(t)
	readyImage(t, d, image)
	poke(t, imagePath(d, imageFile), 2*ChunkSize)
	verifyFails(t, d)
	meanwhile := func(ctx context.Context, n int64, sum ChunkHash, buf []byte) (int, error) {
		poke(t, imagePath(d, imageFile), 7)
		return copy(buf, image[n*ChunkSize:]), nil
	}
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, meanwhile, func(int64) {}); !errors.Is(err, ErrModified) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Stat(testID); c.State != model.Unknown {
		t.Errorf("afterwards: %+v", c)
	}
}

// TestRepairWithWrongManifestFails checks that a wrong manifest is rejected after all chunks were
// repaired. Otherwise the repair would be retried forever.
func TestRepairWithWrongManifestFails(t *testing.T) {
	image := sparseImage(3 * ChunkSize)
	d := newDisk(t)
	readyImage(t, d, image)
	poke(t, imagePath(d, imageFile), 5)
	verifyFails(t, d)
	wrong := bytes.Clone(image)
	wrong[5] ^= 4
	if err := os.WriteFile(imagePath(d, chunksFile), chunkFileOf(NewChunks, wrong), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Update(testID, func(r *Record) { r.ManifestDigest = digest256(chunkFileOf(NewChunks, wrong)) }); err != nil {
		t.Fatal(err)
	}
	var fetched []int64
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(wrong, &fetched), func(int64) {}); !isA[*ChecksumError](err) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Stat(testID); c.State != model.Failed || !c.ManifestDigest.IsZero() {
		t.Errorf("afterwards: %+v", c)
	}
}

// TestRepairRewritesUnreadableChunks repairs first on a disk that is not writable, and then on a disk
// with bad sectors that become readable when they are written.
func TestRepairRewritesUnreadableChunks(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	if err := v.FlipBit(filePath(testID, imageFile), 5); err != nil {
		t.Fatal(err)
	}
	verifyFails(t, d)
	isImage := func(op faultfs.Op) bool { return strings.HasSuffix(op.Path, "/"+imageFile) }
	v.Plan(func(op faultfs.Op) error {
		if isImage(op) && op.Kind == "write" {
			return syscall.EIO
		}
		return nil
	})
	var fetched []int64
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("%+v, error %v", c, err)
	}
	v.Restart()
	reads := 0
	v.Plan(func(op faultfs.Op) error {
		if isImage(op) && op.Kind == "read" {
			if reads++; reads == 4 { // chunk 0, chunk 0 after its repair, chunk 1, chunk 2
				return syscall.EIO
			}
		}
		return nil
	})
	fetched = nil
	c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {})
	if err != nil || c.State != model.Ready || !slices.Equal(fetched, []int64{0, 2}) {
		t.Errorf("%+v, error %v; fetched %v", c, err, fetched)
	}
}

// TestRepairOfReadyImageWithMediaError checks that a ready image with a bad sector stays ready,
// whether the repair succeeds or not, and that no other chunk is written.
func TestRepairOfReadyImageWithMediaError(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	boom := errors.New("boom")
	for _, test := range []struct {
		name  string
		fetch FetchChunk
		is    error
	}{
		{"without a source", func(context.Context, int64, ChunkHash, []byte) (int, error) { return 0, boom }, boom},
		{"with a source", fetchFrom(image, new([]int64)), nil},
	} {
		reads, writes := 0, 0
		v.Plan(func(op faultfs.Op) error {
			switch isImage := strings.HasSuffix(op.Path, "/"+imageFile); {
			case isImage && op.Kind == "write":
				writes++
			case isImage && op.Kind == "read":
				if reads++; reads == 3 {
					return syscall.EIO
				}
			}
			return nil
		})
		_, err := d.Repair(context.Background(), testID, ident.Digest{}, test.fetch, func(int64) {})
		if !errors.Is(err, test.is) || (writes == 0) != (err != nil) {
			t.Errorf("%s: error %v after %d writes", test.name, err, writes)
		}
		v.Plan(nil)
		if c := d.Stat(testID); c.State != model.Ready {
			t.Errorf("%s: %+v", test.name, c)
		}
	}
	if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Ready {
		t.Errorf("verified: %+v, error %v", c, err)
	}
}

// TestRepairMarksDamagedReadyImageFailed checks that a repair finds wrong bytes in a ready image.
// Verify does not find them, because it returns the read error of a bad sector.
// TestRepairBesideWriter has a ready image with bit rot, no source, and a process that has the image open for writing: the copy
// must not stay ready.
func TestRepairBesideWriter(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d := newDisk(t)
	readyImage(t, d, image)
	poke(t, imagePath(d, imageFile), ChunkSize+5)
	evidence, err := d.image(testID).evidence(imageFile)
	if err == nil {
		err = d.Update(testID, func(r *Record) { r.Evidence = &evidence })
	}
	if err != nil {
		t.Fatal(err)
	}
	unavailable := func(context.Context, int64, ChunkHash, []byte) (int, error) {
		f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		t.Cleanup(func() { f.Close() })
		return 0, errors.New("boom")
	}
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, unavailable, func(int64) {}); err == nil {
		t.Errorf("repaired: %+v", c)
	}
	if c := d.Stat(testID); c.State == model.Ready {
		t.Errorf("a damaged copy stays ready: %+v", c)
	}
}

// As in TestRepairBesideWriter, and the record cannot be written.
func TestRepairBesideWriterWithoutRecord(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	if err := v.FlipBit(filePath(testID, imageFile), ChunkSize+5); err != nil {
		t.Fatal(err)
	}
	evidence, err := d.image(testID).evidence(imageFile) // bit rot does not change the evidence
	if err == nil {
		err = d.Update(testID, func(r *Record) { r.Evidence = &evidence })
	}
	if err != nil {
		t.Fatal(err)
	}
	unavailable := func(context.Context, int64, ChunkHash, []byte) (int, error) {
		f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
		if err != nil {
			return 0, err
		}
		t.Cleanup(func() { f.Close() })
		return 0, errors.New("boom")
	}
	v.Plan(fails("create", recordFile+".tmp", syscall.ENOSPC))
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, unavailable, func(int64) {}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("repaired: %+v, %v", c, err)
	}
	if c := d.Stat(testID); c.State == model.Ready {
		t.Errorf("a damaged copy stays ready: %+v", c)
	}
}

// A ready image has a bad sector. Its chunk is rewritten, but the disk does not keep the new bytes: the image is damaged, and
// must not stay ready.
func TestFailedRewriteOfReadyImage(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	reads, writes, flips := 0, 0, 0
	v.Plan(func(op faultfs.Op) error {
		if !strings.HasSuffix(op.Path, "/"+imageFile) {
			return nil
		}
		switch op.Kind {
		case "write":
			writes++
		case "stat":
			if writes > 0 && flips == 0 {
				flips++
				return v.FlipBit(filePath(testID, imageFile), ChunkSize+5)
			}
		case "read":
			if reads++; reads == 2 {
				return syscall.EIO
			}
		}
		return nil
	})
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, new([]int64)), func(int64) {}); err == nil || flips == 0 {
		t.Fatalf("repaired after %d reads, %d writes and %d lost writes: %+v", reads, writes, flips, c)
	}
	v.Plan(nil)
	if c := d.Stat(testID); c.State != model.Failed {
		t.Errorf("the damaged copy is %+v", c)
	}
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, new([]int64)), func(int64) {}); err != nil || c.State != model.Ready {
		t.Errorf("afterwards it is repaired: %+v, %v", c, err)
	}
}

func TestRepairMarksDamagedReadyImageFailed(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	if err := v.FlipBit(filePath(testID, imageFile), ChunkSize+5); err != nil {
		t.Fatal(err)
	}
	evidence, err := d.image(testID).evidence(imageFile) // bit rot does not change the evidence
	if err == nil {
		err = d.Update(testID, func(r *Record) { r.Evidence = &evidence })
	}
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	unavailable := func(context.Context, int64, ChunkHash, []byte) (int, error) {
		if c := d.Stat(testID); c.State != model.Failed { // a source may take hours
			t.Errorf("while its damaged chunk is fetched, the copy is %+v", c)
		}
		return 0, boom
	}
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, unavailable, func(int64) {}); !errors.Is(err, boom) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Stat(testID); c.State != model.Failed || c.DamagedAt.IsZero() || c.ManifestDigest.IsZero() {
		t.Errorf("without a source: %+v", c)
	}
	if c, err := d.Repair(context.Background(), testID, ident.Digest{}, fetchFrom(image, new([]int64)), func(int64) {}); err != nil || c.State != model.Ready {
		t.Errorf("with a source: %+v, error %v", c, err)
	}
}
