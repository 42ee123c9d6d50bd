package xz

import (
	"encoding/binary"
	"io"
)

// window contains the latest unpacked bytes, which are the dictionary.
type window struct {
	buf        []byte
	start, pos int // buf[start:pos] are the bytes since the dictionary was reset, or the latest of them
	origin     int // where the dictionary was reset; negative if buf no longer has that place
	dictionary int // number of bytes that a match may go back
	limit      int // maximum length of buf
}

const (
	// slack is a number of bytes at the end of the buffer that copyMatch may overwrite.
	slack = 8
	// maxChunk is the maximum number of unpacked bytes of a chunk of LZMA2.
	maxChunk = 2 << 20
)

// init empties the window and keeps its buffer. The buffer grows until it contains the dictionary and
// about as many other bytes, so that reserve rarely moves the dictionary.
func (w *window) init(dictionary int) {
	*w = window{buf: w.buf, dictionary: dictionary, limit: dictionary + max(maxChunk, min(dictionary, 32<<20)) + slack}
}

// reserve makes room for n bytes, at most maxChunk. If the buffer has its maximum length, it forgets the
// bytes before the dictionary.
func (w *window) reserve(n int) {
	if w.pos+n+slack > w.limit {
		keep := min(w.pos-w.start, w.dictionary)
		forget := w.pos - keep
		copy(w.buf, w.buf[forget:w.pos])
		w.start, w.pos, w.origin = 0, keep, w.origin-forget
	}
	if need := w.pos + n + slack; need > len(w.buf) {
		buf := make([]byte, min(max(need, 2*len(w.buf)), w.limit))
		copy(buf, w.buf[:w.pos])
		w.buf = buf
	}
}

// reset forgets all bytes.
func (w *window) reset() { w.start, w.origin = w.pos, w.pos }

// lzma2 decodes a sequence of chunks.
type lzma2 struct {
	in *input
	window
	lzma
	needDictionary, needProperties bool
}

// init starts a new sequence of chunks.
func (d *lzma2) init(in *input, dictionary int) {
	d.in, d.needDictionary, d.needProperties = in, true, true
	d.window.init(dictionary)
}

// next returns the unpacked bytes of the next chunk, at most max. They are valid until the next call.
// At the end it returns io.EOF.
func (d *lzma2) next(max int64) ([]byte, error) {
	var header [5]byte
	if err := d.in.read(header[:1]); err != nil {
		return nil, err
	}
	control := header[0]
	switch {
	case control == 0:
		return nil, io.EOF
	case control >= 0xe0 || control == 1:
		d.needDictionary, d.needProperties = false, true
		d.window.reset()
	case d.needDictionary || control > 2 && control < 0x80:
		return nil, corrupt("the header of a chunk is invalid")
	}
	if control < 0x80 {
		return d.stored(max)
	}
	if err := d.in.read(header[1:]); err != nil {
		return nil, err
	}
	n := int(control&0x1f)<<16 + int(binary.BigEndian.Uint16(header[1:])) + 1
	size := int(binary.BigEndian.Uint16(header[3:])) + 1
	if control >= 0xc0 {
		var properties [1]byte
		if err := d.in.read(properties[:]); err != nil {
			return nil, err
		}
		if !d.setProperties(properties[0]) {
			return nil, corrupt("the properties of LZMA are invalid")
		}
		d.needProperties = false
	}
	if d.needProperties {
		return nil, corrupt("a chunk has no properties of LZMA")
	}
	if control >= 0xa0 {
		d.lzma.reset()
	}
	if int64(n) > max {
		return nil, errBlockSize
	}
	if err := d.in.read(d.compressed[:size]); err != nil {
		return nil, err
	}
	d.reserve(n)
	if !d.decode(&d.window, size, n) {
		return nil, corrupt("the compressed data is invalid")
	}
	return d.buf[d.pos-n : d.pos], nil
}

// stored returns the bytes of a chunk that is not compressed.
func (d *lzma2) stored(max int64) ([]byte, error) {
	var size [2]byte
	if err := d.in.read(size[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(size[:])) + 1
	if int64(n) > max {
		return nil, errBlockSize
	}
	d.reserve(n)
	if err := d.in.read(d.buf[d.pos : d.pos+n]); err != nil {
		return nil, err
	}
	d.pos += n
	return d.buf[d.pos-n : d.pos], nil
}
