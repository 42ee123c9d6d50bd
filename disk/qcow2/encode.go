package qcow2

import (
	"errors"
	"fmt"
	"io"

	"github.com/seed-26586806/backing-image-manager/internal/exactly"
)

// Parameters of the files that Encode writes.
const (
	encodeBits      = 16
	encodeCluster   = 1 << encodeBits
	tableEntries    = encodeCluster / 8
	tableBytes      = tableEntries << encodeBits // bytes of the disk for each L2 table
	refcountEntries = encodeCluster / 2
)

// Options are options of Encode.
type Options struct {
	Compress bool // compress each cluster with zlib if that makes it smaller
}

// Encoder is a sequential io.Reader with Seek that produces a qcow2 file. It is not safe for
// concurrent use.
type Encoder struct {
	src    Source
	layout layout
	pos    int64

	block       []byte // the current block of metadata or compressed clusters, which contains pos
	blockOffset int64
	cursor      cursor
	compressor  *compressor
}

// Encode computes the layout of a qcow2 file with the content of src. The size of src must be a
// multiple of 512. The same release of this program produces the same file for the same content. A
// different file size therefore shows that the content changed.
//
// Encode may take long, because it reads all ranges of src and, with compression, all its bytes. It
// returns the errors of src and does not close src. The content of src must not change while the
// Encoder is used. The memory is one bit for each cluster with data, and with compression two more
// bytes.
func Encode(src Source, o Options) (*Encoder, error) {
	size := src.Size()
	if size <= 0 || size%sector != 0 || size > maxVirtualSize {
		return nil, fmt.Errorf("encode qcow2 image: %d is not a valid disk size", size)
	}
	tables, err := planTables(src)
	if err != nil {
		return nil, fmt.Errorf("encode qcow2 image: %w", err)
	}
	e := &Encoder{src: src, blockOffset: -1}
	if o.Compress {
		e.compressor = newCompressor(src)
		if err := e.compressor.measure(tables); err != nil {
			return nil, fmt.Errorf("encode qcow2 image: %w", err)
		}
	}
	e.layout = newLayout(size, tables)
	return e, nil
}

// Size returns the size of the qcow2 file in bytes.
func (e *Encoder) Size() int64 { return e.layout.size }

// Seek implements io.Seeker for offsets from 0 to Size.
func (e *Encoder) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += e.pos
	case io.SeekEnd:
		offset += e.Size()
	}
	if offset < 0 || offset > e.Size() {
		return 0, errors.New("seek in qcow2 image: offset outside the file")
	}
	e.pos = offset
	return offset, nil
}

// Read implements io.Reader. It reads adjacent clusters of the source in one call.
func (e *Encoder) Read(p []byte) (int, error) {
	n := 0
	for n < len(p) && e.pos < e.Size() {
		k, err := e.readSome(p[n:])
		n += k
		e.pos += int64(k)
		if err != nil {
			return n, fmt.Errorf("encode qcow2 image: %w", err)
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (e *Encoder) readSome(p []byte) (int, error) {
	if l := &e.layout; e.pos >= l.standard && e.pos < l.compressed {
		return e.readStandard(p)
	}
	if e.blockOffset < 0 || e.pos < e.blockOffset || e.pos >= e.blockOffset+int64(len(e.block)) {
		if err := e.nextBlock(); err != nil {
			e.blockOffset = -1
			return 0, err
		}
	}
	return copy(p, e.block[e.pos-e.blockOffset:]), nil
}

// nextBlock produces the block that contains pos.
func (e *Encoder) nextBlock() error {
	l := &e.layout
	if e.pos >= l.compressed {
		return e.nextCompressed()
	}
	if cap(e.block) < encodeCluster {
		e.block = make([]byte, encodeCluster)
	}
	e.block = e.block[:encodeCluster]
	clear(e.block)
	e.blockOffset = e.pos &^ (encodeCluster - 1)
	l.putMetadata(e.block, e.blockOffset>>encodeBits)
	return nil
}

// readStandard reads the standard clusters at pos that are also adjacent in the source.
func (e *Encoder) readStandard(p []byte) (int, error) {
	skip := (e.pos - e.layout.standard) & (encodeCluster - 1)
	c := e.layout.seekStandard(e.cursor, (e.pos-e.layout.standard)>>encodeBits)
	off := c.offset() + skip
	length := encodeCluster - skip
	for length < int64(len(p)) {
		next, ok := e.layout.nextStandard(c)
		if !ok || next.offset() != c.offset()+encodeCluster {
			break
		}
		c = next
		length += encodeCluster
	}
	e.cursor = c
	p = p[:min(length, int64(len(p)))]
	if err := readDisk(e.src, p, off); err != nil {
		return 0, err // p may contain bytes that are not from the disk
	}
	return len(p), nil
}

// readDisk fills p from off, with zeros after the end of the disk.
func readDisk(src Source, p []byte, off int64) error {
	n := max(0, min(int64(len(p)), src.Size()-off))
	clear(p[n:])
	return exactly.ReadAt(src, p[:n], off)
}

// Source is a sparse disk: large parts may be zeros that were never written. It is not safe for
// concurrent use.
type Source interface {
	// ReadAt reads the bytes that a guest sees, which are zeros where there is no data. It fills p, or
	// returns io.EOF at the end of the disk.
	io.ReaderAt

	// Size returns the bytes of the disk that a guest sees.
	Size() int64

	// NextData returns the next range at or after off that may contain bytes other than zeros: off <=
	// start < end <= Size. All bytes between off and start are zeros. The following range may begin at
	// end. io.EOF: there is no such range.
	NextData(off int64) (start, end int64, err error)
}
