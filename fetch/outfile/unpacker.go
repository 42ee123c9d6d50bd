package outfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/seed-26586806/backing-image-manager/disk"
)

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
