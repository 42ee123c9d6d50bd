package disk

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrTooLarge says that more bytes came than the image may have.
var ErrTooLarge = errors.New("image is larger than allowed")

// PartSource says what the bytes of a part came from, so that a resume never joins
// two versions of a file.
type PartSource struct {
	ID           string `json:"source"` // a hash of the address; addresses may hold secrets
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"lastModified,omitempty"`
	Size         int64  `json:"size"` // bytes of the image; -1: not known
	// Metadata is what the sender of an upload said about it.
	Metadata string `json:"metadata,omitempty"`
	// Data is how many bytes of the image at most are in chunks that are not all zero:
	// what there has to be room for. 0: not known, so for all of Size.
	Data int64 `json:"data,omitempty"`
}

// need is what there has to be room for.
func (o PartSource) need() int64 {
	if o.Data > 0 {
		return min(o.Data, o.Size)
	}
	return o.Size
}

// PartOptions bound what may become of a part.
type PartOptions struct {
	Reserve int64  // bytes that must stay free on the disk
	MaxSize int64  // most bytes that the image may have; 0: no bound but the disk
	SHA256  bool   // compute the SHA-256 of the whole as well
	Format  Format // as declared; "" means to detect it
	// Accept says whether a part of that origin, which is there, is of any use: reading it
	// back may take minutes. nil: each is.
	Accept func(PartSource) bool
}

// Part is an image in the making: the file backing.part and the hashes of its
// chunks beside it. It is for one goroutine; Written may be called from others.
type Part struct {
	disk     *Disk
	id       ID
	options  PartOptions
	origin   *PartSource
	found    func(*Record) // records what finish found out
	whole    Evidence      // of the file, when finish had written it
	replaces Evidence      // the failed image that finish has found; zero: none
	file     *os.File
	direct   bool
	chunks   chunkFile

	hashes   *hashes
	pipeline *pipeline // nil once closed
	current  *chunk    // being filled
	offset   int64     // bytes that came so far, those of current included
	manifest hash.Hash // of the sums of the chunks; the journal's

	written  atomic.Int64 // bytes of chunks that are not zero
	unsynced int64        // written since the last sync; the writing goroutine's
}

// OpenPart makes the folder of id and an empty part in it, or takes up the part
// that is there: its chunks are read back, and those count that have the recorded
// hash, up to the first that has not. ctx ends this reading. A part that o does not take
// has no Origin and holds nothing; until Begin, all of it is still on the disk.
func (d *Disk) OpenPart(ctx context.Context, id ID, o PartOptions) (*Part, error) {
	record, err := d.makeFolder(id)
	if err != nil {
		return nil, err
	}
	p := &Part{disk: d, id: id, options: o, origin: record.Source}
	if err := p.open(); err != nil {
		return nil, fmt.Errorf("open part of %s: %w", id, err)
	}
	p.start()
	if p.origin != nil && o.Accept != nil && !o.Accept(*p.origin) {
		p.origin = nil
	}
	if p.origin != nil {
		if err := p.resume(ctx); err != nil {
			p.pipeline.abort()
			return nil, errors.Join(fmt.Errorf("resume part of %s: %w", id, err), p.closeFiles())
		}
	}
	return p, nil
}

func (p *Part) open() (err error) {
	p.file, p.direct, err = openDirect(p.disk.root, p.id.file(partFile), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	p.chunks, err = openChunks(p.disk.root, p.id.file(partChunksFile))
	if err != nil {
		p.file.Close()
	}
	return err
}

// start begins to hash and write from the first chunk.
func (p *Part) start() {
	hashes, consumers := newHashes(p.options.SHA256)
	p.hashes, p.manifest = hashes, SHA256.New()
	p.pipeline = newPipeline(append(consumers, p.journal, p.save)...)
	p.current, p.offset, p.unsynced = nil, 0, 0
	p.written.Store(0)
}

// resume keeps the chunks that their hashes vouch for and drops the rest.
func (p *Part) resume(ctx context.Context) error {
	info, err := p.file.Stat()
	if err != nil {
		return err
	}
	s := &imageSource{f: p.file, direct: p.direct, size: info.Size(), holes: extents{f: p.file}}
	for p.offset+ChunkSize <= s.size {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := p.pipeline.get()
		if err != nil {
			return err
		}
		// What cannot be read is asked for again too, and then written elsewhere.
		err = s.read(c, p.offset)
		if err == nil {
			c.saved, c.sum = true, HashChunk(c.data)
		}
		if err != nil || c.sum != p.chunks.at(c.n) {
			p.pipeline.free <- c
			break
		}
		p.offset += ChunkSize
		p.pipeline.put(c)
	}
	if p.offset != s.size { // cutting nothing would move the mtime, which tells when the last byte came
		err = p.file.Truncate(p.offset)
	}
	return errors.Join(err, p.chunks.truncate(p.offset/ChunkSize))
}

// Source returns what the bytes of the part came from; it is the zero Origin when
// Begin has not been called for them.
func (p *Part) Source() PartSource {
	if p.origin == nil {
		return PartSource{}
	}
	return *p.origin
}

// Offset returns how many bytes of the image are here: the next one to ask for.
// The bytes of a chunk that is not full are here for as long as the process runs.
func (p *Part) Offset() int64 { return p.offset }

// ModTime returns when the part last grew, as far as that is on the disk.
func (p *Part) ModTime() (time.Time, error) {
	info, err := p.file.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Written returns the bytes of chunks that are not all zero: what takes space.
func (p *Part) Written() int64 { return p.written.Load() }

// Begin drops all bytes and records durably where those come from that follow. It
// fails with ErrNoSpace or ErrTooLarge when the size that o promises cannot be.
func (p *Part) Begin(o PartSource) error {
	p.pipeline.abort()
	if err := p.fits(o); err != nil {
		p.start()
		return fmt.Errorf("begin %s: %w", p.id, err)
	}
	// The hashes go first: none may be left that vouches for other bytes.
	p.origin = nil
	err := errors.Join(p.chunks.reset(), p.file.Truncate(0))
	if err == nil {
		err = p.disk.Update(p.id, func(r *Record) { r.Source = &o })
	}
	p.start()
	if err != nil {
		return fmt.Errorf("begin %s: %w", p.id, err)
	}
	p.origin = &o
	return nil
}

// SetSize records durably how many bytes the image has, which Begin was not told.
func (p *Part) SetSize(size int64) error {
	o := p.Source()
	o.Size = size
	if err := p.disk.Update(p.id, func(r *Record) { r.Source = &o }); err != nil {
		return fmt.Errorf("measure part of %s: %w", p.id, err)
	}
	p.origin = &o
	return nil
}

// fits checks a promised size, of which nothing is known when it is negative.
func (p *Part) fits(o PartSource) error {
	if o.Size < 0 {
		return nil
	}
	if p.options.MaxSize > 0 && o.Size > p.options.MaxSize {
		return fmt.Errorf("%w: it has %d bytes, at most %d are allowed", ErrTooLarge, o.Size, p.options.MaxSize)
	}
	return p.room(o.need())
}

// room checks that so many more bytes can come without touching the reserve.
func (p *Part) room(more int64) error {
	space, err := p.disk.Space()
	if err != nil {
		return err
	}
	if free := space.Free - p.options.Reserve; free < more {
		return &NoSpaceError{Need: more, Free: max(0, free)}
	}
	return nil
}

// ReadFrom appends the bytes of r until its end or an error, and returns how many
// it took. What it took stays: after an error of r the next ReadFrom goes on from
// Offset. Errors of r are wrapped; others are ErrNoSpace, ErrTooLarge or a
// *FormatError from a look at the first bytes, and end the part's use.
func (p *Part) ReadFrom(r io.Reader) (int64, error) {
	start := p.offset
	if p.ended() {
		return 0, errEnded
	}
	for {
		if p.current == nil {
			c, err := p.pipeline.get()
			if err != nil {
				return p.offset - start, err
			}
			c.n, p.current = p.offset/ChunkSize, c
		}
		n, err := r.Read(p.current.buf[len(p.current.data):])
		p.current.data = p.current.buf[:len(p.current.data)+n]
		p.offset += int64(n)
		if p.options.MaxSize > 0 && p.offset > p.options.MaxSize {
			return p.offset - start, fmt.Errorf("%w: at most %d bytes are allowed", ErrTooLarge, p.options.MaxSize)
		}
		if len(p.current.data) == ChunkSize {
			if err := p.flush(); err != nil {
				return p.offset - start, err
			}
		}
		if errors.Is(err, io.EOF) {
			return p.offset - start, nil
		}
		if err != nil {
			return p.offset - start, fmt.Errorf("read image: %w", err)
		}
	}
}

// Close stops and keeps what is there. After Commit and Discard it does nothing.
func (p *Part) Close() error {
	if p.pipeline == nil {
		return nil
	}
	err := p.pipeline.close() // whole chunks that came are still written
	p.pipeline = nil
	return errors.Join(err, p.closeFiles())
}

func (p *Part) closeFiles() error {
	return errors.Join(p.file.Close(), p.chunks.f.Close())
}

// Discard removes the part.
func (p *Part) Discard() error {
	if p.pipeline != nil {
		p.pipeline.abort()
		p.pipeline = nil
	}
	err := p.closeFiles()
	for _, name := range partFiles {
		err = errors.Join(err, ignoreMissing(p.disk.root.Remove(p.id.file(name))))
	}
	return err
}

// NewChunkBuffer returns room for one chunk, aligned as Put wants it.
func NewChunkBuffer() []byte { return alignedBuffer(ChunkSize) }

var errEnded = errors.New("the image has ended with a short chunk")

// ended reports whether a short chunk was handed on, behind which nothing can come.
func (p *Part) ended() bool { return p.current == nil && p.offset%ChunkSize != 0 }

// AppendChunk appends buf[:length] as the next chunk, whose sum the caller has checked: it
// is not computed again. Only the last chunk of an image may have less than
// ChunkSize bytes, and ReadFrom must not have left one half full. Put keeps buf, which
// NewBuffer or Put made, and gives back another one, in case of an error too. Its
// errors are those of ReadFrom.
func (p *Part) AppendChunk(buf []byte, length int64, sum ChunkHash) ([]byte, error) {
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

// AppendZeros appends a chunk of zeros. What is said of Put holds for it too.
func (p *Part) AppendZeros(length int64) error {
	c, err := p.next(length)
	if err != nil {
		return err
	}
	c.data = zeros[:length]
	return p.flush()
}

// next makes a free chunk the current one, for all of its bytes to be put there.
func (p *Part) next(length int64) (*chunk, error) {
	size := p.Source().Size
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

// Matches reports whether all that the part holds are chunks of m, as far as they are
// whole. Then the chunk at Offset is the next one to put; otherwise the part has to
// be begun anew.
func (p *Part) Matches(m *Manifest) (bool, error) {
	size := p.Source().Size
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
	return sameHashes(p.chunks.hashes(whole), m.hashes(whole))
}

// Continue records durably that the whole chunks that the part holds are the beginning
// of what o names, as Agrees has found, and drops what there is of another one. It
// fails as Begin does when there is no room for the rest.
func (p *Part) Continue(o PartSource) error {
	if c := p.current; c != nil {
		p.offset -= int64(len(c.data))
		c.data = c.buf[:0]
	}
	err := p.fits(o)
	if errors.Is(err, ErrNoSpace) {
		err = p.room(min(o.Size-p.offset, o.need()-p.Written()))
	}
	if err == nil {
		err = p.disk.Update(p.id, func(r *Record) { r.Source = &o })
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

// flush hands the current chunk on. The first one tells what format it is, and
// only then is an odd size worth a word: a web page has one too.
func (p *Part) flush() error {
	c := p.current
	if c == nil || len(c.data) == 0 {
		return nil
	}
	if c.n == 0 {
		if err := inspectHead(c.data, p.options.Format); err != nil {
			return err
		}
		if size := p.Source().Size; size >= 0 {
			if err := checkSize(size); err != nil {
				return err
			}
		}
	}
	p.current = nil
	p.pipeline.put(c)
	return nil
}

// syncEvery is how many bytes a power cut may cost of a download.
const syncEvery = 256 << 20

// journal records the hash of a chunk, computed here unless who brought it did. It runs in a goroutine of the pipeline, and
// may come before or after the chunk is written: the hash is compared with what
// is read back.
func (p *Part) journal(c *chunk) error {
	if !c.zero {
		p.written.Add(int64(len(c.data)))
	}
	sum := c.sum
	if sum == (ChunkHash{}) {
		sum = hashBytes(c.data, c.zero)
	}
	p.manifest.Write(sum[:])
	if c.saved {
		return nil
	}
	return p.chunks.set(c.n, sum)
}

// save writes a chunk, or makes the file longer where a hole is as good: what is
// behind its end is asked for again. It runs in a goroutine of the pipeline.
func (p *Part) save(c *chunk) error {
	switch {
	case c.saved, c.inPlace:
		return nil
	case c.zero:
		return p.file.Truncate(c.n*ChunkSize + int64(len(c.data)))
	}
	padded := (len(c.data) + directAlign - 1) &^ (directAlign - 1)
	clear(c.buf[len(c.data):padded])
	if _, err := p.file.WriteAt(c.buf[:padded], c.n*ChunkSize); err != nil {
		return fmt.Errorf("write %s: %w", partFile, p.full(noSpace(err)))
	}
	if err := p.room(0); err != nil {
		return p.full(err)
	}
	p.unsynced += int64(padded)
	if p.unsynced < syncEvery && (p.direct || p.unsynced < cached) {
		return nil
	}
	p.unsynced = 0
	return errors.Join(p.sync(), p.chunks.f.Sync())
}

// full says of a lack of space in the middle how much there has to be for all of it,
// as what came so far will not be there any more. Where that was not promised, it is at
// least what came and a chunk.
func (p *Part) full(err error) error {
	if !errors.Is(err, ErrNoSpace) {
		return err
	}
	lack := &NoSpaceError{Need: max(p.written.Load()+ChunkSize, p.Source().need())}
	if space, err := p.disk.Space(); err == nil {
		lack.Free = max(0, space.Free-p.options.Reserve)
	}
	return lack
}

func (p *Part) sync() error {
	if !p.direct {
		return drop(p.file)
	}
	if err := unix.Fdatasync(int(p.file.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", partFile, noSpace(err))
	}
	return nil
}

// WriteHead writes the first n bytes of the part to w, as they are read back from its
// file. They are whole chunks that an earlier process has left: OpenPart has found them
// to be right.
func (p *Part) WriteHead(w io.Writer, n int64) error {
	if n%ChunkSize != 0 || n > p.offset {
		return fmt.Errorf("read head of %s: it has %d whole bytes, not %d", p.id, p.offset, n)
	}
	buf := NewChunkBuffer()
	for at := int64(0); at < n; at += ChunkSize {
		b, err := readDirect(p.file, buf, at, n)
		if err == nil {
			_, err = w.Write(b)
		}
		if err != nil {
			return fmt.Errorf("read head of %s: %w", p.id, err)
		}
	}
	return nil
}
