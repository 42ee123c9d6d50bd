package disk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// ErrTooLarge: the image is larger than the limit.
var ErrTooLarge = errors.New("image is larger than allowed")

// errEnded: only the last chunk of an image is short, so no chunk can follow it.
var errEnded = errors.New("the image has ended with a short chunk")

// PartSource identifies the source of a partial file's bytes, so that a resume never combines two
// versions of a file. It is stored in the record.
type PartSource struct {
	Kind model.PartKind `json:"kind,omitempty"`
	// ID identifies the source within its kind. It is a hash of an address, because an address may contain secrets, or a
	// text with a digest. Package disk does not interpret it.
	ID           string `json:"id"`
	ETag         string `json:"etag,omitempty"`
	LastModified string `json:"lastModified,omitempty"`
	Size         int64  `json:"size"` // bytes of the image; -1: not known
	// Metadata is the metadata that the client of an upload sent.
	Metadata string `json:"metadata,omitempty"`
	// Data is an upper bound of the bytes in chunks that are not all zero: the image needs no more
	// space. 0: not known, so the image may need all of Size.
	Data int64 `json:"data,omitempty"`
	// Index identifies the index by which the bytes are downloaded: a hash of its address. "": none.
	Index string `json:"index,omitempty"`
}

// data returns the bytes of disk space that the data of the image needs.
func (s PartSource) data() int64 {
	if s.Data > 0 {
		return min(s.Data, s.Size)
	}
	return s.Size
}

// need returns the bytes of disk space that the image needs, with the files beside it.
func (s PartSource) need() int64 { return s.data() + model.SpaceBeside(s.Size) }

// PartOptions are limits and expectations for a partial file.
type PartOptions struct {
	Reserve int64        // bytes that must stay free on the disk
	MaxSize int64        // maximum size of the image in bytes; 0: no limit
	SHA256  bool         // compute the SHA-256 of the image as well
	Format  model.Format // as declared; "": detect it
	// Private: other users of the system must not read the image. Without Private, all users can read
	// it, as Longhorn's images.
	Private bool
	// Accept reports whether an existing partial file with this source can be resumed. Only then does
	// OpenPart read the file back, which can take minutes. nil: always true.
	Accept func(PartSource) bool
	// Check is a check besides the digest of Commit; zero: none.
	Check SignatureCheck
}

// Part is a partial file: backing.part, and the journal with the hashes of its chunks. Bytes can only
// be appended. A Part is not safe for concurrent use, except for Written.
type Part struct {
	partWriter
	stream
	options PartOptions
	hashes  *hashes
}

// OpenPart creates the folder of id and an empty partial file in it. If a partial file exists,
// OpenPart resumes it: it reads the chunks back, and keeps those before the first chunk that does not
// match its hash in the journal. It stops reading when ctx ends. OpenPart deletes a partial file whose source is not recorded.
//
// If o.Accept returns false for the existing file, the Part has no Source and is empty; the old bytes
// stay on the disk until Begin.
func (d *Disk) OpenPart(ctx context.Context, id ident.ID, o PartOptions) (*Part, error) {
	folder := d.image(id)
	record, err := folder.create()
	if err != nil {
		return nil, err
	}
	if record.Source == nil { // it is not known where the bytes come from
		for _, name := range partFiles {
			if err := removeRegular(d.root, folder.file(name), 1); err != nil {
				return nil, fmt.Errorf("open partial file of %s: %w", id, err)
			}
		}
	}
	p := &Part{options: o, partWriter: partWriter{partFolder: partFolder{folder: folder, reserve: o.Reserve, maxSize: o.MaxSize}}}
	if err := p.open(); err != nil {
		return nil, fmt.Errorf("open partial file of %s: %w", id, err)
	}
	p.start()
	if record.Source != nil && (o.Accept == nil || o.Accept(*record.Source)) {
		p.source.Store(record.Source)
		if err := p.resume(ctx); err != nil {
			p.pipeline.abort()
			return nil, errors.Join(fmt.Errorf("resume partial file of %s: %w", id, err), p.close())
		}
	}
	return p, nil
}

// start creates a pipeline, whose next chunk is the first chunk of the image.
func (p *Part) start() {
	hashes, consumers := newHashes(p.options.SHA256 || p.options.Check.Digest.Algorithm() == ident.SHA256)
	if begin := p.options.Check.Begin; begin != nil {
		w := begin()
		consumers = append(consumers, func(c *chunk) error { _, err := w.Write(c.data); return err })
	}
	p.reset()
	p.hashes, p.stream = hashes, stream{pipeline: newPipeline(append(consumers, p.writeHash, p.writeChunk)...)}
}

