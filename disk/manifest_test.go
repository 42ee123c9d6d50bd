package disk

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

func TestManifestMatchesImage(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(4*ChunkSize + 1024)
	readyImage(t, d, image)
	m, err := d.Manifest(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if m.Size() != int64(len(image)) || m.Chunks() != 5 || m.ChunkLength(3) != ChunkSize || m.ChunkLength(4) != 1024 {
		t.Errorf("size %d, %d chunks, the last one of %d", m.Size(), m.Chunks(), m.ChunkLength(4))
	}
	var filled int64
	for n := range m.Chunks() {
		piece := image[n*ChunkSize:][:m.ChunkLength(n)]
		if !allZero(piece) {
			filled += m.ChunkLength(n)
		}
		if hash, err := m.Hash(n); err != nil || hash != NewChunks.Hash(piece) {
			t.Errorf("hash of chunk %d is %x, error %v", n, hash, err)
		}
		if zero, err := m.IsZero(n); err != nil || zero != allZero(piece) {
			t.Errorf("chunk %d is zero: %v, error %v", n, zero, err)
		}
	}
	if data, err := m.DataSize(); err != nil || data != filled || filled == m.Size() {
		t.Errorf("%d bytes of data, error %v, want %d", data, err, filled)
	}
	for _, n := range []int64{-1, 5} {
		if _, err := m.Hash(n); err == nil {
			t.Errorf("there is a chunk %d", n)
		}
	}
	hashes, err := io.ReadAll(m.Encoded())
	if err != nil || !bytes.Equal(hashes, chunkFileOf(NewChunks, image)) || digest256(hashes) != d.Stat(testID).ManifestDigest {
		t.Errorf("%d bytes of hashes, error %v", len(hashes), err)
	}
}

// TestWrongManifestIsRejected checks that Stat detects a wrong length, that Manifest detects all
// other faults, and that Verify then makes a new manifest.
func TestWrongManifestIsRejected(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, d *Disk)
		bySize bool // Stat detects the fault
	}{
		{"a hash is wrong", func(t *testing.T, d *Disk) { poke(t, imagePath(d, chunksFile), chunkHeaderSize+40) }, false},
		{"the header is wrong", func(t *testing.T, d *Disk) { poke(t, imagePath(d, chunksFile), 3) }, false},
		{"it is short", func(t *testing.T, d *Disk) { truncate(t, imagePath(d, chunksFile), chunkHeaderSize+64) }, true},
		{"it is long", func(t *testing.T, d *Disk) { truncate(t, imagePath(d, chunksFile), chunkHeaderSize+128) }, true},
		{"it is missing", func(t *testing.T, d *Disk) { os.Remove(imagePath(d, chunksFile)) }, true},
		{"its digest is not recorded", func(t *testing.T, d *Disk) {
			if err := d.Update(testID, func(r *Record) { r.ManifestDigest, r.Size = ident.Digest{}, 0 }); err != nil {
				t.Fatal(err)
			}
		}, true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			readyImage(t, d, sparseImage(3*ChunkSize))
			was := d.Stat(testID).ManifestDigest
			test.damage(t, d)
			if c := d.Stat(testID); c.State != model.Ready || c.ManifestDigest.IsZero() != test.bySize {
				t.Fatalf("before Manifest: %+v", c)
			}
			if m, err := d.Manifest(testID); !errors.Is(err, ErrNoManifest) {
				t.Fatalf("manifest %v, error %v", m, err)
			}
			if c := d.Stat(testID); c.State != model.Ready || !c.ManifestDigest.IsZero() {
				t.Fatalf("after Manifest: %+v", c)
			}
			if err := d.Update(testID, func(r *Record) { r.InUseRecorded = true }); err != nil {
				t.Fatal(err)
			}
			if l, err := d.List(); err != nil || !l.Copies[0].ManifestDigest.IsZero() {
				t.Fatalf("after another change of the record: %+v, error %v", l, err)
			}
			if _, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {}); err != nil {
				t.Fatal(err)
			}
			m, err := d.Manifest(testID)
			if err != nil {
				t.Fatal(err)
			}
			m.Close()
			if c := d.Stat(testID); c.ManifestDigest.IsZero() || c.ManifestDigest != was {
				t.Errorf("after verify: %+v", c)
			}
		})
	}
}

// received receives a manifest for an empty partial file.
func received(t testing.TB, d *Disk, o PartOptions, r io.Reader, size int64, want ident.Digest) (*Manifest, error) {
	t.Helper()
	p := openPart(t, d, o)
	m, err := p.ReceiveManifest(r, size, want)
	if err == nil {
		t.Cleanup(func() { m.Close() })
	}
	return m, err
}

