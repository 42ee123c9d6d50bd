package qcow2

import (
	"errors"
	"io"
)

// Image is the disk in a qcow2 file. It is a Source.
type Image struct {
	file      file
	header    *header
	pages     pages
	unpacking unpacking
}

// Open reads the tables of the qcow2 file of size bytes, or refuses the file with a
// *FormatError. r is read at any offset and length, and must stay what it is.
//
// A wrong compressed cluster is found when it is read: that too is a *FormatError.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	f := file{r, size}
	h, err := f.inspect()
	if err != nil {
		return nil, err
	}
	m := &Image{file: f, header: h, pages: pages{file: f}, unpacking: newUnpacking(h)}
	if err := m.checkL2(); err != nil {
		return nil, err
	}
	return m, nil
}

// Size returns the bytes of the disk that a guest sees.
func (m *Image) Size() int64 { return int64(m.header.Size) }

// ReadAt reads the disk. It is not for concurrent use.
func (m *Image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("read qcow2 image: negative offset")
	}
	want := len(p)
	p = p[:max(0, min(int64(want), m.Size()-off))]
	for n := 0; n < len(p); {
		k, err := m.readSome(p[n:], off+int64(n))
		if err != nil {
			return n, err
		}
		n += k
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

// run returns the extent at off, up to limit bytes of it, with all that follows it in
// the file as on the disk.
func (m *Image) run(off, limit int64) (extent, error) {
	e, err := m.lookup(off)
	for err == nil && e.length < limit && e.kind != packed {
		var next extent
		if next, err = m.lookup(off + e.length); next.kind != e.kind || e.kind == plain && next.host != e.host+e.length {
			break
		}
		e.length += next.length
	}
	e.length = min(e.length, limit)
	return e, err
}

// readSome reads what is alike at off.
func (m *Image) readSome(p []byte, off int64) (int, error) {
	e, err := m.run(off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	if e.kind == packed {
		return m.readPacked(p, off, e)
	}
	p = p[:e.length]
	if e.kind == zero {
		clear(p)
		return len(p), nil
	}
	n := max(0, min(e.length, m.file.size-e.host))
	clear(p[n:])
	return len(p), m.file.read(p[:n], e.host)
}

// nextLimit is how many extents, most of them clusters, NextData looks at beyond the
// first with data, so that its cost does not depend on how much follows.
const nextLimit = 4096

// NextData returns the next range from off on that the tables do not call zeros.
func (m *Image) NextData(off int64) (start, end int64, err error) {
	off = max(0, off)
	for off < m.Size() {
		e, err := m.lookup(off)
		if err != nil {
			return 0, 0, err
		}
		if e.kind != zero {
			end, err := m.endOfData(off + e.length)
			return off, end, err
		}
		off += e.length
	}
	return 0, 0, io.EOF
}

func (m *Image) endOfData(off int64) (int64, error) {
	for range nextLimit {
		if off == m.Size() {
			break
		}
		e, err := m.lookup(off)
		if err != nil {
			return 0, err
		}
		if e.kind == zero {
			break
		}
		off += e.length
	}
	return off, nil
}