// resume keeps the chunks before the first mismatch with the journal, and removes the rest.
func (p *Part) resume(ctx context.Context) error {
	info, err := p.file.Stat()
	if err != nil {
		return err
	}
	s := &chunkReader{f: p.file, direct: p.direct, size: info.Size(), holes: extents{f: p.file}}
	for p.offset+ChunkSize <= s.size {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := p.pipeline.get()
		if err != nil {
			return err
		}
		// A chunk that cannot be read is fetched again. The disk then writes it to another place.
		err = s.read(c, p.offset)
		if err == nil {
			c.saved, c.hash = true, p.journal.algorithm.Hash(c.data)
		}
		if recorded, missing := p.journal.at(c.n); err != nil || missing != nil || c.hash != recorded {
			p.pipeline.free <- c
			break
		}
		p.offset += ChunkSize
		p.pipeline.put(c)
	}
	// Truncate would change the mtime even if it removes nothing, and the mtime is the time of the
	// last write (ModTime).
	if p.offset != s.size {
		err = p.file.Truncate(p.offset)
	}
	return errors.Join(err, p.journal.truncate(p.offset/ChunkSize))
}

// Begin discards all bytes and records durably the source of the bytes that follow. ErrNoSpace: the
// disk has not enough space for an image of this size. ErrTooLarge: the size exceeds the limit.
//
// The chunk manifest of the image will have the algorithm NewChunks.
func (p *Part) Begin(source PartSource) error { return p.begin(source, NewChunks) }

// BeginManifest does what Begin does, for the image that manifest m describes, and with the algorithm of m.
func (p *Part) BeginManifest(source PartSource, m *Manifest) error {
	return p.begin(source, m.algorithm)
}

func (p *Part) begin(source PartSource, algorithm ChunkAlgorithm) error {
	p.pipeline.abort()
	if err := p.checkSize(source); err != nil {
		p.start()
		return fmt.Errorf("begin %s: %w", p.folder.id, err)
	}
	// Remove the hashes first: an old hash could make new bytes count as verified.
	p.source.Store(nil)
	err := errors.Join(p.journal.reset(algorithm), p.file.Truncate(0))
	if err == nil && source.Index == "" {
		err = p.DropIndex()
	}
	if err == nil {
		err = p.folder.recordSource(source)
	}
	p.start()
	if err != nil {
		return fmt.Errorf("begin %s: %w", p.folder.id, err)
	}
	p.source.Store(&source)
	return nil
}

// SetSize records durably the size of an image if the size was not known at Begin.
func (p *Part) SetSize(size int64) error {
	source := p.Source()
	source.Size = size
	if err := p.folder.recordSource(source); err != nil {
		return fmt.Errorf("set size of the partial file of %s: %w", p.folder.id, err)
	}
	p.source.Store(&source)
	return nil
}

// Matches reports whether all whole chunks of the partial file equal the first chunks of manifest m. After
// true, the caller calls Continue and appends the chunk at Offset. After false, it must call BeginManifest.
// If the algorithms differ, Matches reads the chunks back. If they match, the journal gets the hashes of m.
func (p *Part) Matches(ctx context.Context, m *Manifest) (bool, error) {
	size := p.Source().Size
	if p.offset > m.size || size >= 0 && size != m.size {
		return false, nil
	}
	whole := p.offset - p.pending()
	if !p.ended() {
		whole = whole / ChunkSize * ChunkSize
	} else if whole != m.size {
		return false, nil
	}
	// The journal is complete once the pipeline is idle.
	if err := p.drain(); err != nil {
		return false, err
	}
	if p.ChunkAlgorithm() != m.algorithm {
		return p.adoptHashes(ctx, m, whole)
	}
	for n := int64(0); n*ChunkSize < whole; n++ {
		want, err := m.Hash(n)
		if err != nil {
			return false, err
		}
		if have, err := p.journal.at(n); err != nil || have != want {
			return false, err
		}
	}
	return true, nil
}

