package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// ErrModified: a file was modified while it was read, so the bytes may be a mix of the old and the
// new content.
var ErrModified = errors.New("file was modified while it was read")

// ErrDamaged: the bytes of an image changed after it became ready. Disk.Verify confirms and records
// it.
var ErrDamaged = errors.New("is damaged")

// Reader reads the bytes of a ready image. After Close, the page cache contains the same pages of the
// image as before, or fewer of them after OpenUncached. ReadAt may be called concurrently.
type Reader struct {
	*io.SectionReader
	chunks *chunkReader
	pages  *cachedPages // nil after OpenUncached
	retain func([]Span) // remembers pages that Close could not drop
}

// Open opens the image of a ready copy for reading. Remove does not remove an image while a Reader of
// it is open.
func (d *Disk) Open(id ident.ID) (*Reader, error) {
	c := d.Stat(id)
	if c.State != model.Ready {
		return nil, fmt.Errorf("open: %s", c)
	}
	f, err := openRegular(d.root, filePath(id, imageFile), os.O_RDONLY)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", id, err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s: %w", id, err)
	}
	chunks := &chunkReader{f: f, size: info.Size(), before: evidenceOf(info)}
	inode := chunks.before.Inode
	pages := newCachedPages(f, chunks.size, d.metadata.takePages(id, inode))
	return &Reader{
		SectionReader: io.NewSectionReader(pagedFile{pages}, 0, chunks.size), chunks: chunks, pages: pages,
		retain: func(spans []Span) { d.metadata.retainPages(id, inode, spans) },
	}, nil
}

// OpenUncached is like Open, but its Reader reads past the page cache: ReadAt returns what the medium has, also if the cache
// has bytes that the medium has lost. Send must not be called, and only one ReadAt may run at a time. If the file
// system refuses direct reads, Direct returns false: then pages that the kernel did not drop come from the cache.
func (d *Disk) OpenUncached(id ident.ID) (*Reader, error) {
	c := d.Stat(id)
	if c.State != model.Ready {
		return nil, fmt.Errorf("open: %s", c)
	}
	chunks, err := openChunkReader(d.root, filePath(id, imageFile))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", id, err)
	}
	return &Reader{SectionReader: io.NewSectionReader(uncachedFile{chunks}, 0, chunks.size), chunks: chunks}, nil
}

// Direct reports whether the Reader reads past the page cache.
func (r *Reader) Direct() bool { return r.pages == nil && r.chunks.direct }

// errCached: a proof on this node would come from the page cache.
var errCached = errors.New("its file system refuses reads past the page cache, so its proof counts only for copies on other nodes")

// Prove reads a chunk of a ready copy past the page cache. ErrDamaged: the chunk does not match its hash. No lease
// probe runs meanwhile: it would find the file open, and the copy would count as in use because of the proof.
func (d *Disk) Prove(id ident.ID, chunk SelectedChunk) error {
	d.leases.mu.Lock()
	defer d.leases.mu.Unlock()
	r, err := d.OpenUncached(id)
	if err != nil {
		return err
	}
	defer r.Close()
	if !r.Direct() {
		return errCached
	}
	data := make([]byte, chunk.To-chunk.From)
	if _, err := r.ReadAt(data, chunk.From); err != nil {
		return fmt.Errorf("read %s: %w", id, err)
	}
	if !chunk.Hash.Matches(data) {
		return fmt.Errorf("%s %w at %d", id, ErrDamaged, chunk.From)
	}
	return nil
}

// uncachedFile implements io.ReaderAt past the page cache.
type uncachedFile struct{ r *chunkReader }

// ReadAt implements io.ReaderAt. It drops the cached pages first: some file systems accept a direct read and
// answer it from the page cache, for example btrfs for compressed extents.
func (u uncachedFile) ReadAt(b []byte, offset int64) (read int, err error) {
	c := chunk{buf: NewChunkBuffer()}
	for read < len(b) {
		at := offset + int64(read)
		start := at / ChunkSize * ChunkSize
		_ = unix.Fadvise(int(u.r.f.Fd()), start, ChunkSize, unix.FADV_DONTNEED) // if this fails, they stay cached
		if err := u.r.read(&c, start); err != nil {
			return read, err
		}
		read += copy(b[read:], c.data[at-start:])
	}
	return read, nil
}

