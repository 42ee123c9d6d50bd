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

	"github.com/seed-26586806/backing-image-manager/disk/faultfs"
)

// TestRepairInUse has a reader, as a virtual machine is: it sees the right bytes as
// soon as they are there. One that begins to write is noticed at the end.
func TestRepairInUse(t *testing.T) {
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
		t.Fatal("nothing is damaged")
	}
	var asked []int64
	if c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, &asked), func(int64) {}); err != nil || c.State != Ready {
		t.Fatalf("%+v, error %v", c, err)
	}
	got, err := io.ReadAll(user)
	if err != nil || !bytes.Equal(got, image) || !bytes.Equal(mapped, image) {
		t.Errorf("the user does not see the repaired bytes (error %v)", err)
	}
	damage()
	writer := func(ctx context.Context, n int64, sum ChunkSum, buf []byte) (int, error) {
		f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return copy(buf, image[n*ChunkSize:]), nil
	}
	if c, err := d.Repair(context.Background(), testID, Digest{}, writer, func(int64) {}); !errors.Is(err, ErrChanging) {
		t.Errorf("with a writer: %+v, error %v", c, err)
	}
	if c := d.Look(testID); c.State == Ready {
		t.Error("it is ready while somebody writes to it")
	}
}

// TestRepairedFileIsDurable cuts the power right after a repair. The record that it is
// right must not outlive the bytes.
func TestRepairedFileIsDurable(t *testing.T) {
	d, v := faultyDisk(t)
	image := sparseImage(3*ChunkSize - 512)
	readyImage(t, d, image)
	for _, at := range []int64{5, 2*ChunkSize + 5} {
		if err := v.Flip(testID.file(imageFile), at); err != nil {
			t.Fatal(err)
		}
	}
	verifyFails(t, d)
	var asked []int64
	if c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, &asked), func(int64) {}); err != nil || c.State != Ready {
		t.Fatalf("%+v, error %v", c, err)
	}
	after := v.SurviveNothing()
	defer after.Close()
	got, err := os.ReadFile(filepath.Join(after.Path(), testID.file(imageFile)))
	if err != nil || !bytes.Equal(got, image) {
		t.Errorf("the file is not what was repaired (error %v)", err)
	}
}

// TestRepairVouchesForWhatItRead has somebody write, and be done with it, to a chunk
// that has been read already.
func TestRepairVouchesForWhatItRead(t *testing.T) {
	image := sparseImage(5 * ChunkSize)
	d := newDisk(t)
	readyImage(t, d, image)
	poke(t, imagePath(d, imageFile), 2*ChunkSize)
	verifyFails(t, d)
	meanwhile := func(ctx context.Context, n int64, sum ChunkSum, buf []byte) (int, error) {
		poke(t, imagePath(d, imageFile), 7)
		return copy(buf, image[n*ChunkSize:]), nil
	}
	if c, err := d.Repair(context.Background(), testID, Digest{}, meanwhile, func(int64) {}); !errors.Is(err, ErrChanging) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Look(testID); c.State != Unknown {
		t.Errorf("after it: %+v", c)
	}
}

// TestRepairByAManifestOfOtherBytes makes each chunk right and not the whole. It must
// not be tried again for ever.
func TestRepairByAManifestOfOtherBytes(t *testing.T) {
	image := sparseImage(3 * ChunkSize)
	d := newDisk(t)
	readyImage(t, d, image)
	poke(t, imagePath(d, imageFile), 5)
	verifyFails(t, d)
	wrong := bytes.Clone(image)
	wrong[5] ^= 4
	sums := chunkHeader()
	for piece := range slices.Chunk(wrong, ChunkSize) {
		sum := SumChunk(piece)
		sums = append(sums, sum[:]...)
	}
	if err := os.WriteFile(imagePath(d, chunksFile), sums, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Update(testID, func(r *Record) { r.Chunks = digest256(sums[chunkHeaderSize:]) }); err != nil {
		t.Fatal(err)
	}
	var asked []int64
	if c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(wrong, &asked), func(int64) {}); !isA[*ChecksumError](err) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Look(testID); c.State != Failed || !c.Chunks.IsZero() {
		t.Errorf("after it: %+v", c)
	}
}

