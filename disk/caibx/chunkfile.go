package caibx

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/mikelolasagasti/xz"

	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// packedSuffix is the suffix of packed chunks in a chunk store.
const packedSuffix = ".cacnk"

// PackedPath returns the path of the packed chunk in a chunk store. The packing is not part of the
// name.
func (id ID) PackedPath() string { return id.PlainPath() + packedSuffix }

// PlainPath returns the path of the chunk in a chunk store that does not pack its chunks.
func (id ID) PlainPath() string {
	digits := id.String()
	return digits[:4] + "/" + digits
}

// ErrWrongChunk means that bytes are not those of the chunk.
var ErrWrongChunk = errors.New("these are not the bytes of the chunk")

// Check returns ErrWrongChunk if the bytes are not those of the chunk with this id.
func (d Digest) Check(chunk []byte, id ID) error {
	if got := d.ID(chunk); got != id {
		return fmt.Errorf("%w: the id of the %d bytes is %s", ErrWrongChunk, len(chunk), got)
	}
	return nil
}

// MaxPacked returns the greatest size of a packed chunk of n bytes: data that cannot be packed grows
// by a few bytes. Read at most this many bytes from a store.
func MaxPacked(n int64) int64 { return n + n/64 + 4<<10 }

// Packer packs chunks for a chunk store, as casync does: with zstd, level 3. It is not safe for
// concurrent use.
type Packer struct{ z *zstd.Encoder }

// NewPacker returns a Packer.
func NewPacker() *Packer {
	// The id of the chunk protects the bytes, so a checksum is of no use.
	z, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.EncoderLevelFromZstd(3)), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		panic("caibx: " + err.Error()) // the options are valid
	}
	return &Packer{z}
}

// Pack appends the packed chunk to dst.
func (p *Packer) Pack(dst, chunk []byte) []byte { return p.z.EncodeAll(chunk, dst) }

// maxDictionary limits the memory for xz. It is the dictionary size of level 6, the default of xz.
const maxDictionary = 8 << 20

// Unpacker unpacks chunks of a chunk store. It keeps its buffers, and is not safe for concurrent use.
type Unpacker struct {
	zstd *zstd.Decoder
	gzip gzip.Reader
	xz   *xz.Reader
	in   bytes.Reader
}

// NewUnpacker returns an Unpacker.
func NewUnpacker() *Unpacker {
	// DecodeAll needs no memory for a window, and does not exceed the capacity of its result.
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderMaxWindow(MaxChunk))
	if err != nil {
		panic("caibx: " + err.Error()) // the options are valid
	}
	x, err := xz.NewReader(nil, maxDictionary)
	if err != nil {
		panic("caibx: " + err.Error()) // it has read nothing
	}
	return &Unpacker{zstd: z, xz: x}
}

// Unpack unpacks a chunk of len(chunk) bytes. The first bytes tell whether zstd, gzip or xz has packed
// it. Every error is an ErrWrongChunk; then chunk has undefined bytes.
func (u *Unpacker) Unpack(chunk, packed []byte, d Digest, id ID) error {
	if err := u.unpack(chunk, packed); err != nil {
		return fmt.Errorf("%w: %w", ErrWrongChunk, err)
	}
	return d.Check(chunk, id)
}

func (u *Unpacker) unpack(chunk, packed []byte) error {
	u.in.Reset(packed)
	switch {
	case bytes.HasPrefix(packed, []byte(zstdMagic)):
		got, err := u.zstd.DecodeAll(packed, chunk[:0:len(chunk)])
		if err == nil && len(got) != len(chunk) {
			err = fmt.Errorf("the chunk unpacks to %d bytes, not %d", len(got), len(chunk))
		}
		return err
	case bytes.HasPrefix(packed, []byte(gzipMagic)):
		if err := u.gzip.Reset(&u.in); err != nil {
			return err
		}
		return exactly.Read(&u.gzip, chunk)
	case bytes.HasPrefix(packed, []byte(xzMagic)):
		if err := u.xz.Reset(&u.in); err != nil {
			return err
		}
		return exactly.Read(u.xz, chunk)
	}
	return errors.New("the chunk is not packed by zstd, gzip or xz")
}