// Continue keeps the whole chunks of the partial file as the first chunks of the image from source,
// drops an incomplete chunk, and records the source durably. Matches must have returned true before.
// The errors are those of Begin, but only the remaining bytes need space.
func (p *Part) Continue(source PartSource) error {
	if c := p.current; c != nil {
		p.offset -= int64(len(c.data))
		c.data = c.buf[:0]
	}
	err := p.checkSize(source)
	if errors.Is(err, ErrNoSpace) { // some of the bytes are already on the disk
		err = p.checkSpace(min(source.Size-p.offset, source.data()-p.Written()) + model.SpaceBeside(source.Size))
	}
	if err == nil {
		err = p.folder.recordSource(source)
	}
	if err != nil {
		return fmt.Errorf("continue partial file of %s: %w", p.folder.id, err)
	}
	p.source.Store(&source)
	return nil
}

// ReadFrom appends the bytes of r until r ends or fails, and returns their number. The appended bytes
// are kept: after a read error of r, the next ReadFrom continues at Offset. Errors of r are wrapped.
// Other errors are ErrNoSpace, ErrTooLarge or a *FormatError about the first bytes. After these
// other errors the Part can only be closed or discarded.
func (p *Part) ReadFrom(r io.Reader) (int64, error) {
	start := p.offset
	if p.ended() {
		return 0, errEnded
	}
	for {
		if err := p.fill(); err != nil {
			return p.offset - start, err
		}
		n, err := r.Read(p.current.buf[len(p.current.data):])
		p.current.data = p.current.buf[:len(p.current.data)+n]
		p.offset += int64(n)
		if err := p.checkImageSize(p.offset); err != nil {
			return p.offset - start, err
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

// NewChunkBuffer returns a buffer of ChunkSize bytes with the alignment that AppendChunk requires.
func NewChunkBuffer() []byte { return alignedBuffer(ChunkSize) }

// AppendChunk appends buf[:length] as the next chunk. The caller must have verified that the chunk has the
// hash. If the hash does not have the algorithm of the journal, another hash is computed. Only the last chunk of an
// image may be shorter than ChunkSize. The last ReadFrom must have ended at the end of a chunk.
//
// AppendChunk keeps buf and returns another buffer, even with an error. buf must be from
// NewChunkBuffer or AppendChunk. The errors are those of ReadFrom.
func (p *Part) AppendChunk(buf []byte, length int64, hash ChunkHash) ([]byte, error) {
	if len(buf) != ChunkSize || uintptr(unsafe.Pointer(&buf[0]))%directAlign != 0 {
		return buf, errors.New("append chunk: the buffer is not one of NewChunkBuffer")
	}
	c, err := p.next(length)
	if err != nil {
		return buf, err
	}
	c.buf, buf = buf, c.buf
	c.data, c.hash = c.buf[:length], hash
	return buf, p.flush()
}

// AppendZeros appends a chunk of zeros, under the conditions of AppendChunk.
func (p *Part) AppendZeros(length int64) error {
	c, err := p.next(length)
	if err != nil {
		return err
	}
	c.data = zeros[:length]
	return p.flush()
}

// next makes an empty chunk the current chunk. The caller fills all length bytes of it.
func (p *Part) next(length int64) (*chunk, error) {
	size := p.Source().Size
	end := p.offset + length
	switch {
	case length <= 0 || length > ChunkSize:
		return nil, fmt.Errorf("append chunk: it has %d bytes", length)
	case p.pending() > 0:
		return nil, errors.New("append chunk: the chunk before it is not full")
	case p.ended():
		return nil, fmt.Errorf("append chunk: %w", errEnded)
	case size >= 0 && (end > size || length < ChunkSize && end < size):
		return nil, fmt.Errorf("append chunk: it ends at %d in an image of %d bytes", end, size)
	}
	if err := errors.Join(p.checkImageSize(end), p.fill()); err != nil {
		return nil, err
	}
	p.offset = end
	return p.current, nil
}

// flush puts the current chunk into the pipeline. It checks the format of the first chunk, and then
// the size: an error page of a web server also has an odd size, and "a web page" is the more useful
// message.
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
			if err := CheckSize(size); err != nil {
				return err
			}
		}
	}
	p.current = nil
	p.pipeline.put(c)
	return nil
}

