package disk

import (
	"errors"
	"fmt"
	"io"
)

// ErrDamaged says that an image is not any more what it was when it became ready.
// Verify settles it.
var ErrDamaged = errors.New("is damaged")

// Checked reads a ready image at any offset, and gives only bytes that are what they
// were when it became ready: each chunk is held against the image's manifest. It is for
// one goroutine.
type Checked struct {
	id       ID
	r        *Reader
	manifest *Manifest
	chunks   [4]checkedChunk // those that were asked for last
	turn     int
}

type checkedChunk struct {
	n    int64
	data []byte // nil: none
	buf  []byte
}

// NewChecked reads the image id by r and holds it against m. Both stay open for as long
// as it is used.
func NewChecked(id ID, r *Reader, m *Manifest) *Checked {
	return &Checked{id: id, r: r, manifest: m}
}

// ReadAt is that of an io.ReaderAt. An error that is ErrDamaged names the chunk.
func (c *Checked) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		if at >= c.manifest.Size() {
			return n, io.EOF
		}
		data, err := c.chunk(at / ChunkSize)
		if err != nil {
			return n, err
		}
		n += copy(p[n:], data[at%ChunkSize:])
	}
	return n, nil
}

func (c *Checked) chunk(n int64) ([]byte, error) {
	for _, had := range c.chunks {
		if had.data != nil && had.n == n {
			return had.data, nil
		}
	}
	next := &c.chunks[c.turn]
	c.turn = (c.turn + 1) % len(c.chunks)
	if next.buf == nil {
		next.buf = NewBuffer()
	}
	next.n, next.data = n, nil
	data := next.buf[:c.manifest.Length(n)]
	if _, err := c.r.ReadAt(data, n*ChunkSize); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read %s: %w", c.id, err)
	}
	want, err := c.manifest.At(n)
	if err != nil {
		return nil, err
	}
	if hashChunk(data, allZero(data)) != want {
		return nil, fmt.Errorf("%s %w at %d", c.id, ErrDamaged, n*ChunkSize)
	}
	next.data = data
	return data, nil
}
