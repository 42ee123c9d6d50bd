package outfile

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/klauspost/compress/gzip"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// packer packs the chunks of an image one by one, see the package comment. It has no
// end: what was written is a whole file after each chunk.
type packer struct {
	w     io.Writer
	pack  func(chunk []byte) ([]byte, error)
	zeros []byte // a whole chunk of zeros, packed; nil: not known yet
}

func newPacker(w io.Writer, p Packing) *packer {
	pack := newGzip()
	if p == Zstd {
		pack = newZstd()
	}
	return &packer{w: w, pack: pack}
}

func (p *packer) Put(chunk []byte) error {
	packed, err := p.pack(chunk)
	if err == nil {
		_, err = p.w.Write(packed)
	}
	return err
}

func (p *packer) PutZeros(length int64) error {
	if length < disk.ChunkSize {
		return p.Put(zeroChunk[:length])
	}
	if p.zeros == nil {
		packed, err := p.pack(zeroChunk[:])
		if err != nil {
			return err
		}
		p.zeros = bytes.Clone(packed)
	}
	_, err := p.w.Write(p.zeros)
	return err
}

// The head of a gzip member with the length of the whole in its extra field.
const (
	gzipHead   = 20
	gzipLength = 16 // where it is, 4 bytes, little-endian
)

// gzipMark is the id and the length of the extra field.
var gzipMark = []byte{'B', 'I', 4, 0}

func newGzip() func([]byte) ([]byte, error) {
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

// The skippable frame with the length of the next one.
const zstdHead = 12

// zstdMark is the magic number and the length of the skippable frame.
var zstdMark = []byte{0x5e, 0x2a, 0x4d, 0x18, 4, 0, 0, 0}

func newZstd() func([]byte) ([]byte, error) {
	z := zstdTo(nil)
	var out []byte
	return func(chunk []byte) ([]byte, error) {
		out = append(append(out[:0], zstdMark...), 0, 0, 0, 0)
		out = z.EncodeAll(chunk, out)
		binary.LittleEndian.PutUint32(out[len(zstdMark):], uint32(len(out)-zstdHead))
		return out, nil
	}
}
