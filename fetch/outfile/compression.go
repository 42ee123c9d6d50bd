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

// chunkCompressor compresses each chunk of an image separately (see the package comment). The file is
// a valid compressed file after each chunk.
type chunkCompressor struct {
	w        io.Writer
	compress func(chunk []byte) ([]byte, error)
	zeros    []byte // a compressed chunk of zeros; nil: not computed yet
}

func newChunkCompressor(w io.Writer, p Compression) *chunkCompressor {
	pack := gzipCompressor()
	if p == Zstd {
		pack = zstdCompressor()
	}
	return &chunkCompressor{w: w, compress: pack}
}

func (p *chunkCompressor) Put(chunk []byte) error {
	packed, err := p.compress(chunk)
	if err == nil {
		_, err = p.w.Write(packed)
	}
	return err
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
	_, err := p.w.Write(p.zeros)
	return err
}

// The header of a gzip member contains the length of the member in its extra field.
const (
	gzipHead   = 20
	gzipLength = 16 // the offset of the length: 4 bytes, little-endian
)

// gzipMark is the id and the length of the extra field.
var gzipMark = []byte{'B', 'I', 4, 0}

func gzipCompressor() func([]byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	return func(chunk []byte) ([]byte, error) {
		out.Reset()
		z.Reset(&out)
		z.Extra = append(bytes.Clone(gzipMark), 0, 0, 0, 0)
		if _, err := z.Write(chunk); err != nil {
			return nil, err
		}
		if err := z.Close(); err != nil {
			return nil, err
		}
		member := out.Bytes()
		binary.LittleEndian.PutUint32(member[gzipLength:], uint32(len(member)))
		return member, nil
	}
}

// zstdHead is the size of the skippable frame that contains the length of the following frame.
const zstdHead = 12

// zstdMark is the magic number and the length of the skippable frame.
var zstdMark = []byte{0x5e, 0x2a, 0x4d, 0x18, 4, 0, 0, 0}

func zstdCompressor() func([]byte) ([]byte, error) {
	z := newZstdEncoder(nil)
	var out []byte
	return func(chunk []byte) ([]byte, error) {
		out = append(append(out[:0], zstdMark...), 0, 0, 0, 0)
		out = z.EncodeAll(chunk, out)
		binary.LittleEndian.PutUint32(out[len(zstdMark):], uint32(len(out)-zstdHead))
		return out, nil
	}
}

// maxCompressed is greater than the length of any compressed chunk.
const maxCompressed = disk.ChunkSize + disk.ChunkSize/16

// errForeign means that a chunkCompressor did not write these bytes.
var errForeign = errors.New("not a compressed chunk")

// chunkDecompressor reads chunks from a file of a chunkCompressor. It does not verify them: the
// caller must compare them with a manifest.
type chunkDecompressor struct {
	r          io.Reader
	head       int
	length     func(head []byte) (whole int64, ok bool) // returns the length of the chunk with this header
	decompress func(packed, into []byte) ([]byte, error)
	buffer     []byte
}

func newChunkDecompressor(r io.Reader, p Compression) *chunkDecompressor {
	u := &chunkDecompressor{r: r, buffer: make([]byte, maxCompressed)}
	if p == Zstd {
		u.head, u.length, u.decompress = zstdHead, zstdFrame, zstdDecompressor()
	} else {
		u.head, u.length, u.decompress = gzipHead, gzipMember, gzipDecompressor()
	}
	return u
}

// next decompresses the next chunk into the buffer. It also returns the compressed length.
func (u *chunkDecompressor) next(into []byte) (chunk []byte, packed int64, err error) {
	if _, err := io.ReadFull(u.r, u.buffer[:u.head]); err != nil {
		return nil, 0, err
	}
	whole, ok := u.length(u.buffer[:u.head])
	if !ok || whole <= int64(u.head) || whole > maxCompressed {
		return nil, 0, errForeign
	}
	if _, err := io.ReadFull(u.r, u.buffer[u.head:whole]); err != nil {
		return nil, 0, err
	}
	chunk, err = u.decompress(u.buffer[:whole], into)
	return chunk, whole, err
}

func gzipMember(head []byte) (int64, bool) {
	const extra = 4 // the only supported flag: no name, no comment
	ok := head[3] == extra && head[10] == 8 && head[11] == 0 && bytes.HasPrefix(head[12:], gzipMark)
	return int64(binary.LittleEndian.Uint32(head[gzipLength:])), ok
}

func gzipDecompressor() func(packed, into []byte) ([]byte, error) {
	z := new(gzip.Reader)
	return func(packed, into []byte) ([]byte, error) {
		from := bytes.NewReader(packed)
		if err := z.Reset(from); err != nil {
			return nil, err
		}
		z.Multistream(false)
		n, err := readAllInto(z, into)
		if err != nil {
			return nil, err
		}
		if from.Len() > 0 {
			return nil, errForeign
		}
		return into[:n], nil
	}
}

// readAllInto reads r completely. The bytes must fit into the buffer.
func readAllInto(r io.Reader, into []byte) (n int, err error) {
	for {
		m, err := r.Read(into[n:min(n+32<<10, len(into))])
		n += m
		switch {
		case err == io.EOF:
			return n, nil
		case err != nil:
			return n, err
		case m == 0 && n == len(into):
			if m, err = r.Read(make([]byte, 1)); m > 0 || err != io.EOF {
				return n, errForeign
			}
			return n, nil
		}
	}
}

func zstdFrame(head []byte) (int64, bool) {
	return zstdHead + int64(binary.LittleEndian.Uint32(head[len(zstdMark):])), bytes.HasPrefix(head, zstdMark)
}

func zstdDecompressor() func(packed, into []byte) ([]byte, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(disk.ChunkSize), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic("outfile: " + err.Error()) // the options are valid
	}
	return func(packed, into []byte) ([]byte, error) {
		chunk, err := z.DecodeAll(packed[zstdHead:], into[:0])
		if err == nil && len(chunk) > len(into) {
			err = errForeign
		}
		return chunk, err
	}
}
