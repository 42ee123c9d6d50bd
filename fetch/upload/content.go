package upload

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

const (
	pieceSize = maxChecked // so that the checksum of each piece can be verified
	minHole   = 1 << 20    // shorter holes are sent as zeros
	maxZeros  = 1 << 30    // zeros per request, because the daemon hashes them
	// keptBytes is the number of bytes of a pipe that are kept in memory. The daemon loses more bytes
	// only after a power failure.
	keptBytes = 4 * pieceSize
)

// piece is the part of a file that one request sends: bytes, or zeros.
type piece struct {
	at    int64
	data  []byte
	zeros int64
}

func (p piece) end() int64 { return p.at + int64(len(p.data)) + p.zeros }

// Content is the content of an upload: a File or a Pipe.
type Content interface {
	// length returns the number of bytes; -1: unknown until the end.
	length() int64
	// fingerprint identifies the file.
	fingerprint() string
	// piece returns the next bytes at an offset, or io.EOF at the end.
	piece(at int64) (piece, error)
	// check returns an error if the content changed while it was sent.
	check() error
}

// ContentError means that the content cannot be read. The daemon is not its cause.
type ContentError struct{ Err error }

func (e *ContentError) Error() string { return fmt.Sprintf("read the file to upload: %v", e.Err) }

func (e *ContentError) Unwrap() error { return e.Err }

// File is a file or a block device.
type File struct {
	f    *os.File
	size int64
	stat os.FileInfo
}

// NewFile returns the content of f. The file must not change until the upload has ended.
func NewFile(f *os.File) (*File, error) {
	stat, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if stat.Mode().IsRegular() {
		if err := fetch.PrepareChangeDetection(f); err != nil {
			return nil, err
		}
	}
	size, err := f.Seek(0, io.SeekEnd) // works for block devices too
	if err == nil && disk.CheckSize(size) != nil {
		_, err = disk.Inspect(f, size, "") // names the format of a packed file
	}
	if err != nil {
		return nil, err
	}
	return &File{f: f, size: size, stat: stat}, nil
}

// Size returns the size of the file in bytes.
func (c *File) Size() int64 { return c.size }

func (c *File) length() int64 { return c.size }

func (c *File) fingerprint() string {
	s := c.stat.Sys().(*syscall.Stat_t)
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %d", c.size, c.stat.ModTime().UnixNano(), s.Ino, s.Dev))
	return hex.EncodeToString(sum[:16])
}

func (c *File) piece(at int64) (piece, error) {
	if at >= c.size {
		return piece{}, io.EOF
	}
	data, _ := fetch.NextExtent(c.f, at, c.size)
	if hole := data - at; hole >= minHole || hole > 0 && data == c.size {
		return piece{at: at, zeros: min(hole, maxZeros)}, nil
	}
	buf := make([]byte, min(pieceSize-at%pieceSize, c.size-at))
	if _, err := c.f.ReadAt(buf, at); err != nil {
		return piece{}, &ContentError{err}
	}
	return newPiece(at, buf), nil
}

// newPiece returns a piece with the bytes of buf, or a piece of zeros if all of them are zero.
func newPiece(at int64, buf []byte) piece {
	if len(buf) > 0 && buf[0] == 0 && bytes.Equal(buf[1:], buf[:len(buf)-1]) {
		return piece{at: at, zeros: int64(len(buf))}
	}
	return piece{at: at, data: buf}
}

// dataBytes returns an upper bound of the bytes in chunks that are not all zeros.
func (c *File) dataBytes() int64 {
	n, _ := fetch.DataSize(func(offset int64) (start, end int64, err error) {
		if start, end = fetch.NextExtent(c.f, offset, c.size); start >= c.size {
			err = io.EOF
		}
		return start, end, err
	})
	return n
}

func (c *File) check() error {
	now, err := c.f.Stat()
	if err != nil {
		return err
	}
	if now.Size() != c.stat.Size() || !now.ModTime().Equal(c.stat.ModTime()) {
		return fmt.Errorf("%s was modified while it was sent: start the upload again", c.f.Name())
	}
	return nil
}

// Pipe is content that can be read only once. It keeps the last bytes, because the daemon may lose
// some.
type Pipe struct {
	r      fetch.ErrorRecorder
	size   int64
	name   string
	pieces []piece // the last pieces, in order
	next   int64   // bytes read so far
	ended  bool
}

// NewPipe returns the content of r, of size bytes; -1: unknown.
func NewPipe(r io.Reader, size int64) *Pipe {
	return &Pipe{r: fetch.ErrorRecorder{R: r}, size: size, name: rand.Text()}
}

func (c *Pipe) length() int64 { return c.size }

func (c *Pipe) fingerprint() string { return c.name }

func (*Pipe) check() error { return nil }

func (c *Pipe) piece(at int64) (piece, error) {
	for _, p := range c.pieces {
		if at >= p.at && at < p.end() {
			return p.after(at), nil
		}
	}
	switch {
	case at != c.next:
		return piece{}, fmt.Errorf("the daemon has only %d of the %d bytes that were sent, and a pipe cannot be read again: start the upload again", at, c.next)
	case c.ended:
		return piece{}, io.EOF
	}
	buf := make([]byte, pieceSize)
	n, err := io.ReadFull(&c.r, buf)
	if c.r.Err != nil { // also the io.ErrUnexpectedEOF of a packed file that is cut off
		return piece{}, &ContentError{c.r.Err}
	}
	c.ended = err != nil
	if c.ended && c.size >= 0 && c.next+int64(n) != c.size || c.size >= 0 && c.next+int64(n) > c.size {
		return piece{}, fmt.Errorf("standard input does not have the given size: got %d bytes of %d; correct --size", c.next+int64(n), c.size)
	}
	if n == 0 {
		return piece{}, io.EOF
	}
	p := newPiece(at, buf[:n])
	c.next = p.end()
	c.keep(p)
	return p, nil
}

func (c *Pipe) keep(p piece) {
	c.pieces = append(c.pieces, p)
	for c.pieces[0].end() <= c.next-keptBytes {
		c.pieces = c.pieces[1:]
	}
}

// after returns the rest of the piece, beginning at an offset.
func (p piece) after(at int64) piece {
	skip := at - p.at
	if p.zeros > 0 {
		return piece{at: at, zeros: p.zeros - skip}
	}
	return piece{at: at, data: p.data[skip:]}
}
