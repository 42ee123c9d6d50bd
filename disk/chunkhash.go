package disk

import (
	"bytes"
	"crypto/sha256"
	"hash"
	"io"
	"sync"

	"golang.org/x/sys/cpu"
	"lukechampine.com/blake3"
	"lukechampine.com/blake3/guts"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// ChunkAlgorithm is a hash function for chunks. Its value is in the header of a chunk file.
type ChunkAlgorithm uint32

// The algorithms of chunk hashes.
const (
	ChunkSHA256 ChunkAlgorithm = 1
	ChunkBLAKE3 ChunkAlgorithm = 2
)

// NewChunks is the algorithm of new manifests: the faster one on this processor. SHA-256 is faster on
// arm64 with instructions for SHA-256, where BLAKE3 has no assembly. BLAKE3 is faster everywhere else.
// Copies from peers have the algorithm of the peers' manifest.
var NewChunks = fasterChunkAlgorithm()

func fasterChunkAlgorithm() ChunkAlgorithm {
	if cpu.ARM64.HasSHA2 {
		return ChunkSHA256
	}
	return ChunkBLAKE3
}

// ChunkHashSize is the length of a chunk hash in bytes.
const ChunkHashSize = model.ChunkHashSize

// ChunkHash is the hash of one chunk. The last chunk of an image may be short; its hash covers only the
// bytes in the file. The zero value means "not known".
type ChunkHash struct {
	algorithm ChunkAlgorithm
	sum       [ChunkHashSize]byte
}

// Hash returns the hash of a chunk of at most ChunkSize bytes.
func (a ChunkAlgorithm) Hash(chunk []byte) ChunkHash { return a.hash(chunk, allZero(chunk)) }

var zeros [ChunkSize]byte

func allZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// hash returns the hash of a chunk. zero is true if all bytes are zero.
func (a ChunkAlgorithm) hash(chunk []byte, zero bool) ChunkHash {
	if zero && len(chunk) == ChunkSize {
		return hashesOfZeros()[a]
	}
	return a.compute(chunk)
}

func (a ChunkAlgorithm) compute(chunk []byte) ChunkHash {
	if a == ChunkSHA256 {
		return ChunkHash{a, sha256.Sum256(chunk)}
	}
	if len(chunk) == ChunkSize {
		return ChunkHash{a, wholeBLAKE3(chunk)}
	}
	return ChunkHash{a, blake3.Sum256(chunk)}
}

// wholeBLAKE3 computes blake3.Sum256 of a chunk of ChunkSize bytes. Sum256 itself uses 64 goroutines, which takes up to
// twice the processor time. This is of no use here: callers hash a chunk while they read or write others.
func wholeBLAKE3(chunk []byte) [ChunkHashSize]byte {
	const piece = guts.MaxSIMD * guts.ChunkSize
	var values [ChunkSize / piece][8]uint32 // of the subtrees, from left to right
	for i := range values {
		node := guts.CompressBuffer((*[piece]byte)(chunk[i*piece:]), piece, &guts.IV, uint64(i*guts.MaxSIMD), 0)
		values[i] = guts.ChainingValue(node)
	}
	for n := len(values) / 2; n > 1; n /= 2 {
		for i := range n {
			values[i] = guts.ChainingValue(guts.ParentNode(values[2*i], values[2*i+1], &guts.IV, 0))
		}
	}
	root := guts.ParentNode(values[0], values[1], &guts.IV, guts.FlagRoot)
	sum := guts.WordsToBytes(guts.CompressNode(root))
	return [ChunkHashSize]byte(sum[:ChunkHashSize])
}

// hashesOfZeros returns the hash of a whole chunk of zeros for each algorithm.
var hashesOfZeros = sync.OnceValue(func() [ChunkBLAKE3 + 1]ChunkHash {
	return [...]ChunkHash{ChunkSHA256: ChunkSHA256.compute(zeros[:]), ChunkBLAKE3: ChunkBLAKE3.compute(zeros[:])}
})

// newHash returns a hash of the algorithm for a chunk that is read in pieces.
func (a ChunkAlgorithm) newHash() hash.Hash {
	if a == ChunkSHA256 {
		return sha256.New()
	}
	return blake3.New(ChunkHashSize, nil)
}

// Matches reports whether h is the hash of the chunk. The zero ChunkHash matches nothing.
func (h ChunkHash) Matches(chunk []byte) bool {
	return h.algorithm != 0 && h == h.algorithm.Hash(chunk)
}

// MatchesReader reports whether h is the hash of the chunk that r returns, up to the end of r.
func (h ChunkHash) MatchesReader(r io.Reader) (bool, error) {
	if h.algorithm == 0 {
		return false, nil
	}
	got := h.algorithm.newHash()
	if _, err := io.Copy(got, r); err != nil {
		return false, err
	}
	return bytes.Equal(got.Sum(nil), h.sum[:]), nil
}

// matchesZeros reports whether h is the hash of length zeros.
func (h ChunkHash) matchesZeros(length int64) bool {
	return h.algorithm != 0 && h == h.algorithm.hash(zeros[:length], true)
}

// ManifestHash computes the digest of a chunk manifest from the chunks of the image.
type ManifestHash struct {
	algorithm ChunkAlgorithm
	hash      hash.Hash
}

// NewManifestHash returns the ManifestHash of a manifest with hashes of the algorithm a.
func NewManifestHash(a ChunkAlgorithm) ManifestHash {
	m := ManifestHash{a, ident.SHA256.New()}
	m.hash.Write(a.header())
	return m
}

// AddChunk adds the next chunk.
func (m ManifestHash) AddChunk(chunk []byte) { m.add(m.algorithm.Hash(chunk)) }

func (m ManifestHash) add(h ChunkHash) { m.hash.Write(h.sum[:]) }

// Digest returns the digest of the manifest of all chunks that were added.
func (m ManifestHash) Digest() ident.Digest { return ident.SHA256.Digest(m.hash) }
