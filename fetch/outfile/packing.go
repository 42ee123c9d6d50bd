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

// Packing is how a file is packed; "" is not at all.
type Packing string

// The packings that there are.
const (
	Plain Packing = ""
	Gzip  Packing = "gzip"
	Zstd  Packing = "zstd"
)

// ParsePacking reads the name of a packing.
func ParsePacking(s string) (Packing, error) {
	switch p := Packing(s); p {
	case Plain, Gzip, Zstd:
		return p, nil
	}
	return "", fmt.Errorf("packing %q is not known: use gzip or zstd", s)
}

// Extension is what the names of files end in that are packed so.
func (p Packing) Extension() string {
	return map[Packing]string{Gzip: ".gz", Zstd: ".zst"}[p]
}

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

// mostPacked is more than any chunk has when it is packed.
const mostPacked = disk.ChunkSize + disk.ChunkSize/16

// errNotOurs says that bytes are no chunk that a packer has packed.
var errNotOurs = errors.New("not a packed chunk")

// unpacker reads back what a packer wrote. What it returns is any bytes: whether they
// are right, only a manifest can tell.
type unpacker struct {
	r      io.Reader
	head   int
	length func(head []byte) (whole int64, ok bool) // of what begins with head
	unpack func(packed, into []byte) ([]byte, error)
	packed []byte
}

func newUnpacker(r io.Reader, p Packing) *unpacker {
	u := &unpacker{r: r, packed: make([]byte, mostPacked)}
	if p == Zstd {
		u.head, u.length, u.unpack = zstdHead, zstdFrame, unzstd()
	} else {
		u.head, u.length, u.unpack = gzipHead, gzipMember, gunzip()
	}
	return u
}

// next unpacks the next chunk into the room that into has, and returns how long it was
// while it was packed.
func (u *unpacker) next(into []byte) (chunk []byte, packed int64, err error) {
	if _, err := io.ReadFull(u.r, u.packed[:u.head]); err != nil {
		return nil, 0, err
	}
	whole, ok := u.length(u.packed[:u.head])
	if !ok || whole <= int64(u.head) || whole > mostPacked {
		return nil, 0, errNotOurs
	}
	if _, err := io.ReadFull(u.r, u.packed[u.head:whole]); err != nil {
		return nil, 0, err
	}
	chunk, err = u.unpack(u.packed[:whole], into)
	return chunk, whole, err
}

func gzipMember(head []byte) (int64, bool) {
	const extra = 4 // the only flag: no name, no comment
	ok := head[3] == extra && head[10] == 8 && head[11] == 0 && bytes.HasPrefix(head[12:], gzipMark)
	return int64(binary.LittleEndian.Uint32(head[gzipLength:])), ok
}

func gunzip() func(packed, into []byte) ([]byte, error) {
	z := new(gzip.Reader)
	return func(packed, into []byte) ([]byte, error) {
		from := bytes.NewReader(packed)
		if err := z.Reset(from); err != nil {
			return nil, err
		}
		z.Multistream(false)
		n, err := readWhole(z, into)
		if err != nil {
			return nil, err
		}
		if from.Len() > 0 {
			return nil, errNotOurs
		}
		return into[:n], nil
	}
}

// readWhole reads r to its end, which has to come within the room of into.
func readWhole(r io.Reader, into []byte) (n int, err error) {
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
				return n, errNotOurs
			}
			return n, nil
		}
	}
}

func zstdFrame(head []byte) (int64, bool) {
	return zstdHead + int64(binary.LittleEndian.Uint32(head[len(zstdMark):])), bytes.HasPrefix(head, zstdMark)
}

func unzstd() func(packed, into []byte) ([]byte, error) {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(disk.ChunkSize), zstd.WithDecoderLowmem(true))
	if err != nil {
		panic("outfile: " + err.Error()) // the options are right
	}
	return func(packed, into []byte) ([]byte, error) {
		chunk, err := z.DecodeAll(packed[zstdHead:], into[:0])
		if err == nil && len(chunk) > len(into) {
			err = errNotOurs
		}
		return chunk, err
	}
}
