package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ChunkSize is the unit that image bytes are checked, resumed and repaired in.
const ChunkSize = 1 << 20

// ChunkSum is the SHA-256 of one chunk, of the bytes that the file has in it: the
// last one of an image may be short. The zero value stands for one that is not known.
type ChunkSum [sha256.Size]byte

// backing.chunks is a header and the hash of each chunk in order. While a part
// is written it is its journal, afterwards the manifest of the image.
const chunkHeaderSize = 16

var chunkMagic = [8]byte{'B', 'I', 'M', 'C', 'H', 'U', 'N', 'K'}

func chunkHeader() []byte {
	h := append([]byte(nil), chunkMagic[:]...)
	h = binary.BigEndian.AppendUint32(h, 1) // version
	return binary.BigEndian.AppendUint32(h, ChunkSize)
}

// chunkCount returns how many hashes a chunk file of so many bytes holds.
func chunkCount(fileSize int64) int64 {
	return max(0, fileSize-chunkHeaderSize) / sha256.Size
}

// chunksOf returns how many chunks an image of so many bytes has.
func chunksOf(size int64) int64 { return (size-1)/ChunkSize + 1 }

// chunkFile is an open backing.chunks. Not safe for concurrent use.
type chunkFile struct{ f *os.File }

// openChunks opens a chunk file, and empties one that cannot be read: unknown
// chunks are fetched again, which is always right.
func openChunks(root *os.Root, name string) (chunkFile, error) {
	f, err := openImage(root, name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return chunkFile{}, err
	}
	c := chunkFile{f}
	header := make([]byte, chunkHeaderSize)
	_, err = f.ReadAt(header, 0)
	if err == nil && bytes.Equal(header, chunkHeader()) {
		return c, nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.Close()
		return chunkFile{}, err
	}
	if err := c.reset(); err != nil {
		f.Close()
		return chunkFile{}, err
	}
	return c, nil
}

// reset forgets all hashes, durably: none of them may vouch for the bytes that
// come next.
func (c chunkFile) reset() error {
	if err := c.f.Truncate(0); err != nil {
		return err
	}
	if _, err := c.f.WriteAt(chunkHeader(), 0); err != nil {
		return noSpace(err)
	}
	return c.f.Sync()
}

func (c chunkFile) set(n int64, h ChunkSum) error {
	if _, err := c.f.WriteAt(h[:], chunkHeaderSize+n*sha256.Size); err != nil {
		return fmt.Errorf("write %s: %w", chunksFile, noSpace(err))
	}
	return nil
}

// at returns the hash of chunk n, or the zero value.
func (c chunkFile) at(n int64) ChunkSum {
	var h ChunkSum
	if _, err := c.f.ReadAt(h[:], chunkHeaderSize+n*sha256.Size); err != nil {
		return ChunkSum{}
	}
	return h
}

// sums returns a reader of the hashes of the first so many bytes.
func (c chunkFile) sums(size int64) *io.SectionReader {
	return io.NewSectionReader(c.f, chunkHeaderSize, chunksOf(size)*sha256.Size)
}

// truncate keeps the first n hashes.
func (c chunkFile) truncate(n int64) error {
	return c.f.Truncate(chunkHeaderSize + n*sha256.Size)
}

var zeros [ChunkSize]byte

func allZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// SumChunk returns the sum of a chunk with these bytes, at most ChunkSize.
func SumChunk(data []byte) ChunkSum { return hashChunk(data, allZero(data)) }

var hashOfZeroChunk = sync.OnceValue(func() ChunkSum { return sha256.Sum256(zeros[:]) })

func hashChunk(b []byte, zero bool) ChunkSum {
	if zero && len(b) == ChunkSize {
		return hashOfZeroChunk()
	}
	return sha256.Sum256(b)
}
