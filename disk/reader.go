package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// imageSource reads the file of an image in chunks, past the page cache, without
// reading holes.
type imageSource struct {
	f      *os.File
	direct bool
	size   int64
	holes  extents
	before Evidence
	unread int64 // bytes since the page cache was dropped
}

func openSource(root *os.Root, name string) (*imageSource, error) {
	f, direct, err := openDirect(root, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	return &imageSource{f: f, direct: direct, size: info.Size(), holes: extents{f: f}, before: evidenceOf(info)}, nil
}

// read puts the chunk that begins at offset into c. A direct ReadAt wants the
// whole aligned buffer, also at the end of the file.
func (s *imageSource) read(c *chunk, offset int64) error {
	c.n = offset / ChunkSize
	length := min(ChunkSize, s.size-offset)
	if s.holes.isHole(offset, offset+length) {
		c.data = zeros[:length]
		return nil
	}
	var err error
	c.data, err = readDirect(s.f, c.buf, offset, s.size)
	if s.unread += length; err == nil && !s.direct && s.unread >= cached {
		s.unread = 0
		err = unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	return err
}

// ErrModified says that a file was written to while it was read, so that what was
// read is worth nothing.
var ErrModified = errors.New("file changes while it is read")

// unchanged returns the file's evidence if it is what it was when it was opened.
func (s *imageSource) unchanged() (os.FileInfo, error) {
	info, err := s.f.Stat()
	if err != nil {
		return nil, err
	}
	if now := evidenceOf(info); now != s.before {
		return nil, fmt.Errorf("%s: %w: %s", s.f.Name(), ErrModified, s.before.difference(now))
	}
	return info, nil
}

// settled makes sure that what was read is what is there, and that nobody is about
// to change it: a file that is being copied to its place may rest for a while.
func (s *imageSource) settled() error {
	if writable(s.f) {
		return fmt.Errorf("%s: %w: a process has it open for writing", s.f.Name(), ErrModified)
	}
	_, err := s.unchanged()
	return err
}

// sync makes the file durable, whoever wrote it. After an error the page cache is let go
// of, as drop does it: the next sync would work, and the next reading find the bytes.
func (s *imageSource) sync() error {
	err := s.f.Sync()
	if err != nil {
		err = errors.Join(err, unix.Fadvise(int(s.f.Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	return err
}

// rest waits until whatever is written to the file from now on moves its times, by which
// it is noticed: the clock of a file system moves in ticks, on old ones by whole seconds.
func rest(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	tick := 10 * time.Millisecond // no kernel has longer ones
	e := evidenceOf(info)
	if e.ModTime%int64(time.Second) == 0 && e.ChangeTime%int64(time.Second) == 0 {
		tick += time.Second
	}
	if age := time.Since(time.Unix(0, e.ChangeTime)); age >= 0 && age < tick {
		time.Sleep(tick - age)
	}
	return nil
}

func (s *imageSource) close() error { return s.f.Close() }

// pour sends all chunks of s through p.
func (s *imageSource) pour(p *pipeline, done func(int64)) error {
	for offset := int64(0); offset < s.size; offset += ChunkSize {
		c, err := p.get()
		if err != nil {
			return err
		}
		if err := s.read(c, offset); err != nil {
			return err
		}
		n := int64(len(c.data))
		p.put(c)
		done(n)
	}
	return nil
}

// Reader reads the bytes of a ready image, and leaves the page cache as it finds it.
type Reader struct {
	*io.SectionReader
	s     *imageSource
	pages *pages
	left  func([]span)
}

// Open opens the image of a ready copy for reading. As long as it is open the
// image cannot be removed.
func (d *Disk) Open(id ID) (*Reader, error) {
	c := d.Stat(id)
	if c.State != Ready {
		return nil, fmt.Errorf("open %s: it is %s", id, c.State)
	}
	f, err := openImage(d.root, id.file(imageFile), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", id, err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s: %w", id, err)
	}
	s := &imageSource{f: f, size: info.Size(), before: evidenceOf(info)}
	pages := newPages(f, s.size, d.pagesLeft(id, s.before.Inode, nil))
	return &Reader{
		SectionReader: io.NewSectionReader(pagedFile{pages}, 0, s.size), s: s, pages: pages,
		left: func(spans []span) { d.pagesLeft(id, s.before.Inode, spans) },
	}, nil
}

// Unchanged reports ErrChanging if the file was written to since Open: what was
// read may then be a mix of two contents.
func (r *Reader) Unchanged() error {
	_, err := r.s.unchanged()
	return err
}

// Close ends the reading. What it has brought into the page cache is let go; what the
// network still has of it, when the next reader of the image closes.
func (r *Reader) Close() error {
	if spans := r.pages.release(); len(spans) > 0 {
		r.left(spans)
	}
	return r.s.close()
}

// Send writes the bytes [from, to) to w, by sendfile where w can, in pieces that end at
// the borders of chunks. It calls before, unless that is nil, ahead of each piece, and
// ends with its error. Only one Send of a Reader may run at a time.
func (r *Reader) Send(w io.Writer, from, to int64, before func() error) error {
	if from < 0 || to > r.Size() || from > to {
		return fmt.Errorf("send image: there are no bytes from %d to %d of %d", from, to, r.Size())
	}
	if _, err := r.s.f.Seek(from, io.SeekStart); err != nil {
		return fmt.Errorf("send image: %w", err)
	}
	r.pages.only(from, to)
	defer r.pages.only(0, r.Size())
	for from < to {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		n := from / ChunkSize
		r.pages.visit(n)
		sent, err := io.CopyN(w, r.s.f, min((n+1)*ChunkSize, to)-from)
		if err != nil {
			return fmt.Errorf("send image: %w", err)
		}
		from += sent
	}
	return nil
}

// ErrDamaged says that an image is not any more what it was when it became ready.
// Verify settles it.
var ErrDamaged = errors.New("is damaged")

// VerifyingReader reads a ready image at any offset, and gives only bytes that are what they
// were when it became ready: each chunk is held against the image's manifest. It is for
// one goroutine.
type VerifyingReader struct {
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

// NewVerifyingReader reads the image id by r and holds it against m. Both stay open for as long
// as it is used.
func NewVerifyingReader(id ID, r *Reader, m *Manifest) *VerifyingReader {
	return &VerifyingReader{id: id, r: r, manifest: m}
}

// ReadAt is that of an io.ReaderAt. An error that is ErrDamaged names the chunk.
func (c *VerifyingReader) ReadAt(p []byte, off int64) (n int, err error) {
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

func (c *VerifyingReader) chunk(n int64) ([]byte, error) {
	for _, had := range c.chunks {
		if had.data != nil && had.n == n {
			return had.data, nil
		}
	}
	next := &c.chunks[c.turn]
	c.turn = (c.turn + 1) % len(c.chunks)
	if next.buf == nil {
		next.buf = NewChunkBuffer()
	}
	next.n, next.data = n, nil
	data := next.buf[:c.manifest.ChunkLength(n)]
	if _, err := c.r.ReadAt(data, n*ChunkSize); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read %s: %w", c.id, err)
	}
	want, err := c.manifest.Hash(n)
	if err != nil {
		return nil, err
	}
	if hashBytes(data, allZero(data)) != want {
		return nil, fmt.Errorf("%s %w at %d", c.id, ErrDamaged, n*ChunkSize)
	}
	next.data = data
	return data, nil
}