func TestReceiveManifest(t *testing.T) {
	hashes := append(NewChunks.header(), bytes.Repeat([]byte("0123456789abcdef"), 6)...)
	want := digest256(hashes)
	boom := errors.New("boom")
	is := func(target error) func(error) bool { return func(err error) bool { return errors.Is(err, target) } }
	tests := []struct {
		name    string
		options PartOptions
		from    io.Reader
		size    int64
		want    ident.Digest
		is      func(error) bool // nil: no error expected
	}{
		{"three chunks", PartOptions{}, bytes.NewReader(hashes), 3 * ChunkSize, want, nil},
		{"in pieces", PartOptions{}, iotest.OneByteReader(bytes.NewReader(hashes)), 2*ChunkSize + 512, want, nil},
		{"the end together with the bytes", PartOptions{}, iotest.DataErrReader(bytes.NewReader(hashes)), 3 * ChunkSize, want, nil},
		{"a byte less", PartOptions{}, bytes.NewReader(hashes[1:]), 3 * ChunkSize, want, is(io.ErrUnexpectedEOF)},
		{"a byte more", PartOptions{}, bytes.NewReader(append(bytes.Clone(hashes), 0)), 3 * ChunkSize, want, isA[error]},
		{"nothing", PartOptions{}, bytes.NewReader(nil), 3 * ChunkSize, want, is(io.ErrUnexpectedEOF)},
		{"endless", PartOptions{}, repeat(hashes, 1<<40), 3 * ChunkSize, want, isA[error]},
		{"an error", PartOptions{}, iotest.ErrReader(boom), 3 * ChunkSize, want, is(boom)},
		{"an error at the end", PartOptions{}, io.MultiReader(bytes.NewReader(hashes), iotest.ErrReader(boom)), 3 * ChunkSize, want, is(boom)},
		{"other hashes", PartOptions{}, bytes.NewReader(bytes.Repeat([]byte{1}, 16+96)), 3 * ChunkSize, want, isA[*ChecksumError]},
		{"hashes without a header", PartOptions{}, bytes.NewReader(make([]byte, 16+96)), 3 * ChunkSize, digest256(make([]byte, 16+96)), is(ErrNoManifest)},
		{"no digest", PartOptions{}, bytes.NewReader(hashes), 3 * ChunkSize, ident.Digest{}, isA[error]},
		{"a digest of another algorithm", PartOptions{}, bytes.NewReader(hashes), 3 * ChunkSize, digest512(hashes), isA[error]},
		{"no size", PartOptions{}, bytes.NewReader(nil), 0, digest256(nil), isA[error]},
		{"a negative size", PartOptions{}, bytes.NewReader(nil), -5, want, isA[error]},
		{"larger than allowed", PartOptions{MaxSize: ChunkSize}, bytes.NewReader(hashes), 3 * ChunkSize, want, is(ErrTooLarge)},
		{"larger than the disk", PartOptions{}, repeat(hashes, 1<<60), 1<<63 - 1, want, is(ErrNoSpace)},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := newDisk(t)
			m, err := received(t, d, test.options, test.from, test.size, test.want)
			if test.is == nil {
				if err != nil || m.Size() != test.size {
					t.Fatalf("%+v, error %v", m, err)
				}
				if got, err := io.ReadAll(m.Encoded()); err != nil || !bytes.Equal(got, hashes) {
					t.Errorf("hashes are %q, error %v", got, err)
				}
			} else if err == nil || !test.is(err) {
				t.Errorf("error is %v", err)
			}
			if _, err := os.Stat(imagePath(d, partTempFile)); !errors.Is(err, os.ErrNotExist) {
				t.Error("the file of the manifest still has a name")
			}
		})
	}
}

