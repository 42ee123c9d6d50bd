package disk

import (
	"bytes"
	"context"
	"encoding/hex"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// algorithms are all algorithms of chunk hashes.
var algorithms = []ChunkAlgorithm{ChunkSHA256, ChunkBLAKE3}

// otherAlgorithm returns the algorithm that new manifests do not have.
func otherAlgorithm() ChunkAlgorithm { return ChunkSHA256 + ChunkBLAKE3 - NewChunks }

// chunkFileOf returns the chunk file of an image.
func chunkFileOf(a ChunkAlgorithm, image []byte) []byte {
	b := a.header()
	for piece := range slices.Chunk(image, ChunkSize) {
		h := a.compute(piece)
		b = append(b, h.sum[:]...)
	}
	return b
}

// The digests of "abc" are those in FIPS 180-4 and in the test vectors of other BLAKE3 programs.
func TestChunkHash(t *testing.T) {
	for a, want := range map[ChunkAlgorithm]string{
		ChunkSHA256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
		ChunkBLAKE3: "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
	} {
		h := a.Hash([]byte("abc"))
		if got := hex.EncodeToString(h.sum[:]); got != want {
			t.Errorf("algorithm %d: hash %s, want %s", a, got, want)
		}
		if !h.Matches([]byte("abc")) || h.Matches([]byte("abd")) || (ChunkHash{}).Matches([]byte("abc")) {
			t.Errorf("algorithm %d: Matches is wrong", a)
		}
		for text, want := range map[string]bool{"abc": true, "abd": false} {
			if got, err := h.MatchesReader(iotest.OneByteReader(strings.NewReader(text))); err != nil || got != want {
				t.Errorf("algorithm %d: a reader of %q matches: %v, error %v", a, text, got, err)
			}
		}
		for _, n := range []int64{1, 512, ChunkSize - 1, ChunkSize} {
			if zero := make([]byte, n); a.Hash(zero) != a.compute(zero) || !a.compute(zero).matchesZeros(n) {
				t.Errorf("algorithm %d: the hash of %d zeros is wrong", a, n)
			}
		}
	}
}

// The digest is that of another implementation, for the input of the test vectors of BLAKE3.
func TestBLAKE3OfWholeChunk(t *testing.T) {
	chunk := make([]byte, ChunkSize)
	for i := range chunk {
		chunk[i] = byte(i % 251)
	}
	h := ChunkBLAKE3.Hash(chunk)
	if got, want := hex.EncodeToString(h.sum[:]), "74cb441fd087764ca9c3694da742ebe30cbeb3060a17009ca81825c7a8d10343"; got != want {
		t.Errorf("hash %s, want %s", got, want)
	}
	if matches, err := h.MatchesReader(iotest.HalfReader(bytes.NewReader(chunk))); err != nil || !matches {
		t.Errorf("a reader of the chunk matches: %v, error %v", matches, err)
	}
}

// TestManifestOfEachAlgorithm opens, sends and receives manifests of both algorithms. A verification
// keeps the algorithm.
func TestManifestOfEachAlgorithm(t *testing.T) {
	image := sparseImage(3*ChunkSize + 512)
	for _, a := range algorithms {
		d := newDisk(t)
		readyImage(t, d, image)
		encoded := chunkFileOf(a, image)
		if err := os.WriteFile(imagePath(d, chunksFile), chunkFileOf(a, image), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := d.Update(testID, func(r *Record) { r.ManifestDigest = digest256(encoded) }); err != nil {
			t.Fatal(err)
		}
		check := func(m *Manifest, err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			for n := range m.Chunks() {
				piece := image[n*ChunkSize:][:m.ChunkLength(n)]
				if h, err := m.Hash(n); err != nil || !h.Matches(piece) || h.algorithm != a {
					t.Errorf("algorithm %d: hash of chunk %d is %x, error %v", a, n, h, err)
				}
			}
			got := new(bytes.Buffer)
			if _, err := got.ReadFrom(m.Encoded()); err != nil || !bytes.Equal(got.Bytes(), encoded) || m.Algorithm() != a {
				t.Errorf("algorithm %d: the encoded manifest of algorithm %d has %d bytes, error %v", a, m.Algorithm(), got.Len(), err)
			}
		}
		check(d.Manifest(testID))
		check(received(t, newDisk(t), PartOptions{}, bytes.NewReader(encoded), int64(len(image)), digest256(encoded)))
		c, err := d.Verify(context.Background(), testID, Expected{}, func(int64) {})
		if err != nil || c.ManifestDigest != digest256(encoded) {
			t.Errorf("algorithm %d: after a verification %+v, error %v", a, c, err)
		}
		check(d.Manifest(testID))
	}
}

// TestPartialFileIsHashedAgain continues a partial file with a manifest of another algorithm, after
// some whole chunks, and at the end of the image.
func TestPartialFileIsHashedAgain(t *testing.T) {
	image := sparseImage(3*ChunkSize + 512)
	encoded := chunkFileOf(otherAlgorithm(), image)
	for _, received := range []int64{0, 100, ChunkSize, 2*ChunkSize + 100, int64(len(image))} {
		d := newDisk(t)
		p := openPart(t, d, PartOptions{})
		source := PartSource{ID: "web", Size: int64(len(image))}
		if err := p.Begin(source); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ReadFrom(bytes.NewReader(image[:received])); err != nil {
			t.Fatal(err)
		}
		m, err := p.ReceiveManifest(bytes.NewReader(encoded), int64(len(image)), digest256(encoded))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		stopped, stop := context.WithCancel(t.Context())
		stop()
		if same, err := p.Matches(stopped, m); received >= ChunkSize && (err == nil || same || p.ChunkAlgorithm() != NewChunks) {
			t.Fatalf("stopped after %d bytes: matches %v with algorithm %d, error %v", received, same, p.ChunkAlgorithm(), err)
		}
		if same, err := p.Matches(t.Context(), m); err != nil || !same || p.ChunkAlgorithm() != otherAlgorithm() {
			t.Fatalf("after %d bytes: matches %v with algorithm %d, error %v", received, same, p.ChunkAlgorithm(), err)
		}
		if err := p.Continue(source); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ReadFrom(bytes.NewReader(image[p.Offset():])); err != nil {
			t.Fatal(err)
		}
		c, err := p.Commit(digest512(image))
		if err != nil || c.ManifestDigest != digest256(encoded) {
			t.Errorf("after %d bytes: %+v, error %v", received, c, err)
		}
	}
}
