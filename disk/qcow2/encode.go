package qcow2

import (
	"errors"
	"fmt"
	"io"
)

// What Encode writes is of one kind.
const (
	encodeBits      = 16
	encodeCluster   = 1 << encodeBits
	tableEntries    = encodeCluster / 8
	tableBytes      = tableEntries << encodeBits // of the disk, for each L2 table
	refcountEntries = encodeCluster / 2
)

// Options say how Encode writes an image.
type Options struct {
	Compress bool // with zlib, cluster by cluster, where that makes it smaller
}

// Encoder is a qcow2 file in the making: an io.Reader of it from front to back. Seek
// takes it up anywhere.
type Encoder struct {
	src    Source
	layout layout
	pos    int64

	block       []byte // the piece of metadata, or of packed clusters, that pos is in
	blockOffset int64
	cursor      cursor
	packer      *packer
}

// Encode lays out the qcow2 file of what src holds, whose size is a whole number of
// sectors. The file is the same for the same source, and for the same release of this
// program, as Size then tells.
//
// src is asked for all its ranges here, and with compression for all its bytes, so that
// this takes long; src can end it with an error. It is not closed, and must stay what it
// is as long as the Encoder is read. Memory: a bit for each cluster with data, and with
// compression two bytes.
func Encode(src Source, o Options) (*Encoder, error) {
	size := src.Size()
	if size <= 0 || size%sector != 0 || size > maxVirtualSize {
		return nil, fmt.Errorf("encode qcow2 image: a disk cannot have %d bytes", size)
	}
	tables, err := survey(src)
	if err != nil {
		return nil, fmt.Errorf("encode qcow2 image: %w", err)
	}
	e := &Encoder{src: src, blockOffset: -1}
	if o.Compress {
		e.packer = newPacker(src)
		if err := e.packer.measure(tables); err != nil {
			return nil, fmt.Errorf("encode qcow2 image: %w", err)
		}
	}
	e.layout = newLayout(size, tables)
	return e, nil
}

// Size returns the bytes of the file.
func (e *Encoder) Size() int64 { return e.layout.size }

// Seek sets where the next Read begins, to 0 <= offset <= Size.
func (e *Encoder) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += e.pos
	case io.SeekEnd:
		offset += e.Size()
	}
	if offset < 0 || offset > e.Size() {
		return 0, errors.New("seek in qcow2 image: outside of it")
	}
	e.pos = offset
	return offset, nil
}

// Read reads on. Large reads are passed on to the source as they are, as far as its
// clusters with data lie side by side.
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
	if l := &e.layout; e.pos >= l.plain && e.pos < l.packed {
		return e.readPlain(p)
	}
	if e.blockOffset < 0 || e.pos < e.blockOffset || e.pos >= e.blockOffset+int64(len(e.block)) {
		if err := e.nextBlock(); err != nil {
			e.blockOffset = -1
			return 0, err
		}
	}
	return copy(p, e.block[e.pos-e.blockOffset:]), nil
}

// nextBlock makes the block that pos is in.
func (e *Encoder) nextBlock() error {
	l := &e.layout
	if e.pos >= l.packed {
		return e.nextPacked()
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

// readPlain reads the clusters at pos, as many as lie side by side in the source too.
func (e *Encoder) readPlain(p []byte) (int, error) {
	skip := (e.pos - e.layout.plain) & (encodeCluster - 1)
	c := e.layout.seekPlain(e.cursor, (e.pos-e.layout.plain)>>encodeBits)
	off := c.offset() + skip
	length := encodeCluster - skip
	for length < int64(len(p)) {
		next, ok := e.layout.nextPlain(c)
		if !ok || next.offset() != c.offset()+encodeCluster {
			break
		}
		c = next
		length += encodeCluster
	}
	e.cursor = c
	p = p[:min(length, int64(len(p)))]
	if err := readDisk(e.src, p, off); err != nil {
		return 0, err // what is in p is not of the disk
	}
	return len(p), nil
}

// readDisk fills p from off, with zeros behind the end of the disk.
func readDisk(src Source, p []byte, off int64) error {
	n := max(0, min(int64(len(p)), src.Size()-off))
	clear(p[n:])
	k, err := src.ReadAt(p[:n], off)
	switch {
	case int64(k) == n:
		return nil
	case err == nil || errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read disk at %d: %w", off, err)
}

// Source is a disk of which large parts may be zeros that nobody ever wrote.
//
// It is not for concurrent use.
type Source interface {
	// ReadAt reads what a guest sees, zeros where there is no data. It fills p, or
	// returns io.EOF where the disk ends.
	io.ReaderAt

	// Size returns the bytes of the disk that a guest sees.
	Size() int64

	// NextData returns the next range, from off on, that may hold something else
	// than zeros: off <= start < end <= Size. There are only zeros between off and
	// start. The next range may begin right at end. io.EOF: there is none.
	NextData(off int64) (start, end int64, err error)
}
