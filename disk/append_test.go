package disk

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// appendAll appends the chunks of image from the offset of the partial file on. It appends chunks of
// zeros with AppendZeros.
func appendAll(p *Part, image []byte) error {
	buf := NewChunkBuffer()
	for p.Offset() < int64(len(image)) {
		n := copy(buf, image[p.Offset():])
		var err error
		if allZero(buf[:n]) {
			err = p.AppendZeros(int64(n))
		} else {
			buf, err = p.AppendChunk(buf, int64(n), NewChunks.Hash(buf[:n]))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func TestAppendChunkMakesSameImageAsReadFrom(t *testing.T) {
	t.Parallel()
	for _, size := range []int{512, ChunkSize, ChunkSize + 512, 5*ChunkSize - 512, 9 * ChunkSize} {
		image := sparseImage(size)
		read, put := newDisk(t), newDisk(t)
		readyImage(t, read, image)
		p := openPart(t, put, PartOptions{SHA256: true})
		if err := p.Begin(PartSource{ID: "peer", Size: int64(size)}); err != nil {
			t.Fatal(err)
		}
		if err := appendAll(p, image); err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		c, err := p.Commit(digest256(image))
		if err != nil || c.SHA512 != digest512(image) {
			t.Fatalf("size %d: %+v, error %v", size, c, err)
		}
		for _, name := range []string{imageFile, chunksFile} {
			want, _ := os.ReadFile(imagePath(read, name))
			if got, err := os.ReadFile(imagePath(put, name)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("size %d: %s differs (error %v)", size, name, err)
			}
		}
		if other := read.Stat(testID).ManifestDigest; c.ManifestDigest.IsZero() || c.ManifestDigest != other {
			t.Errorf("size %d: the manifest is %s; ReadFrom makes %s", size, c.ManifestDigest, other)
		}
		if c.RealSize > int64(size)/2+ChunkSize {
			t.Errorf("size %d: %d bytes are allocated: holes were filled", size, c.RealSize)
		}
	}
}

// TestAppendChunkDoesNotHashAgain passes a wrong hash: the journal must contain this hash.
func TestAppendChunkDoesNotHashAgain(t *testing.T) {
	p := openPart(t, newDisk(t), PartOptions{})
	if err := p.Begin(PartSource{ID: "peer", Size: -1}); err != nil {
		t.Fatal(err)
	}
	buf := NewChunkBuffer()
	buf[0] = 1
	wrong := NewChunks.Hash([]byte("other bytes"))
	other, err := p.AppendChunk(buf, ChunkSize, wrong)
	if err != nil {
		t.Fatal(err)
	}
	if &other[0] == &buf[0] {
		t.Error("AppendChunk copied the buffer")
	}
	if err := p.pipeline.drain(0); err != nil {
		t.Fatal(err)
	}
	if got, _ := p.journal.at(0); got != wrong {
		t.Errorf("the journal contains the hash %x", got)
	}
}

func TestAppendChunkAndReadFromCanBeMixed(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(5*ChunkSize + 512)
	p := openPart(t, d, PartOptions{})
	if err := p.Begin(PartSource{ID: "both", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	read := func(to int64) {
		t.Helper()
		if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():to])); err != nil {
			t.Fatal(err)
		}
	}
	if err := appendAll(p, image[:ChunkSize]); err != nil {
		t.Fatal(err)
	}
	read(2 * ChunkSize)
	if err := appendAll(p, image[:3*ChunkSize]); err != nil {
		t.Fatal(err)
	}
	read(3*ChunkSize + 100)
	if err := p.AppendZeros(ChunkSize); err == nil {
		t.Fatal("a chunk was appended after an incomplete chunk")
	}
	if _, err := p.AppendChunk(NewChunkBuffer(), ChunkSize, ChunkHash{}); err == nil {
		t.Fatal("a chunk was appended after an incomplete chunk")
	}
	read(4 * ChunkSize)
	if err := appendAll(p, image); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(image[:1])); err == nil {
		t.Error("bytes were appended after the end")
	}
	if c, err := p.Commit(digest512(image)); err != nil || c.State != model.Ready {
		t.Errorf("%+v, error %v", c, err)
	}
}

func TestAppendChunkRefusesInvalidChunks(t *testing.T) {
	tests := []struct {
		name    string
		size    int64
		options PartOptions
		put     func(p *Part) error
		is      func(error) bool
	}{
		{"a negative length", -1, PartOptions{}, func(p *Part) error { return p.AppendZeros(-1) }, nil},
		{"nothing", -1, PartOptions{}, func(p *Part) error { return p.AppendZeros(0) }, nil},
		{"more than a chunk", -1, PartOptions{}, func(p *Part) error { return p.AppendZeros(ChunkSize + 1) }, nil},
		{"a short chunk in the middle", 2 * ChunkSize, PartOptions{}, func(p *Part) error { return p.AppendZeros(512) }, nil},
		{"larger than the declared size", 512, PartOptions{}, func(p *Part) error { return p.AppendZeros(1024) }, nil},
		{"a chunk after a short one", -1, PartOptions{}, func(p *Part) error {
			return errors.Join(p.AppendZeros(512), errors.Unwrap(p.AppendZeros(512)))
		}, func(err error) bool { return errors.Is(err, errEnded) }},
		{"larger than MaxSize", -1, PartOptions{MaxSize: 512}, func(p *Part) error { return p.AppendZeros(1024) },
			func(err error) bool { return errors.Is(err, ErrTooLarge) }},
		{"a short buffer", -1, PartOptions{}, func(p *Part) error {
			_, err := p.AppendChunk(make([]byte, 512), 512, ChunkHash{})
			return err
		}, nil},
		{"a buffer that is not aligned", -1, PartOptions{}, func(p *Part) error {
			_, err := p.AppendChunk(alignedBuffer(ChunkSize + 1)[1:], 512, ChunkHash{})
			return err
		}, nil},
		{"a format that is not accepted", -1, PartOptions{}, func(p *Part) error {
			buf := NewChunkBuffer()
			copy(buf, "\x1f\x8b\x08")
			_, err := p.AppendChunk(buf, ChunkSize, NewChunks.Hash(buf))
			return err
		}, isA[*FormatError]},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := openPart(t, newDisk(t), test.options)
			if err := p.Begin(PartSource{ID: "peer", Size: test.size}); err != nil {
				t.Fatal(err)
			}
			if err := test.put(p); err == nil || test.is != nil && !test.is(err) {
				t.Errorf("error is %v", err)
			}
		})
	}
}

