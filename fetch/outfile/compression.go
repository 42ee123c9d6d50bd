package outfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// Compression is the compression of a file; empty: none.
type Compression string

// The supported compressions.
const (
	None Compression = ""
	Gzip Compression = "gzip"
	Zstd Compression = "zstd"
)

// ParseCompression parses the name of a compression.
func ParseCompression(s string) (Compression, error) {
	switch p := Compression(s); p {
	case None, Gzip, Zstd:
		return p, nil
	}
	return "", fmt.Errorf("compression %q is not supported: use gzip or zstd", s)
}

// Extension returns the file name extension of the compression.
func (p Compression) Extension() string {
	return map[Compression]string{Gzip: ".gz", Zstd: ".zst"}[p]
}

// compressor is the writer of a compressed file. Reset begins another one.
type compressor interface {
	io.WriteCloser
	Reset(io.Writer)
}

// newCompressor returns a compressor without a destination. Its memory is bounded: the concurrency of zstd does not depend on the
// number of CPUs, and its window has the size of a chunk.
func (p Compression) newCompressor() compressor {
	if p == Gzip {
		return gzip.NewWriter(nil)
	}
	z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(disk.ChunkSize))
	if err != nil {
		panic("outfile: " + err.Error()) // the options are valid
	}
	return z
}

// A compressed chunk begins with a head of this size. The head ends with a mark and the length of the whole compressed chunk:
// 4 bytes, little-endian. With gzip, the head is the header of a member, and the mark is the id and the length of its extra
// field. With zstd, the head is a skippable frame, and the mark is its magic number and length.
var (
	headSize = map[Compression]int{Gzip: 20, Zstd: 12}
	headMark = map[Compression]string{Gzip: "BI\x04\x00", Zstd: "\x5e\x2a\x4d\x18\x04\x00\x00\x00"}
)

const lengthSize = 4

// chunkCompressor compresses each chunk of an image separately (see the package comment). The file is
// a valid compressed file after each chunk.
type chunkCompressor struct {
	to          sink
	compression Compression
	compressor  compressor
	out         bytes.Buffer
	zeros       []byte // a compressed chunk of zeros; nil: not computed yet
}

func newChunkCompressor(to sink, p Compression) *chunkCompressor {
	return &chunkCompressor{to: to, compression: p, compressor: p.newCompressor()}
}

func (p *chunkCompressor) Put(chunk []byte) error {
	packed, err := p.compress(chunk)
	if err != nil {
		return err
	}
	return p.to.Put(packed)
}

func (p *chunkCompressor) PutZeros(length int64) error {
	if length < disk.ChunkSize {
		return p.Put(zeroChunk[:length])
	}
	if p.zeros == nil {
		packed, err := p.compress(zeroChunk[:])
		if err != nil {
			return err
		}
		p.zeros = bytes.Clone(packed)
	}
	return p.to.Put(p.zeros)
}

// compress returns the compressed chunk, until the next call.
func (p *chunkCompressor) compress(chunk []byte) ([]byte, error) {
	p.out.Reset()
	p.compressor.Reset(&p.out)
	mark := headMark[p.compression] + string(make([]byte, lengthSize))
	if z, ok := p.compressor.(*gzip.Writer); ok {
		z.Extra = []byte(mark)
	} else {
		p.out.WriteString(mark)
	}
	_, err := p.compressor.Write(chunk)
	if err = errors.Join(err, p.compressor.Close()); err != nil {
		return nil, err
	}
	packed := p.out.Bytes()
	binary.LittleEndian.PutUint32(packed[headSize[p.compression]-lengthSize:], uint32(len(packed)))
	return packed, nil
}

// maxCompressed is greater than the length of any compressed chunk.
const maxCompressed = disk.ChunkSize + disk.ChunkSize/16

// errForeign means that a chunkCompressor did not write these bytes.
var errForeign = errors.New("not a compressed chunk")

// chunkDecompressor reads chunks from a file of a chunkCompressor. It does not verify them: the
// caller must compare them with a manifest.
type chunkDecompressor struct {
	r      io.Reader
	mark   string
	head   []byte // the beginning of buffer
	buffer []byte
	from   interface {
		io.Reader
		Reset(io.Reader) error
	}
}

func newChunkDecompressor(r io.Reader, p Compression) *chunkDecompressor {
	u := &chunkDecompressor{r: r, mark: headMark[p], buffer: make([]byte, maxCompressed), from: new(gzip.Reader)}
	u.head = u.buffer[:headSize[p]]
	if p == Zstd {
		z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(disk.ChunkSize), zstd.WithDecoderLowmem(true))
		if err != nil {
			panic("outfile: " + err.Error()) // the options are valid
		}
		u.from = z
	}
	return u
}

// next fills the buffer with the next chunk, which must have its length. It returns the compressed length.
func (u *chunkDecompressor) next(chunk []byte) (packed int64, err error) {
	if _, err := io.ReadFull(u.r, u.head); err != nil {
		return 0, err
	}
	mark, length := u.head[:len(u.head)-lengthSize], u.head[len(u.head)-lengthSize:]
	whole := int64(binary.LittleEndian.Uint32(length))
	if !bytes.HasSuffix(mark, []byte(u.mark)) || whole <= int64(len(u.head)) || whole > maxCompressed {
		return 0, errForeign
	}
	if _, err := io.ReadFull(u.r, u.buffer[len(u.head):whole]); err != nil {
		return 0, err
	}
	if err := u.from.Reset(bytes.NewReader(u.buffer[:whole])); err != nil {
		return 0, err
	}
	return whole, exactly.Read(u.from, chunk)
}
