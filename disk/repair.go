package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// FetchChunk reads chunk n, whose hash is given, into buf and returns its length. buf has
// ChunkSize bytes and the alignment of NewChunkBuffer.
type FetchChunk func(ctx context.Context, n int64, hash ChunkHash, buf []byte) (int, error)

// Repair reads the image of a failed copy once, or of a ready copy with a media error
// (IsMediaError). Every chunk that does not match the manifest of the copy, or cannot be
// read, is fetched, checked against the manifest and rewritten in place. The returned copy is
// Ready if the whole file then has the established digest, and the digest want unless that is
// zero. Repair calls progress with the bytes of each chunk.
//
// Readers may have the image open. Errors include: ErrNoManifest, the copy has no usable
// manifest; ErrModified, another process writes to the file; *ChecksumError, all chunks match
// but the whole file does not, so the manifest is wrong and is not used again.
//
// After any error a failed copy is not ready, nor is a ready copy that turned out to be
// damaged. Chunks that were repaired stay repaired.
func (d *Disk) Repair(ctx context.Context, id ID, want Digest, fetch FetchChunk, progress func(int64)) (Copy, error) {
	r, err := openRepair(d.image(id), want)
	if err != nil {
		return Copy{}, fmt.Errorf("repair %s: %w", id, err)
	}
	r.fetch = fetch
	err = r.run(ctx, progress)
	if err == nil {
		err = r.recordSuccess()
	} else {
		err = errors.Join(err, r.recordProgress())
	}
	if err = errors.Join(err, r.close()); err != nil {
		return Copy{}, fmt.Errorf("repair %s: %w", id, err)
	}
	c := d.Stat(id)
	if c.State != Ready {
		return c, fmt.Errorf("repair: %s", c)
	}
	return c, nil
}

// IsMediaError reports whether err is a failure of the disk itself. The disk may be able to
// store other bytes where it cannot read these.
func IsMediaError(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EREMOTEIO) ||
		errors.Is(err, unix.EILSEQ) || errors.Is(err, unix.EBADMSG)
}

// repair is one run over an image.
type repair struct {
	folder    imageFolder
	want      Digest
	fetch     FetchChunk
	manifest  *Manifest
	record    Record       // as it was at the start, with what the run finds out
	wasFailed string       // record.Failed at the start
	reader    *chunkReader // its evidence is updated after each write of our own
	start     Evidence
	writer    imageWriter
}