// Unchanged returns ErrModified if the file was modified since Open.
func (r *Reader) Unchanged() error {
	_, err := r.chunks.unchanged()
	return err
}

// Close closes the file. It drops the pages that were added to the page cache. Pages that the network
// stack is still sending stay until the next Reader of the image is closed.
func (r *Reader) Close() error {
	if r.pages != nil {
		if spans := r.pages.release(); len(spans) > 0 {
			r.retain(spans)
		}
	}
	return r.chunks.close()
}

// IsHole implements caibx.File. It may not be called while a Send runs.
func (r *Reader) IsHole(from, to int64) bool {
	data, err := r.chunks.f.Seek(from, unix.SEEK_DATA)
	return errors.Is(err, unix.ENXIO) || err == nil && to <= data
}

// Send writes the bytes [from, to) to w in pieces that end at chunk borders. It uses sendfile if w
// supports it. Unless before is nil, Send calls before() ahead of each piece, and returns its error. Only
// one Send of a Reader may run at a time.
func (r *Reader) Send(w io.Writer, from, to int64, before func() error) error {
	if from < 0 || to > r.Size() || from > to {
		return fmt.Errorf("send image: range %d to %d is not in %d bytes", from, to, r.Size())
	}
	if _, err := r.chunks.f.Seek(from, io.SeekStart); err != nil {
		return fmt.Errorf("send image: %w", err)
	}
	r.pages.limit(from, to)
	defer r.pages.limit(0, r.Size())
	for from < to {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		n := from / ChunkSize
		r.pages.visit(n)
		sent, err := io.CopyN(w, r.chunks.f, min((n+1)*ChunkSize, to)-from)
		if err != nil {
			return fmt.Errorf("send image: %w", err)
		}
		from += sent
	}
	return nil
}

// VerifyingReader reads a ready image at arbitrary offsets and compares every chunk with the
// manifest: it returns only bytes that the image had when it became ready. It does not read chunks of
// zeros from the disk. It is not safe for concurrent use.
type VerifyingReader struct {
	id       ident.ID
	r        *Reader
	manifest *Manifest
	cached   []verifiedChunk // ring buffer of the last chunks
	next     int             // index in cached
}

type verifiedChunk struct {
	n    int64
	data []byte // nil: this entry is empty
	buf  []byte
}

// NewVerifyingReader returns a reader of the image id, which reads from r and compares with manifest m.
// cached is the number of chunks that it keeps, each in ChunkSize bytes of memory. To read in order, 1 is
// enough. The caller closes r and m after the last read.
func NewVerifyingReader(id ident.ID, r *Reader, m *Manifest, cached int) *VerifyingReader {
	return &VerifyingReader{id: id, r: r, manifest: m, cached: make([]verifiedChunk, cached)}
}

// ReadAt implements io.ReaderAt, except that it is not safe for concurrent use. ErrDamaged: a chunk
// does not match; the error contains its position.
func (v *VerifyingReader) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		at := off + int64(n)
		if at >= v.manifest.Size() {
			return n, io.EOF
		}
		chunk, from := at/ChunkSize, at%ChunkSize
		data, err := v.Chunk(chunk)
		if err != nil {
			return n, err
		}
		if data == nil {
			data = zeros[:v.manifest.ChunkLength(chunk)]
		}
		n += copy(p[n:], data[from:])
	}
	return n, nil
}