// TestAppendedChunksAreResumed closes the partial file and opens it again.
func TestAppendedChunksAreResumed(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(6*ChunkSize + 512)
	p := openPart(t, d, PartOptions{})
	if err := p.Begin(PartSource{ID: "peer", Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	if err := appendAll(p, image); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openPart(t, d, PartOptions{})
	if p.Offset() != 6*ChunkSize {
		t.Fatalf("resumed at %d", p.Offset())
	}
	if err := appendAll(p, image); err != nil {
		t.Fatal(err)
	}
	if c, err := p.Commit(digest512(image)); err != nil || c.ManifestDigest.IsZero() {
		t.Errorf("%+v, error %v", c, err)
	}
}

func TestPartMatchesManifest(t *testing.T) {
	t.Parallel()
	image := sparseImage(5*ChunkSize + 512)
	from := newDisk(t)
	readyImage(t, from, image)
	m, err := from.Manifest(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	other := bytes.Clone(image)
	other[2*ChunkSize+5] ^= 1
	tests := []struct {
		name  string
		size  int64
		image []byte
		put   bool
		want  bool
	}{
		{"nothing", int64(len(image)), nil, true, true},
		{"some chunks", int64(len(image)), image[:3*ChunkSize], true, true},
		{"all", int64(len(image)), image, true, true},
		{"an incomplete last chunk", -1, image[:3*ChunkSize+100], false, true},
		{"another chunk", int64(len(image)), other[:4*ChunkSize], true, false},
		{"the chunks before a difference", int64(len(image)), other[:2*ChunkSize], true, true},
		{"another size", int64(len(image)) + 512, image[:ChunkSize], true, false},
		{"more", -1, append(bytes.Clone(image), make([]byte, 512)...), false, false},
		{"a short chunk that is not the end of the image", -1, image[:2*ChunkSize+512], true, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := openPart(t, newDisk(t), PartOptions{})
			err := p.Begin(PartSource{ID: "x", Size: test.size})
			if err == nil && test.put {
				err = appendAll(p, test.image)
			} else if err == nil {
				_, err = p.ReadFrom(bytes.NewReader(test.image))
			}
			if err != nil && !errors.Is(err, io.EOF) {
				t.Fatal(err)
			}
			if got, err := p.Matches(t.Context(), m); err != nil || got != test.want {
				t.Errorf("matches: %v, error %v; want %v", got, err, test.want)
			}
		})
	}
}

func TestContinueChangesSource(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(5*ChunkSize + 512)
	p := openPart(t, d, PartOptions{})
	if err := p.Begin(PartSource{ID: "an address", ETag: `"1"`, Size: int64(len(image))}); err != nil {
		t.Fatal(err)
	}
	half := 2*ChunkSize + 100
	if _, err := p.ReadFrom(bytes.NewReader(image[:half])); err != nil {
		t.Fatal(err)
	}
	chunks := PartSource{ID: "chunks", Size: int64(len(image))}
	if err := p.Continue(chunks); err != nil {
		t.Fatal(err)
	}
	if p.Offset() != 2*ChunkSize {
		t.Errorf("it continues at %d, want the start of the incomplete chunk", p.Offset())
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = openPart(t, d, PartOptions{})
	if p.Source() != chunks || p.Offset() != 2*ChunkSize {
		t.Fatalf("resumed: source %+v at %d", p.Source(), p.Offset())
	}
	if err := appendAll(p, image); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(digest512(image)); err != nil {
		t.Error(err)
	}
}

func TestContinueChecksSize(t *testing.T) {
	p := openPart(t, newDisk(t), PartOptions{MaxSize: 2 * ChunkSize})
	if err := p.Continue(PartSource{ID: "chunks", Size: 3 * ChunkSize}); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v, want %v", err, ErrTooLarge)
	}
}