// TestLeftoverManifestFileIsRemoved checks that ReceiveManifest, Discard and Remove remove a manifest
// file that a crash left.
func TestLeftoverManifestFileIsRemoved(t *testing.T) {
	d := newDisk(t)
	p := openPart(t, d, PartOptions{})
	left := imagePath(d, partTempFile)
	for range 2 {
		if err := os.WriteFile(left, []byte("left"), 0o644); err != nil {
			t.Fatal(err)
		}
		hashes := append(NewChunks.header(), make([]byte, 32)...)
		m, err := p.ReceiveManifest(bytes.NewReader(hashes), 512, digest256(hashes))
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
	}
	if err := os.WriteFile(left, []byte("left"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := p.Discard(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file was not removed")
	}
	if err := os.WriteFile(left, []byte("left"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := d.Remove(testID, Mark{}); err != nil {
		t.Error(err)
	}
}

// FuzzManifest uses any bytes as the chunk file of an image. As a manifest, only a file with the
// recorded digest is accepted. As a journal, any bytes are accepted.
func FuzzManifest(f *testing.F) {
	d := newDisk(f)
	image := sparseImage(2*ChunkSize + 512)
	readyImage(f, d, image)
	good, err := os.ReadFile(imagePath(d, chunksFile))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(good[:chunkHeaderSize])
	f.Add(append(bytes.Clone(good), good...))
	f.Add(chunkFileOf(otherAlgorithm(), image))
	f.Add(append([]byte("BIMCHUNK\x00\x00\x00\x03"), good[12:]...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := os.WriteFile(imagePath(d, chunksFile), data, 0o644); err != nil {
			t.Fatal(err)
		}
		m, err := d.Manifest(testID)
		if bytes.Equal(data, good) != (err == nil) {
			t.Fatalf("a chunk file of %d bytes: error %v", len(data), err)
		}
		if err == nil {
			m.Close()
		} else if !errors.Is(err, ErrNoManifest) {
			t.Errorf("error is %v", err)
		}
		journal := imagePath(d, "journal")
		if err := os.WriteFile(journal, data, 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := openChunks(d.root, filePath(testID, "journal"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.f.Close()
		known := max(0, int64(len(data))-chunkHeaderSize) / 32
		if a, _ := readChunkHeader(bytes.NewReader(data)); a == 0 {
			known = 0
		}
		if hash, err := c.at(known); err == nil {
			t.Errorf("chunk %d is after the %d known ones, but has the hash %x", known, known, hash)
		}
	})
}

func FuzzReceiveManifest(f *testing.F) {
	f.Add(make([]byte, 16+32), int64(512))
	f.Add(append(ChunkSHA256.header(), make([]byte, 96)...), int64(2*ChunkSize+1))
	f.Add([]byte("short"), int64(ChunkSize))
	f.Add(append(ChunkSHA256.header(), make([]byte, 65)...), int64(2*ChunkSize))
	f.Add(chunkFileOf(ChunkBLAKE3, make([]byte, ChunkSize+1)), int64(ChunkSize+1))
	f.Add(ChunkBLAKE3.header(), int64(1))
	d := newDisk(f)
	p := openPart(f, d, PartOptions{})
	f.Fuzz(func(t *testing.T, hashes []byte, size int64) {
		m, err := p.ReceiveManifest(bytes.NewReader(hashes), size, digest256(hashes))
		a, _ := readChunkHeader(bytes.NewReader(hashes))
		fits := a != 0 && size > 0 && int64(len(hashes)) == model.ChunkFileSize(size)
		if fits != (err == nil) {
			t.Fatalf("%d bytes of hashes for an image of %d: error %v", len(hashes), size, err)
		}
		if err != nil {
			return
		}
		defer m.Close()
		if _, err := m.Hash(m.Chunks() - 1); err != nil {
			t.Error(err)
		}
		if _, err := p.Matches(t.Context(), m); err != nil {
			t.Error(err)
		}
	})
}

// SelectChunk must select every chunk with data sooner or later, and a chunk of zeros only if the image
// has nothing else.
func TestSelectChunk(t *testing.T) {
	for _, a := range algorithms {
		testSelectChunk(t, a)
	}
}

func testSelectChunk(t *testing.T, a ChunkAlgorithm) {
	t.Helper()
	zeroChunk, zeroRest := a.Hash(zeros[:]), a.Hash(zeros[:512])
	var data [3]ChunkHash
	for i := range data {
		data[i] = a.Hash([]byte{byte(i + 1)})
	}
	const size = 5*ChunkSize + 512
	for _, test := range []struct {
		name   string
		hashes []ChunkHash
		want   []int64 // the chunks that may be selected
	}{
		{"data and zeros", []ChunkHash{zeroChunk, data[0], zeroChunk, data[1], data[2], zeroRest}, []int64{1, 3, 4}},
		{"a last chunk with data", []ChunkHash{zeroChunk, zeroChunk, zeroChunk, zeroChunk, zeroChunk, data[0]}, []int64{5}},
		{"only zeros", []ChunkHash{zeroChunk, zeroChunk, zeroChunk, zeroChunk, zeroChunk, zeroRest}, []int64{0, 1, 2, 3, 4, 5}},
	} {
		manifest := a.header()
		for _, h := range test.hashes {
			manifest = append(manifest, h.sum[:]...)
		}
		var got []int64
		for secret := range uint64(200) {
			c, err := SelectChunk(bytes.NewReader(append(manifest, "and more"...)), size, secret)
			if err != nil {
				t.Fatal(err)
			}
			n := c.From / ChunkSize
			if c.From != n*ChunkSize || c.To != min(c.From+ChunkSize, size) || c.Hash != test.hashes[n] {
				t.Fatalf("%s: got %+v", test.name, c)
			}
			if !slices.Contains(got, n) {
				got = append(got, n)
			}
		}
		if slices.Sort(got); !slices.Equal(got, test.want) {
			t.Errorf("%s: selected %v, want %v", test.name, got, test.want)
		}
		if _, err := SelectChunk(bytes.NewReader(manifest[:len(manifest)-1]), size, 1); err == nil {
			t.Errorf("%s: a short manifest is accepted", test.name)
		}
	}
	if _, err := SelectChunk(bytes.NewReader(nil), 0, 1); err == nil {
		t.Error("an empty image has a chunk")
	}
}
