package disk

import (
	"errors"
	"fmt"
	"os"
	"unsafe"
)

// NewBuffer returns room for one chunk, aligned as Put wants it.
func NewBuffer() []byte { return alignedBuffer(ChunkSize) }

var errEnded = errors.New("the image has ended with a short chunk")

// ended reports whether a short chunk was handed on, behind which nothing can come.
func (p *Part) ended() bool { return p.current == nil && p.offset%ChunkSize != 0 }

// Put appends buf[:length] as the next chunk, whose sum the caller has checked: it
// is not computed again. Only the last chunk of an image may have less than
// ChunkSize bytes, and ReadFrom must not have left one half full. Put keeps buf, which
// NewBuffer or Put made, and gives back another one, in case of an error too. Its
// errors are those of ReadFrom.
func (p *Part) Put(buf []byte, length int64, sum ChunkSum) ([]byte, error) {
	if len(buf) != ChunkSize || uintptr(unsafe.Pointer(&buf[0]))%directAlign != 0 {
		return buf, errors.New("put chunk: the buffer is not one of NewBuffer")
	}
	c, err := p.next(length)
	if err != nil {
		return buf, err
	}
	c.buf, buf = buf, c.buf
	c.data, c.sum = c.buf[:length], sum
	return buf, p.flush()
}

// PutZeros appends a chunk of zeros. What is said of Put holds for it too.
func (p *Part) PutZeros(length int64) error {
	c, err := p.next(length)
	if err != nil {
		return err
	}
	c.data = zeros[:length]
	return p.flush()
}

// next makes a free chunk the current one, for all of its bytes to be put there.
func (p *Part) next(length int64) (*chunk, error) {
	size := p.Origin().Size
	end := p.offset + length
	switch {
	case length <= 0 || length > ChunkSize:
		return nil, fmt.Errorf("put chunk: it has %d bytes", length)
	case p.current != nil && len(p.current.data) > 0:
		return nil, errors.New("put chunk: the one before it is half full")
	case p.ended():
		return nil, fmt.Errorf("put chunk: %w", errEnded)
	case size >= 0 && (end > size || length < ChunkSize && end < size):
		return nil, fmt.Errorf("put chunk: it ends at %d in an image of %d bytes", end, size)
	case p.options.MaxSize > 0 && end > p.options.MaxSize:
		return nil, fmt.Errorf("%w: at most %d bytes are allowed", ErrTooLarge, p.options.MaxSize)
	}
	if p.current == nil {
		c, err := p.pipeline.get()
		if err != nil {
			return nil, err
		}
		p.current = c
	}
	p.current.n, p.offset = p.offset/ChunkSize, end
	return p.current, nil
}

// Agrees reports whether all that the part holds are chunks of m, as far as they are
// whole. Then the chunk at Offset is the next one to put; otherwise the part has to
// be begun anew.
func (p *Part) Agrees(m *Manifest) (bool, error) {
	size := p.Origin().Size
	if p.offset > m.size || size >= 0 && size != m.size {
		return false, nil
	}
	whole, held := p.offset, 0
	if p.current != nil {
		whole, held = whole-int64(len(p.current.data)), 1
	}
	if !p.ended() {
		whole = whole / ChunkSize * ChunkSize
	} else if whole != m.size {
		return false, nil
	}
	if whole == 0 {
		return true, nil
	}
	if err := p.pipeline.drain(held); err != nil {
		return false, err
	}
	return sameSums(p.chunks.sums(whole), m.sums(whole))
}

// Keep records durably that the whole chunks that the part holds are the beginning
// of what o names, as Agrees has found, and drops what there is of another one. It
// fails as Begin does when there is no room for the rest.
func (p *Part) Keep(o Origin) error {
	if c := p.current; c != nil {
		p.offset -= int64(len(c.data))
		c.data = c.buf[:0]
	}
	err := p.fits(o)
	if errors.Is(err, ErrNoSpace) {
		err = p.room(min(o.Size-p.offset, o.need()-p.Written()))
	}
	if err == nil {
		err = p.disk.Update(p.id, func(r *Record) { r.Origin = &o })
	}
	if err != nil {
		return fmt.Errorf("keep part of %s: %w", p.id, err)
	}
	p.origin = &o
	return nil
}

// removed opens a new file that has its name no more.
func removed(root *os.Root, name string) (*os.File, error) {
	if err := ignoreMissing(root.Remove(name)); err != nil { // a crash left it
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, noSpace(err)
	}
	if err := root.Remove(name); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