// ReadAt reads bytes back that were appended before. It waits until they are written.
func (p *Part) ReadAt(buf []byte, offset int64) (read int, err error) {
	if offset < 0 || offset >= p.offset {
		return 0, io.EOF
	}
	if short := int64(len(buf)) - (p.offset - offset); short > 0 {
		read, err = p.ReadAt(buf[:int64(len(buf))-short], offset)
		return read, cmp.Or(err, io.EOF)
	}
	if begin := p.offset - p.pending(); offset+int64(len(buf)) > begin { // the last bytes are in no file yet
		from := max(offset, begin)
		read = copy(buf[from-offset:], p.current.data[from-begin:])
		buf = buf[:from-offset]
	}
	if offset+int64(len(buf)) > p.offset-(pipelineDepth+1)*ChunkSize {
		if err := p.drain(); err != nil {
			return 0, err
		}
	}
	size := int(offset%directAlign) + len(buf)
	blocks := alignedBuffer(min(ChunkSize, (size+directAlign-1)&^(directAlign-1)))
	for end := offset + int64(len(buf)); offset < end; {
		begin := offset &^ (directAlign - 1)
		b, err := readDirect(p.file, blocks, begin, min(begin+int64(len(blocks)), end))
		if err != nil {
			return 0, err
		}
		n := copy(buf, b[offset-begin:])
		buf, offset, read = buf[n:], offset+int64(n), read+n
	}
	return read, nil
}

// Close closes the partial file and keeps it for a later resume. After Commit or Discard it does
// nothing.
func (p *Part) Close() error {
	if p.pipeline == nil {
		return nil
	}
	err := p.pipeline.close() // writes the full chunks that were appended
	p.pipeline = nil
	return errors.Join(err, p.close())
}

// Discard closes and removes the partial file.
func (p *Part) Discard() error {
	if p.pipeline != nil {
		p.pipeline.abort()
		p.pipeline = nil
	}
	err := p.close()
	for _, name := range partFiles {
		err = errors.Join(err, ignoreMissing(p.folder.disk.root.Remove(p.folder.file(name))))
	}
	return err
}

// partWriter writes the chunks of a partial file and its journal. Two goroutines of the pipeline call
// writeHash and writeChunk. Only the goroutine of the Part calls the other methods.
type partWriter struct {
	partFolder
	// source is nil if the record has no source: the bytes in the file are not used then. It is
	// atomic, because SetSize replaces it while writeChunk reads it.
	source  atomic.Pointer[PartSource]
	file    *os.File
	direct  bool
	journal chunkFile

	manifest ManifestHash // of all chunks
	written  atomic.Int64 // bytes of chunks that are not all zero
	unsynced int64        // bytes written or shared since the last sync

	shareAlign int64            // alignment of blocks that the file can share; 0: it cannot share blocks
	unshared   map[*Reader]bool // images of which an attempt to share blocks failed
	resizing   sync.Mutex       // held while the file is truncated or shares blocks: both depend on its size
}

// Source returns the source of the partial file's bytes. Zero means that Begin must come first.
func (w *partWriter) Source() PartSource {
	if source := w.source.Load(); source != nil {
		return *source
	}
	return PartSource{}
}

