package backup

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/pierrec/lz4/v4"

	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// Compression is the format of block files.
type Compression string

// The compressions of Longhorn. Longhorn's default is LZ4.
const (
	None Compression = "none"
	LZ4  Compression = "lz4"
	Gzip Compression = "gzip"
)

// parseCompression parses a declared compression. The empty string is LZ4.
func parseCompression(s string) (Compression, error) {
	switch c := Compression(s); c {
	case "":
		return LZ4, nil
	case None, LZ4, Gzip:
		return c, nil
	}
	return "", fmt.Errorf("compression %.40q is not one of lz4, gzip and none", s)
}

// parseCfgCompression parses the compression in a cfg. The empty string is Gzip, which old versions
// of Longhorn always used.
func parseCfgCompression(s string) (Compression, error) {
	if s == "" {
		return Gzip, nil
	}
	return parseCompression(s)
}

// maxBlockFile is the maximum size of a block file. Data that cannot be compressed grows by a few
// bytes.
const maxBlockFile = blockSize + 64<<10

// decoder decompresses block files. It reuses its buffers.
type decoder struct {
	lz4  *lz4.Reader
	gzip gzip.Reader
	in   bytes.Reader
}

func newDecoder() *decoder { return &decoder{lz4: lz4.NewReader(nil)} }

var errWrongBytes = errors.New("it does not contain the bytes of the block")

// decode decompresses the block with this id into dst. It detects the format by the magic number of the
// file, because another backup with another compression may have stored the block. An uncompressed block
// may also begin with a magic number: then the id decides.
func (d *decoder) decode(dst, stored []byte, id blockID) error {
	err := d.unpack(dst, stored)
	if err == nil && blockIDOf(dst) == id {
		return nil
	}
	if len(stored) == len(dst) && blockIDOf(stored) == id {
		copy(dst, stored)
		return nil
	}
	return cmp.Or(err, errWrongBytes)
}

// unpack decompresses a file with a known magic number into dst.
func (d *decoder) unpack(dst, stored []byte) (err error) {
	d.in.Reset(stored)
	var r io.Reader
	switch {
	case bytes.HasPrefix(stored, []byte{0x04, 0x22, 0x4d, 0x18}):
		d.lz4.Reset(&d.in)
		r = d.lz4
	case bytes.HasPrefix(stored, []byte{0x1f, 0x8b}):
		err = d.gzip.Reset(&d.in)
		r = &d.gzip
	default:
		return errWrongBytes
	}
	if err == nil {
		err = exactly.Read(r, dst)
	}
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	return nil
}

// encoder compresses blocks. It reuses its buffers.
type encoder struct {
	packer interface {
		io.WriteCloser
		Reset(io.Writer)
	}
}

func newEncoder(c Compression) *encoder {
	switch c {
	case LZ4:
		w := lz4.NewWriter(nil)
		if err := w.Apply(lz4.ConcurrencyOption(1)); err != nil {
			panic("backup: " + err.Error()) // the option is valid
		}
		return &encoder{w}
	case Gzip:
		return &encoder{gzip.NewWriter(nil)}
	}
	return &encoder{}
}

// encode returns the content of the block file. The result may use the memory of room.
func (e *encoder) encode(block []byte, room *bytes.Buffer) ([]byte, error) {
	if e.packer == nil {
		return block, nil
	}
	room.Reset()
	e.packer.Reset(room)
	if _, err := e.packer.Write(block); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	if err := e.packer.Close(); err != nil {
		return nil, fmt.Errorf("pack: %w", err)
	}
	return room.Bytes(), nil
}
