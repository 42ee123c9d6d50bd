package caibx

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Writer writes an index. If the header has the sizes of chunks and the digest algorithm of casync, the index is identical to that
// of "casync make".
type Writer struct {
	w     io.Writer
	sizes Sizes
	items int64
	end   int64
}

// NewWriter writes the header of an index. The Writer writes small pieces: w should have a buffer.
func NewWriter(w io.Writer, h Header) (*Writer, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	flags := uint64(flagsOfWriter)
	if h.Digest == SHA512_256 {
		flags |= flagSHA512
	}
	return &Writer{w: w, sizes: h.Sizes}, put(w, indexSize, indexMagic, flags, h.Min, h.Avg, h.Max, tableLength, tableMagic)
}

// Append writes the next item: the id of a chunk that begins where the previous chunk ends.
func (w *Writer) Append(length int64, id ID) error {
	if length < 1 || uint64(length) > w.sizes.Max {
		panic(fmt.Sprintf("caibx: a chunk of %d bytes in an index of %s", length, w.sizes))
	}
	w.items, w.end = w.items+1, w.end+length
	if err := put(w.w, uint64(w.end)); err != nil {
		return err
	}
	_, err := w.w.Write(id[:])
	return err
}

// Close writes the tail. It does not close the underlying writer.
func (w *Writer) Close() error {
	return put(w.w, 0, 0, indexSize, tableSize(w.items), tailMagic)
}

// tableSize returns the size of a table with n items, in bytes, as its tail has it.
func tableSize(n int64) uint64 { return headerSize - indexSize + uint64(n)*itemSize + tailSize }

// put writes numbers.
func put(w io.Writer, numbers ...uint64) error {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	_, err := w.Write(b)
	return err
}
