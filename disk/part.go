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
)

// ErrTooLarge says that more bytes came than the image may have.
var ErrTooLarge = errors.New("image is larger than allowed")

// Origin says what the bytes of a part came from, so that a resume never joins
// two versions of a file.
type Origin struct {
	Source       string `json:"source"` // a hash of the address; addresses may hold secrets
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
func (o Origin) need() int64 {
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
	// Takes says whether a part of that origin, which is there, is of any use: reading it
	// back may take minutes. nil: each is.
	Takes func(Origin) bool
}

// Part is an image in the making: the file backing.part and the hashes of its
// chunks beside it. It is for one goroutine; Written may be called from others.
type Part struct {
	disk     *Disk
	id       ID
	options  PartOptions
	origin   *Origin
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
	p := &Part{disk: d, id: id, options: o, origin: record.Origin}
	if err := p.open(); err != nil {
		return nil, fmt.Errorf("open part of %s: %w", id, err)
	}
	p.start()
	if p.origin != nil && o.Takes != nil && !o.Takes(*p.origin) {
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
			c.saved, c.sum = true, SumChunk(c.data)
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

// Origin returns what the bytes of the part came from; it is the zero Origin when
// Begin has not been called for them.
func (p *Part) Origin() Origin {
	if p.origin == nil {
		return Origin{}
	}
	return *p.origin
}

// Offset returns how many bytes of the image are here: the next one to ask for.
// The bytes of a chunk that is not full are here for as long as the process runs.
func (p *Part) Offset() int64 { return p.offset }

// Touched returns when the part last grew, as far as that is on the disk.
func (p *Part) Touched() (time.Time, error) {
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
func (p *Part) Begin(o Origin) error {
	p.pipeline.abort()
	if err := p.fits(o); err != nil {
		p.start()
		return fmt.Errorf("begin %s: %w", p.id, err)
	}
	// The hashes go first: none may be left that vouches for other bytes.
	p.origin = nil
	err := errors.Join(p.chunks.reset(), p.file.Truncate(0))
	if err == nil {
		err = p.disk.Update(p.id, func(r *Record) { r.Origin = &o })
	}
	p.start()
	if err != nil {
		return fmt.Errorf("begin %s: %w", p.id, err)
	}
	p.origin = &o
	return nil
}

// Measure records durably how many bytes the image has, which Begin was not told.
func (p *Part) Measure(size int64) error {
	o := p.Origin()
	o.Size = size
	if err := p.disk.Update(p.id, func(r *Record) { r.Origin = &o }); err != nil {
		return fmt.Errorf("measure part of %s: %w", p.id, err)
	}
	p.origin = &o
	return nil
}

// fits checks a promised size, of which nothing is known when it is negative.
func (p *Part) fits(o Origin) error {
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