func openRepair(f imageFolder, want Digest) (*repair, error) {
	d := f.disk
	c := d.Stat(f.id)
	if c.State != Failed && c.State != Ready || c.SHA512.IsZero() {
		return nil, fmt.Errorf("it is %s and has no established digest", c.State)
	}
	if want.Algorithm() == SHA512 && want != c.SHA512 {
		return nil, fmt.Errorf("it never was the declared image: %w", &ChecksumError{Want: want, Got: c.SHA512})
	}
	m, err := d.Manifest(f.id)
	if err != nil {
		return nil, err
	}
	r := &repair{folder: f, want: want, manifest: m}
	if r.record, _, err = f.readRecord(); err == nil {
		r.reader, err = openChunkReader(d.root, f.file(imageFile))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	r.start, r.wasFailed = r.reader.before, r.record.Failed
	r.writer = imageWriter{root: d.root, name: f.file(imageFile)}
	if err := r.checkUnchanged(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// checkUnchanged makes sure that the file is the one in the record, and that no other process
// can write to it.
func (r *repair) checkUnchanged() error {
	if e := r.record.Evidence; e == nil || *e != r.reader.before {
		return errors.New("the file changed since it was last verified")
	}
	return r.reader.checkStable()
}

func (r *repair) close() error {
	return errors.Join(r.writer.close(), r.reader.close(), r.manifest.Close())
}

// run repairs every chunk, makes the file durable and checks its digest.
func (r *repair) run(ctx context.Context, progress func(int64)) error {
	h, consumers := newHashes(r.want.Algorithm() == SHA256 || !r.record.SHA256.IsZero())
	p := newPipeline(consumers...)
	err := errors.Join(r.repairChunks(ctx, p, progress), p.close())
	if err == nil {
		err = errors.Join(r.reader.sync(), r.writer.close(), waitForTick(r.reader.f))
	}
	if err == nil {
		err = r.reader.checkStable()
	}
	if err != nil {
		return err
	}
	sum512, sum256 := h.digests()
	if err := matches(r.record.SHA512, sum512, sum256); err != nil {
		r.record.ManifestDigest = Digest{}
		r.record.Failed = fmt.Sprintf("damaged: its chunks match its manifest, but %v", err)
		return err
	}
	r.record.SHA256 = sum256
	return matches(r.want, sum512, sum256)
}

func (r *repair) repairChunks(ctx context.Context, p *pipeline, progress func(int64)) error {
	for n := range r.manifest.Chunks() {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		c, err := p.get()
		if err == nil {
			err = r.repairChunk(ctx, c, n)
		}
		if err != nil {
			return err
		}
		length := int64(len(c.data))
		p.put(c)
		progress(length)
	}
	return nil
}

// repairChunk reads chunk n into c. If it does not match the manifest, it writes the right
// bytes to the file and leaves them in c.
func (r *repair) repairChunk(ctx context.Context, c *chunk, n int64) error {
	want, err := r.manifest.Hash(n)
	if err != nil {
		return err
	}
	err = r.reader.read(c, n*ChunkSize)
	if err != nil && !IsMediaError(err) || err == nil && HashChunk(c.data) == want {
		return err
	}
	if err == nil && r.record.Failed == "" { // a ready copy is damaged: it fails, unless the run succeeds
		r.record.Failed = fmt.Sprintf("damaged: chunk %d does not match its hash", n)
	}
	length := r.manifest.ChunkLength(n)
	if zero := zeros[:length]; want == hashBytes(zero, true) {
		c.data = zero
		return r.write(c, want)
	}
	got, err := r.fetch(ctx, n, want, c.buf)
	if err != nil {
		return fmt.Errorf("fetch chunk %d: %w", n, err)
	}
	if int64(got) != length || HashChunk(c.buf[:length]) != want {
		return fmt.Errorf("fetch chunk %d: %d bytes were received that are not its %d bytes", n, got, length)
	}
	c.data = c.buf[:length]
	return r.write(c, want)
}

// write writes c to its place and reads it back: the disk has failed here once. The evidence
// must change by this write only. A write of another process in the meantime is ErrModified.
func (r *repair) write(c *chunk, want ChunkHash) error {
	if _, err := r.reader.unchanged(); err != nil {
		return err
	}
	err := r.writer.write(c)
	info, statErr := r.reader.f.Stat()
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	if info.Size() != r.reader.size {
		return errors.Join(err, ErrModified)
	}
	r.reader.before = evidenceOf(info)
	if err != nil {
		return fmt.Errorf("write chunk %d: %w", c.n, noSpace(err))
	}
	back, err := readDirect(r.reader.f, r.writer.readBuffer(), c.n*ChunkSize, r.reader.size)
	if err != nil {
		return err
	}
	if HashChunk(back) != want {
		return fmt.Errorf("write chunk %d: the disk does not return the bytes that were written", c.n)
	}
	return nil
}

// recordSuccess marks the copy as ready, and keeps what was recorded meanwhile.
func (r *repair) recordSuccess() error {
	now, _, err := r.folder.readRecord()
	if err != nil {
		return err
	}
	if now.SHA512 != r.record.SHA512 || now.ManifestDigest != r.manifest.Digest() {
		return errors.New("its record was replaced by that of another image")
	}
	now.SHA256, now.Failed, now.VerifiedAt = r.record.SHA256, "", time.Now().UTC()
	return r.folder.markReady(now, r.want, r.reader.before)
}

// recordProgress updates the evidence in the record after a run that failed: the file has
// changed by our own writes only, so the next repair need not verify it again. If there is
// nothing new to record, it does not write the record.
func (r *repair) recordProgress() error {
	newFailure := r.record.Failed != r.wasFailed
	if r.reader.before == r.start && r.record.ManifestDigest == r.manifest.Digest() && !newFailure {
		return nil
	}
	if errors.Join(r.writer.close(), r.reader.sync(), waitForTick(r.reader.f), r.reader.checkStable()) != nil {
		return nil // the content is not known, so the record must become invalid: Verify is next
	}
	if !newFailure {
		return r.folder.disk.Update(r.folder.id, r.updateRecord)
	}
	now, _, err := r.folder.readRecord()
	if err != nil {
		return err
	}
	r.updateRecord(&now)
	return r.folder.markFailed(now, r.record.Failed, r.reader.before)
}

func (r *repair) updateRecord(now *Record) {
	now.Evidence, now.Failed, now.ManifestDigest = &r.reader.before, r.record.Failed, r.record.ManifestDigest
}

// imageWriter writes chunks of an existing image in place. It opens the file for the first
// write: an image without damage is not opened for writing at all.
type imageWriter struct {
	root             *os.Root
	name             string
	direct, buffered *os.File // for direct I/O where possible; through the page cache
	spare            []byte
}

// write writes c, or punches a hole for zeros. It never makes the file longer.
func (w *imageWriter) write(c *chunk) error {
	f, err := w.open(len(c.data)%directAlign == 0)
	if err != nil {
		return err
	}
	offset := c.n * ChunkSize
	if allZero(c.data) {
		padded := (int64(len(c.data)) + directAlign - 1) &^ (directAlign - 1)
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, padded)
		if err == nil {
			return nil
		}
		clear(c.buf) // no holes on this file system: write zeros
	}
	_, err = f.WriteAt(c.buf[:len(c.data)], offset)
	return err
}

// open returns the file to write to. A chunk whose length is not aligned, the end of a file,
// cannot be written by direct I/O.
func (w *imageWriter) open(aligned bool) (*os.File, error) {
	f, open := &w.buffered, openRegular
	if aligned {
		f, open = &w.direct, func(root *os.Root, name string, flag int) (*os.File, error) {
			f, _, err := openDirect(root, name, flag)
			return f, err
		}
	}
	if *f != nil {
		return *f, nil
	}
	var err error
	*f, err = open(w.root, w.name, os.O_RDWR)
	return *f, err
}

// readBuffer returns the buffer for reading a chunk back.
func (w *imageWriter) readBuffer() []byte {
	if w.spare == nil {
		w.spare = NewChunkBuffer()
	}
	return w.spare
}

// close closes the files. It may be called again.
func (w *imageWriter) close() error {
	var err error
	for _, f := range []**os.File{&w.direct, &w.buffered} {
		if *f != nil {
			err = errors.Join(err, (*f).Close())
			*f = nil
		}
	}
	return err
}
