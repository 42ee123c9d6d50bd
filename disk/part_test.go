package disk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/iotest"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

var testID = ident.ID{Name: "parrot", UUID: "6846a0b2"}

// newDisk creates a disk in a temporary folder.
func newDisk(t testing.TB) *Disk {
	t.Helper()
	dir := t.TempDir()
	if _, err := Init(dir); err != nil {
		t.Fatal(err)
	}
	d, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// sparseImage returns size bytes. Every second MiB is zero.
func sparseImage(size int) []byte {
	b := make([]byte, size)
	random := rand.NewChaCha8([32]byte{1})
	for at := 0; at < size; at += 2 * ChunkSize {
		random.Read(b[at:min(at+ChunkSize, size)])
	}
	return b
}

func digest512(b []byte) ident.Digest { h := sha512.New(); h.Write(b); return ident.SHA512.Digest(h) }

func digest256(b []byte) ident.Digest { h := sha256.New(); h.Write(b); return ident.SHA256.Digest(h) }

func openPart(t testing.TB, d *Disk, o PartOptions) *Part {
	t.Helper()
	p, err := d.OpenPart(context.Background(), testID, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func fill(t testing.TB, p *Part, image []byte) {
	t.Helper()
	if err := p.Begin(PartSource{ID: "test", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	if n, err := p.ReadFrom(bytes.NewReader(image)); err != nil || n != int64(len(image)) {
		t.Fatalf("ReadFrom appended %d bytes, error %v; want %d", n, err, len(image))
	}
}

func imagePath(d *Disk, name string) string { return filepath.Join(d.path, filePath(testID, name)) }

func TestCommitMakesAReadyImage(t *testing.T) {
	for _, size := range []int{512, ChunkSize, ChunkSize + 512, 5*ChunkSize - 512, 9 * ChunkSize} {
		d := newDisk(t)
		image := sparseImage(size)
		p := openPart(t, d, PartOptions{SHA256: true})
		fill(t, p, image)
		c, err := p.Commit(digest256(image))
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		if c.State != model.Ready || c.SHA512 != digest512(image) || c.SHA256 != digest256(image) || !c.HasCfg || !c.Owned {
			t.Errorf("size %d: copy is %+v", size, c)
		}
		if got, err := os.ReadFile(imagePath(d, imageFile)); err != nil || !bytes.Equal(got, image) {
			t.Errorf("size %d: the file differs (error %v)", size, err)
		}
		if c.RealSize > int64(size)/2+ChunkSize {
			t.Errorf("size %d: %d bytes are allocated: holes were filled", size, c.RealSize)
		}
		for _, name := range []string{partFile, partChunksFile} {
			if _, err := os.Stat(imagePath(d, name)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("size %d: %s was not removed", size, name)
			}
		}
	}
}

func TestResumeKeepsMatchingChunks(t *testing.T) {
	t.Parallel()
	image := sparseImage(8 * ChunkSize)
	tests := []struct {
		name   string
		damage func(t *testing.T, d *Disk)
		want   int64
	}{
		{"nothing happened", func(*testing.T, *Disk) {}, 5 * ChunkSize},
		{"a byte is wrong", func(t *testing.T, d *Disk) { poke(t, imagePath(d, partFile), 2*ChunkSize+7) }, 2 * ChunkSize},
		{"a hash is wrong", func(t *testing.T, d *Disk) { poke(t, imagePath(d, partChunksFile), chunkHeaderSize+3*32) }, 3 * ChunkSize},
		{"the partial file is short", func(t *testing.T, d *Disk) { truncate(t, imagePath(d, partFile), ChunkSize+5) }, ChunkSize},
		{"the journal is missing", func(t *testing.T, d *Disk) { os.Remove(imagePath(d, partChunksFile)) }, 0},
		{"the journal has another header", func(t *testing.T, d *Disk) { poke(t, imagePath(d, partChunksFile), 2) }, 0},
		{"the partial file is missing", func(t *testing.T, d *Disk) { os.Remove(imagePath(d, partFile)) }, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			p := openPart(t, d, PartOptions{})
			if err := p.Begin(PartSource{ID: "test", ETag: `"a"`, Size: int64(len(image))}); err != nil {
				t.Fatal(err)
			}
			boom := errors.New("boom")
			half := io.MultiReader(bytes.NewReader(image[:5*ChunkSize+100]), iotest.ErrReader(boom))
			if _, err := p.ReadFrom(half); !errors.Is(err, boom) {
				t.Fatalf("error is %v, want the error of the reader", err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			test.damage(t, d)
			p = openPart(t, d, PartOptions{})
			if p.Offset() != test.want || p.Source().ETag != `"a"` {
				t.Fatalf("resumed at %d with %+v, want %d", p.Offset(), p.Source(), test.want)
			}
			if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Commit(digest512(image)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// poke flips one bit of a file.
func poke(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, name string, size int64) {
	t.Helper()
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
}

func TestReadFromContinuesWithinChunk(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(3 * ChunkSize)
	p := openPart(t, d, PartOptions{})
	if err := p.Begin(PartSource{ID: "test", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	for p.Offset() < int64(len(image)) {
		next := min(int64(len(image)), p.Offset()+300_000)
		if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():next])); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Commit(digest512(image)); err != nil {
		t.Fatal(err)
	}
}

func TestCommitRefusesWrongContent(t *testing.T) {
	image := sparseImage(2 * ChunkSize)
	tests := []struct {
		name  string
		image []byte
		want  ident.Digest
		is    func(error) bool
	}{
		{"another checksum", image, digest512(image[1:]), isA[*ChecksumError]},
		{"no bytes", nil, ident.Digest{}, isA[*FormatError]},
		{"an odd size", image[:1000], ident.Digest{}, isA[*FormatError]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			p := openPart(t, d, PartOptions{})
			if err := p.Begin(PartSource{ID: "test", Size: -1}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.ReadFrom(bytes.NewReader(test.image)); err != nil {
				t.Fatal(err)
			}
			if _, err := p.Commit(test.want); !test.is(err) {
				t.Fatalf("error is %v", err)
			}
			if c := d.Stat(testID); c.State != model.Pending || c.PartBytes != 0 || c.Size != 0 {
				t.Errorf("the copy is %+v, want an empty one", c)
			}
			if _, err := os.Stat(imagePath(d, partFile)); !errors.Is(err, os.ErrNotExist) {
				t.Error("the partial file was not removed")
			}
		})
	}
}

func isA[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }

func TestBeginChecksSize(t *testing.T) {
	d := newDisk(t)
	space, err := d.Space()
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name    string
		options PartOptions
		size    int64
		is      func(error) bool
	}{
		{"more than is free", PartOptions{}, space.Free &^ 511 * 2, func(err error) bool { return errors.Is(err, ErrNoSpace) }},
		{"less than the reserve remains", PartOptions{Reserve: space.Free + 1<<30}, 512, func(err error) bool { return errors.Is(err, ErrNoSpace) }},
		{"larger than MaxSize", PartOptions{MaxSize: 512}, 1024, func(err error) bool { return errors.Is(err, ErrTooLarge) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := openPart(t, d, test.options)
			if err := p.Begin(PartSource{ID: "test", Size: test.size}); !test.is(err) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

func TestReadFromStopsAtMaxSize(t *testing.T) {
	d := newDisk(t)
	p := openPart(t, d, PartOptions{MaxSize: ChunkSize})
	if err := p.Begin(PartSource{ID: "test", Size: -1}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(sparseImage(2 * ChunkSize))); !errors.Is(err, ErrTooLarge) {
		t.Errorf("error is %v", err)
	}
}

// TestBeginAcceptsSparseImageLargerThanDisk checks that an image may be larger than the disk if its
// data fits.
func TestBeginAcceptsSparseImageLargerThanDisk(t *testing.T) {
	d := newDisk(t)
	space, err := d.Space()
	if err != nil {
		t.Fatal(err)
	}
	size := space.Free &^ 511 * 2
	if err := openPart(t, d, PartOptions{}).Begin(PartSource{ID: "test", Size: size, Data: ChunkSize}); err != nil {
		t.Error(err)
	}
	lack, is := errors.AsType[*NoSpaceError](openPart(t, d, PartOptions{}).Begin(PartSource{ID: "test", Size: 2 * size, Data: size}))
	if !is || lack.Need != size+model.SpaceBeside(2*size) {
		t.Errorf("with more data than free space the error is %v", lack)
	}
}

// TestNoSpaceErrorWithUnknownSize checks that the error contains the needed space. Otherwise the
// image would be fetched again as soon as its partial file is removed.
func TestNoSpaceErrorWithUnknownSize(t *testing.T) {
	p := openPart(t, newDisk(t), PartOptions{Reserve: 1 << 60})
	if err := p.Begin(PartSource{ID: "test", Size: -1}); err != nil {
		t.Fatal(err)
	}
	_, err := p.ReadFrom(bytes.NewReader(sparseImage(64 << 20)))
	if err == nil {
		_, err = p.Commit(ident.Digest{})
	}
	lack, ok := errors.AsType[*NoSpaceError](err)
	if !ok || lack.Need < ChunkSize || !errors.Is(err, ErrNoSpace) {
		t.Errorf("got %v (%+v), want a *NoSpaceError of at least a chunk", err, lack)
	}
}

// TestNoSpaceErrorDuringSetSize checks that the writer can read the source of the partial file
// while SetSize changes it: a client may send the size of an upload when the disk is full.
func TestNoSpaceErrorDuringSetSize(t *testing.T) {
	const size = 2 * ChunkSize
	p := openPart(t, newDisk(t), PartOptions{Reserve: 1 << 60})
	if err := p.Begin(PartSource{ID: "test", Size: -1}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(sparseImage(ChunkSize))); err != nil {
		t.Fatal(err)
	}
	if err := p.SetSize(size); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(ident.Digest{}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("the error is %v", err)
	}
	if got := p.Source().Size; got != size {
		t.Errorf("the size is %d", got)
	}
}

// TestNoSpaceErrorWithKnownSize checks that the error contains the size of the whole image, if
// another program occupied the space during the transfer. The whole image must fit before the next
// attempt.
func TestNoSpaceErrorWithKnownSize(t *testing.T) {
	const size = 64 << 20
	p := openPart(t, newDisk(t), PartOptions{})
	if err := p.Begin(PartSource{ID: "test", Size: size}); err != nil {
		t.Fatal(err)
	}
	p.reserve = 1 << 60
	_, err := p.ReadFrom(bytes.NewReader(sparseImage(size)))
	if err == nil {
		_, err = p.Commit(ident.Digest{})
	}
	if lack, ok := errors.AsType[*NoSpaceError](err); !ok || lack.Need != size+model.SpaceBeside(size) {
		t.Errorf("got %v (%+v), want a *NoSpaceError of %d bytes", err, lack, size+model.SpaceBeside(size))
	}
}

// TestResumeKeepsZerosAtTheEnd checks that an interruption within a long hole loses no zeros.
func TestResumeKeepsZerosAtTheEnd(t *testing.T) {
	d := newDisk(t)
	image := make([]byte, 40*ChunkSize)
	copy(image, sparseImage(ChunkSize))
	copy(image[39*ChunkSize:], sparseImage(ChunkSize))
	p := openPart(t, d, PartOptions{})
	if err := p.Begin(PartSource{ID: "test", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(image[:30*ChunkSize])); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openPart(t, d, PartOptions{})
	if p.Offset() != 30*ChunkSize {
		t.Errorf("%d chunks of 30 are kept", p.Offset()/ChunkSize)
	}
	if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(digest512(image)); err != nil {
		t.Fatal(err)
	}
}

// TestReadyImageHasNoPart checks that the partial file for the replacement of a failed image is
// removed when the failed image becomes ready again.
func TestReadyImageHasNoPart(t *testing.T) {
	image := sparseImage(3 * ChunkSize)
	ways := map[string]func(t *testing.T, d *Disk) (model.Copy, error){
		"repaired": func(t *testing.T, d *Disk) (model.Copy, error) {
			var fetched []int64
			return d.Repair(t.Context(), testID, ident.Digest{}, fetchFrom(image, &fetched), func(int64) {})
		},
		"verified": func(t *testing.T, d *Disk) (model.Copy, error) {
			poke(t, imagePath(d, imageFile), 7) // the bit is right again, as after the replacement of a bad cable
			return d.Verify(t.Context(), testID, Expected{}, func(int64) {})
		},
	}
	for name, makeReady := range ways {
		t.Run(name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, image)
			poke(t, imagePath(d, imageFile), 7)
			if c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil || c.State != model.Failed {
				t.Fatalf("verified: %+v, error %v", c, err)
			}
			p := openPart(t, d, PartOptions{})
			if err := p.Begin(PartSource{ID: "test", Size: int64(len(image))}); err != nil {
				t.Fatal(err)
			}
			if _, err := p.ReadFrom(bytes.NewReader(image[:2*ChunkSize])); err != nil {
				t.Fatal(err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			c, err := makeReady(t, d)
			if err != nil || c.State != model.Ready || c.PartBytes != 0 {
				t.Fatalf("the copy is %+v, error %v", c, err)
			}
			if _, err := os.Stat(imagePath(d, partFile)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the partial file was not removed: %v", err)
			}
		})
	}
}

// TestModes checks who can read the files of a copy.
func TestModes(t *testing.T) {
	for _, private := range []bool{false, true} {
		d := newDisk(t)
		check := func(name string, want os.FileMode) {
			t.Helper()
			info, err := os.Stat(imagePath(d, name))
			if err != nil {
				t.Fatal(err)
			}
			if got := info.Mode().Perm(); got != want {
				t.Errorf("private=%v: %s has the mode %o, want %o", private, name, got, want)
			}
		}
		p := openPart(t, d, PartOptions{Private: private})
		fill(t, p, sparseImage(2*ChunkSize))
		check(partFile, 0o600)
		check(partChunksFile, 0o600)
		if _, err := p.Commit(ident.Digest{}); err != nil {
			t.Fatal(err)
		}
		want := 0o644 &^ umask
		if private {
			want = 0o600
		}
		check(imageFile, want)
		check(chunksFile, 0o600)
	}
}