// ModTime returns the time of the last write to the file.
func (w *partWriter) ModTime() (time.Time, error) {
	info, err := w.file.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Written returns the bytes of all chunks that are not all zero: the space that the file uses. It is
// safe for concurrent use.
func (w *partWriter) Written() int64 { return w.written.Load() }

// ChunkAlgorithm returns the algorithm of the chunk hashes. Begin, BeginManifest and Matches change it.
func (w *partWriter) ChunkAlgorithm() ChunkAlgorithm { return w.journal.algorithm }

func (w *partWriter) open() (err error) {
	root := w.folder.disk.root
	if err := removeLinked(root, w.folder.file(partFile)); err != nil {
		return err
	}
	w.file, w.direct, err = openDirect(root, w.folder.file(partFile), os.O_RDWR|os.O_CREATE)
	if err != nil {
		return err
	}
	if w.direct {
		w.shareAlign = shareAlign(w.file)
	}
	w.journal, err = openChunks(root, w.folder.file(partChunksFile))
	if err != nil {
		w.file.Close()
	}
	return err
}

// reset resets the state for the first chunk.
func (w *partWriter) reset() {
	w.manifest, w.unsynced = NewManifestHash(w.journal.algorithm), 0
	w.written.Store(0)
}

// syncEvery limits the number of bytes that are lost after a power failure.
const syncEvery = 256 << 20

// writeHash writes the hash of a chunk to the journal. It computes the hash if it is not known. A
// goroutine of the pipeline calls it before or after writeChunk: a hash without its bytes causes no
// harm, because a resume compares it with the bytes on the disk.
func (w *partWriter) writeHash(c *chunk) error {
	if !c.zero {
		w.written.Add(int64(len(c.data)))
	}
	hash := c.hash
	if hash.algorithm != w.journal.algorithm {
		hash = w.journal.algorithm.hash(c.data, c.zero)
	}
	w.manifest.add(hash)
	if c.saved {
		return nil
	}
	return w.journal.set(c.n, hash)
}

// adoptHashes reads the first size bytes of the file back, and reports whether they match manifest m. If
// so, it replaces the hashes in the journal by the hashes of m, which are of another algorithm.
func (w *partWriter) adoptHashes(ctx context.Context, m *Manifest, size int64) (bool, error) {
	r := &chunkReader{f: w.file, direct: w.direct, size: size, holes: extents{f: w.file}}
	c := &chunk{buf: NewChunkBuffer()}
	for at := int64(0); at < size; at += ChunkSize {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		want, err := m.Hash(at / ChunkSize)
		if err == nil {
			err = r.read(c, at)
		}
		if err != nil || !want.Matches(c.data) {
			return false, err
		}
	}
	if err := w.journal.reset(m.algorithm); err != nil {
		return false, err
	}
	w.manifest = NewManifestHash(m.algorithm)
	for n := int64(0); n*ChunkSize < size; n++ {
		hash, err := m.Hash(n)
		if err == nil {
			err = w.journal.set(n, hash)
		}
		if err != nil {
			return false, err
		}
		w.manifest.add(hash)
	}
	return true, nil
}

// writeChunk writes a chunk, unless its bytes are already in the file. For a chunk of zeros it extends the
// file instead, which creates a hole. A goroutine of the pipeline calls it.
func (w *partWriter) writeChunk(c *chunk) error {
	switch {
	case c.saved:
		return nil
	case c.inPlace: // shared blocks need metadata, so the space is checked below
	case c.zero:
		return w.extend(c.n*ChunkSize + int64(len(c.data)))
	default:
		// Direct I/O writes whole blocks; finish truncates the file to its size.
		padded := (len(c.data) + directAlign - 1) &^ (directAlign - 1)
		clear(c.buf[len(c.data):padded])
		if _, err := w.file.WriteAt(c.buf[:padded], c.n*ChunkSize); err != nil {
			return fmt.Errorf("write %s: %w", partFile, w.wrapNoSpace(noSpace(err)))
		}
	}
	if err := w.checkSpace(model.SpaceBeside(c.n * ChunkSize)); err != nil {
		return w.wrapNoSpace(err)
	}
	w.unsynced += int64(len(c.data))
	if w.unsynced < syncEvery && (w.direct || w.unsynced < maxCached) {
		return nil
	}
	w.unsynced = 0
	return errors.Join(w.sync(), w.journal.f.Sync())
}

// extend makes the file at least size bytes long. It does not shorten the file, because a later chunk may
// already share blocks.
func (w *partWriter) extend(size int64) error {
	w.resizing.Lock()
	defer w.resizing.Unlock()
	info, err := w.file.Stat()
	if err != nil || info.Size() >= size {
		return err
	}
	return w.file.Truncate(size)
}

// maxUnusable is the most free space that is assumed to be unusable: a full file system may report such space. If it
// reports more, a quota is the cause, and more free space would not help.
const maxUnusable = 64 << 20

// wrapNoSpace replaces an ErrNoSpace by a *NoSpaceError with the space that the whole image needs,
// because the file is removed after this error: at once, or when another disk has the copy. Some file systems
// need more space than they report. Therefore Need is at least the written bytes, the unusable space and one chunk:
// with less, the next attempt would fail in the same way, again and again.
func (w *partWriter) wrapNoSpace(err error) error {
	if !errors.Is(err, ErrNoSpace) {
		return err
	}
	e := &NoSpaceError{}
	if space, err := w.folder.disk.Space(); err == nil {
		e.Free = max(0, space.Free-w.reserve)
	}
	e.Need = w.written.Load() + min(e.Free, maxUnusable) + ChunkSize
	if source := w.source.Load(); source != nil && source.Size >= 0 {
		e.Need = max(e.Need, source.need())
	}
	return e
}

func (w *partWriter) sync() error {
	if !w.direct {
		return dropCache(w.file)
	}
	if err := unix.Fdatasync(int(w.file.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", partFile, noSpace(err))
	}
	return nil
}

func (w *partWriter) close() error {
	return errors.Join(w.file.Close(), w.journal.f.Close())
}
