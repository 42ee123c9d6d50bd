package caibx

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"fmt"
	"hash"
)

// The sizes of the parts of an index, in bytes.
const (
	indexSize  = 48                    // the header of the index
	headerSize = indexSize + 16        // with the header of the table
	itemSize   = 40                    // one item
	tailSize   = itemSize              // as an item: only the end of the file shows which of the two it is
	minSize    = headerSize + tailSize // an index without items
)

// The magic numbers of casync.
const (
	indexMagic = 0x96824d9c7b129ff9
	tableMagic = 0xe75b9e112f17417d
	tailMagic  = 0x4b4f050e5549ecd1
)

// The magic numbers of packed files.
const (
	gzipMagic = "\x1f\x8b"
	zstdMagic = "\x28\xb5\x2f\xfd"
	xzMagic   = "\xfd7zXZ\x00"
)

// tableLength is the size of every table according to its header.
const tableLength = 1<<64 - 1

// The feature flags. casync writes flagNoDump and flagNoFile into every index of a file.
const (
	flagNoDump    = 0x8000000000000000
	flagSHA512    = 0x2000000000000000 // the ids are SHA-512/256; without it: SHA-256
	flagNoFile    = 0x1000000000000000
	archiveFlags  = 0x00000001ffffffff // describe the files of an archive
	knownFlags    = 0xf000000000000000 | archiveFlags
	flagsOfWriter = flagNoDump | flagNoFile
)

// MaxChunk is the greatest size of a chunk that casync and this package accept, in bytes.
const MaxChunk = 128 << 20

// FormatError is the reason why a file is not accepted as an index. It is final until the file changes.
type FormatError struct{ Reason string }

func (e *FormatError) Error() string { return "not a caibx index: " + e.Reason }

func refuse(reason string, args ...any) error {
	return &FormatError{Reason: fmt.Sprintf(reason, args...)}
}

// Header is the header of an index.
type Header struct {
	Sizes
	Digest Digest
}

// Sizes are the sizes of the chunks of an index, in bytes. The last chunk of a file may be shorter
// than Min. If all three sizes are equal, the chunks are blocks of this size. If not, they are
// content-defined chunks.
type Sizes struct{ Min, Avg, Max uint64 }

// DefaultSizes are the default sizes of casync and desync.
var DefaultSizes = SizesOf(64 << 10)

// SizesOf returns the sizes that casync uses for an average size.
func SizesOf(avg uint64) Sizes { return Sizes{avg / 4, avg, avg * 4} }

// Blocks returns the sizes for blocks of a size.
func Blocks(size uint64) Sizes { return Sizes{size, size, size} }

// IsBlocks reports whether the chunks are blocks.
func (s Sizes) IsBlocks() bool { return s.Min == s.Avg && s.Avg == s.Max }

// String returns the sizes in the form MIN:AVG:MAX of casync.
func (s Sizes) String() string { return fmt.Sprintf("%d:%d:%d", s.Min, s.Avg, s.Max) }

// MarshalText returns the String.
func (s Sizes) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// check returns an error if no index may have these sizes.
func (s Sizes) check() error {
	if s.Min < 1 || s.Min > s.Avg || s.Avg > s.Max || s.Max > MaxChunk {
		return fmt.Errorf("the sizes of chunks %s are not 1 <= min <= avg <= max <= %d", s, MaxChunk)
	}
	return nil
}

// Item is one chunk of a file.
type Item struct {
	Offset, Length int64 // in the file, in bytes
	ID             ID
}

// End returns the offset of the first byte after the chunk.
func (i Item) End() int64 { return i.Offset + i.Length }

// ID is the digest of the bytes of a chunk.
type ID [32]byte

// String returns 64 hex digits.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// Digest is the hash function of the ids of an index.
type Digest uint8

// The hash functions of casync and desync. The default of both is SHA512_256, which is not the first
// half of a SHA-512.
const (
	SHA512_256 Digest = iota
	SHA256
)

// New returns a new hash. Its sum has the size of an ID.
func (d Digest) New() hash.Hash {
	if d == SHA256 {
		return sha256.New()
	}
	return sha512.New512_256()
}

// ID returns the id of a chunk with these bytes.
func (d Digest) ID(chunk []byte) ID {
	if d == SHA256 {
		return sha256.Sum256(chunk)
	}
	return sha512.Sum512_256(chunk)
}

// ZeroID returns the id of a chunk of n zeros. Such a chunk is a hole: it needs no transfer.
func (d Digest) ZeroID(n int64) (id ID) {
	h := d.New()
	for n > 0 {
		k := min(n, int64(len(zeros)))
		h.Write(zeros[:k])
		n -= k
	}
	h.Sum(id[:0])
	return id
}

var zeros [64 << 10]byte