// TestRepairOfUnreadableChunks has bad sectors, which are good again once they are
// written to, and a disk that is beyond repair.
func TestRepairOfUnreadableChunks(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	if err := v.Flip(testID.file(imageFile), 5); err != nil {
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
	var asked []int64
	if c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, &asked), func(int64) {}); !errors.Is(err, syscall.EIO) {
		t.Fatalf("%+v, error %v", c, err)
	}
	v.Restart()
	reads := 0
	v.Plan(func(op faultfs.Op) error {
		if isImage(op) && op.Kind == "read" {
			if reads++; reads == 4 { // chunk 0, again when it is written, chunk 1
				return syscall.EIO
			}
		}
		return nil
	})
	asked = nil
	c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, &asked), func(int64) {})
	if err != nil || c.State != Ready || !slices.Equal(asked, []int64{0, 2}) {
		t.Errorf("%+v, error %v; asked for %v", c, err, asked)
	}
}

// TestRepairOfAReadyImage has a bad sector in an image that nobody calls failed: it stays
// ready whatever comes of the repair, and nothing else is written.
func TestRepairOfAReadyImage(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	boom := errors.New("boom")
	for _, test := range []struct {
		name  string
		fetch FetchChunk
		is    error
	}{
		{"nobody has it", func(context.Context, int64, ChunkSum, []byte) (int, error) { return 0, boom }, boom},
		{"somebody has it", peerWith(image, new([]int64)), nil},
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
		_, err := d.Repair(context.Background(), testID, Digest{}, test.fetch, func(int64) {})
		if !errors.Is(err, test.is) || (writes == 0) != (err != nil) {
			t.Errorf("%s: error %v after %d writes", test.name, err, writes)
		}
		v.Plan(nil)
		if c := d.Look(testID); c.State != Ready {
			t.Errorf("%s: %+v", test.name, c)
		}
	}
	if c, err := d.Verify(context.Background(), testID, Want{}, func(int64) {}); err != nil || c.State != Ready {
		t.Errorf("in the end %+v, error %v", c, err)
	}
}

// TestRepairFindsAReadyImageWrong has bytes that rotted beside a sector that cannot be
// read, which ended the verification before it could tell.
func TestRepairFindsAReadyImageWrong(t *testing.T) {
	image := bytes.Repeat(sparseImage(ChunkSize), 4)
	d, v := faultyDisk(t)
	readyImage(t, d, image)
	if err := v.Flip(testID.file(imageFile), ChunkSize+5); err != nil {
		t.Fatal(err)
	}
	rotten, err := d.evidence(testID.file(imageFile)) // as if its times had not moved
	if err == nil {
		err = d.Update(testID, func(r *Record) { r.Evidence = &rotten })
	}
	if err != nil {
		t.Fatal(err)
	}
	boom := errors.New("boom")
	nobody := func(context.Context, int64, ChunkSum, []byte) (int, error) { return 0, boom }
	if c, err := d.Repair(context.Background(), testID, Digest{}, nobody, func(int64) {}); !errors.Is(err, boom) {
		t.Errorf("%+v, error %v", c, err)
	}
	if c := d.Look(testID); c.State != Failed || c.Damaged.IsZero() || c.Chunks.IsZero() {
		t.Errorf("with nobody who has the bytes: %+v", c)
	}
	if c, err := d.Repair(context.Background(), testID, Digest{}, peerWith(image, new([]int64)), func(int64) {}); err != nil || c.State != Ready {
		t.Errorf("with somebody: %+v, error %v", c, err)
	}
}