// Chunk returns the bytes of chunk n, or nil if all of them are zero. They are valid until the next
// call. ErrDamaged: the bytes do not match the manifest.
func (v *VerifyingReader) Chunk(n int64) ([]byte, error) {
	for _, c := range v.cached {
		if c.data != nil && c.n == n {
			return c.data, nil
		}
	}
	if zero, err := v.manifest.IsZero(n); zero || err != nil {
		return nil, err
	}
	want, err := v.manifest.Hash(n)
	if err != nil {
		return nil, err
	}
	c := &v.cached[v.next]
	v.next = (v.next + 1) % len(v.cached)
	if c.buf == nil {
		c.buf = NewChunkBuffer()
	}
	c.n, c.data = n, nil
	data := c.buf[:v.manifest.ChunkLength(n)]
	if _, err := v.r.ReadAt(data, n*ChunkSize); err != nil && err != io.EOF {
		return nil, fmt.Errorf("read %s: %w", v.id, err)
	}
	if !want.Matches(data) {
		return nil, fmt.Errorf("%s %w at %d", v.id, ErrDamaged, n*ChunkSize)
	}
	c.data = data
	return data, nil
}

// chunkReader reads the file of an image in chunks. It uses direct I/O where possible, and does not
// read holes.
type chunkReader struct {
	f      *os.File
	direct bool
	size   int64
	holes  extents
	before Evidence // when it was opened
	cached int64    // bytes read since the page cache was last dropped
}

func openChunkReader(root *os.Root, name string) (*chunkReader, error) {
	f, direct, err := openDirect(root, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	if !direct {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED) // pages that stay cached are read from the cache
	}
	return &chunkReader{f: f, direct: direct, size: info.Size(), holes: extents{f: f}, before: evidenceOf(info)}, nil
}

// read reads the chunk at offset into c.
func (r *chunkReader) read(c *chunk, offset int64) error {
	c.n = offset / ChunkSize
	length := min(ChunkSize, r.size-offset)
	if r.holes.isHole(offset, offset+length) {
		c.data = zeros[:length]
		return nil
	}
	var err error
	c.data, err = readDirect(r.f, c.buf, offset, r.size)
	if r.cached += length; err == nil && !r.direct && r.cached >= maxCached {
		r.cached = 0
		err = unix.Fadvise(int(r.f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	return err
}

// sendTo puts all chunks into p, and calls done with the length of each.
func (r *chunkReader) sendTo(p *pipeline, done func(int64)) error {
	for offset := int64(0); offset < r.size; offset += ChunkSize {
		c, err := p.get()
		if err != nil {
			return err
		}
		if err := r.read(c, offset); err != nil {
			return err
		}
		n := int64(len(c.data))
		p.put(c)
		done(n)
	}
	return nil
}

// unchanged returns ErrModified if the file was modified since it was opened.
func (r *chunkReader) unchanged() (os.FileInfo, error) {
	info, err := r.f.Stat()
	if err != nil {
		return nil, err
	}
	if now := evidenceOf(info); now != r.before {
		return nil, fmt.Errorf("%s: %w: %s", r.f.Name(), ErrModified, r.before.difference(now))
	}
	return info, nil
}

// checkStable returns ErrModified if the file was modified since it was opened, or if a process has
// it open for writing: while that process pauses, even an incomplete file stays unchanged.
func (r *chunkReader) checkStable() error {
	if openForWriting(r.f) {
		return fmt.Errorf("%s: %w: a process has it open for writing", r.f.Name(), ErrModified)
	}
	_, err := r.unchanged()
	return err
}

// sync makes the file durable, because another program may have written it without a sync. After an
// error it drops the page cache, as dropCache does: with the cached pages, the next sync would succeed,
// and the next reader would get bytes that are not on the disk.
func (r *chunkReader) sync() error {
	err := r.f.Sync()
	if err != nil {
		err = errors.Join(err, unix.Fadvise(int(r.f.Fd()), 0, 0, unix.FADV_DONTNEED))
	}
	return err
}

func (r *chunkReader) close() error { return r.f.Close() }

// waitForTick waits until any later write would change the times of the file, so that the write can
// be detected. The clock of a file system advances in ticks, on old file systems in whole seconds.
func waitForTick(f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	tick := 10 * time.Millisecond // the longest tick of a kernel
	e := evidenceOf(info)
	if e.ModTime%int64(time.Second) == 0 && e.ChangeTime%int64(time.Second) == 0 {
		tick += time.Second
	}
	if age := time.Since(time.Unix(0, e.ChangeTime)); age >= 0 && age < tick {
		time.Sleep(tick - age)
	}
	return nil
}
