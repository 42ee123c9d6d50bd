package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// FetchChunk reads chunk n, which has the given hash, into buf and returns its length. buf has
// ChunkSize bytes and the alignment of NewChunkBuffer.
type FetchChunk func(ctx context.Context, n int64, hash ChunkHash, buf []byte) (int, error)

// Repair repairs the image of a failed copy, or of a ready copy with a media error (IsMediaError). It
// reads the image once. A chunk that cannot be read or does not match the manifest of the copy is
// fetched unless it is zeros, compared with the manifest, and rewritten in place. The returned copy is Ready if the whole file then has the
// established digest. If want is not zero, the file must also have the digest want. Repair calls progress with the length
// of each chunk.
//
// Readers may have the image open. Errors include ErrNoManifest: the copy has no usable manifest;
// ErrModified: another process writes to the file; *ChecksumError: all chunks match but the whole
// file does not, so the manifest is wrong and is not used again.
//
// After any error the copy is not ready, unless it was ready and no damaged chunk was found. Repaired
// chunks stay repaired.
func (d *Disk) Repair(ctx context.Context, id ident.ID, want ident.Digest, fetch FetchChunk, progress func(int64)) (model.Copy, error) {
	r, err := openRepair(d.image(id), want)
	if err != nil {
		return model.Copy{}, fmt.Errorf("repair %s: %w", id, err)
	}
	r.fetch = fetch
	err = r.run(ctx, progress)
	if err == nil {
		err = r.recordSuccess()
	} else {
		err = errors.Join(err, r.recordProgress())
	}
	if err = errors.Join(err, r.close()); err != nil {
		return model.Copy{}, fmt.Errorf("repair %s: %w", id, err)
	}
	c := d.Stat(id)
	if c.State != model.Ready {
		return c, fmt.Errorf("repair: %s", c)
	}
	return c, nil
}

// IsMediaError reports whether err is a failure of the disk itself. Where a disk cannot read, it may
// still be able to write.
func IsMediaError(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EREMOTEIO) ||
		errors.Is(err, unix.EILSEQ) || errors.Is(err, unix.EBADMSG)
}

// repair is one run of Repair over an image.
type repair struct {
	folder    imageFolder
	want      ident.Digest
	fetch     FetchChunk
	manifest  *Manifest
	record    Record       // the record at the start, with the findings of the run
	wasFailed string       // Record.Failed on the disk
	reader    *chunkReader // its evidence is updated after each write of the repair
	start     Evidence
	out       *os.File // nil before the first write, so that an image without damage is never opened for writing
	back      []byte   // buffer for reading a chunk back
}

func openRepair(f imageFolder, want ident.Digest) (*repair, error) {
	d := f.disk
	c := d.Stat(f.id)
	if c.State != model.Failed && c.State != model.Ready {
		return nil, fmt.Errorf("it is %s: only a failed or ready copy can be repaired", c.State)
	}
	if c.SHA512.IsZero() {
		return nil, errors.New("it has no established digest")
	}
	if want.Algorithm() == ident.SHA512 && want != c.SHA512 {
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
	if err := r.checkUnchanged(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// checkUnchanged returns an error if the file is not the one in the record, or if another process can
// write to it.
func (r *repair) checkUnchanged() error {
	if e := r.record.Evidence; e == nil || *e != r.reader.before {
		return errors.New("the file changed since it was last verified")
	}
	return r.reader.checkStable()
}

func (r *repair) close() error {
	return errors.Join(r.closeOut(), r.reader.close(), r.manifest.Close())
}

// run repairs every chunk, makes the file durable and checks its digest.
func (r *repair) run(ctx context.Context, progress func(int64)) error {
	h, consumers := newHashes(r.want.Algorithm() == ident.SHA256 || !r.record.SHA256.IsZero())
	p := newPipeline(consumers...)
	err := errors.Join(r.repairChunks(ctx, p, progress), p.close())
	if err == nil {
		err = errors.Join(r.reader.sync(), r.closeOut(), waitForTick(r.reader.f))
	}
	if err == nil {
		err = r.reader.checkStable()
	}
	if err != nil {
		return err
	}
	sum512, sum256 := h.digests()
	if err := matches(r.record.SHA512, sum512, sum256); err != nil {
		r.record.ManifestDigest = ident.Digest{}
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

// repairChunk reads chunk n into c. If the chunk does not match the manifest, repairChunk writes the
// right bytes to the file. c contains the right bytes afterwards.
func (r *repair) repairChunk(ctx context.Context, c *chunk, n int64) error {
	want, err := r.manifest.Hash(n)
	if err != nil {
		return err
	}
	err = r.reader.read(c, n*ChunkSize)
	if err != nil && !IsMediaError(err) || err == nil && want.Matches(c.data) {
		return err
	}
	if err == nil && r.record.Failed == "" { // a ready copy is damaged: nobody may count on it or read it meanwhile
		if err := r.recordDamage(fmt.Sprintf("damaged: chunk %d does not match its hash", n)); err != nil {
			return err
		}
	}
	length := r.manifest.ChunkLength(n)
	if want.matchesZeros(length) {
		c.data = zeros[:length]
		return r.write(c, want)
	}
	got, err := r.fetch(ctx, n, want, c.buf)
	if err != nil {
		return fmt.Errorf("fetch chunk %d: %w", n, err)
	}
	if int64(got) != length || !want.Matches(c.buf[:length]) {
		return fmt.Errorf("fetch chunk %d: received %d bytes that do not match its hash (its length is %d)", n, got, length)
	}
	c.data = c.buf[:length]
	return r.write(c, want)
}

// write writes chunk c to its place and reads it back, because the disk has failed at this place before. A
// direct read first writes the cached pages of the chunk to the disk. write stores the new evidence of the file. It
// returns ErrModified if the file changed before the write, or if its size changed.
func (r *repair) write(c *chunk, want ChunkHash) error {
	if _, err := r.reader.unchanged(); err != nil {
		return err
	}
	err := r.writeInPlace(c)
	info, statErr := r.reader.f.Stat()
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	if info.Size() != r.reader.size {
		return errors.Join(err, ErrModified)
	}
	r.reader.before = evidenceOf(info)
	if err == nil {
		err = r.readBack(c, want)
	}
	if err != nil && r.record.Failed == "" && r.reader.before != r.start { // of a ready copy: the chunk may have any bytes now
		r.record.Failed = fmt.Sprintf("damaged: chunk %d could not be rewritten", c.n)
	}
	if err != nil {
		return fmt.Errorf("write chunk %d: %w", c.n, noSpace(err))
	}
	return nil
}

// readBack reads chunk c from the disk, and compares it with its hash.
func (r *repair) readBack(c *chunk, want ChunkHash) error {
	if r.back == nil {
		r.back = NewChunkBuffer()
	}
	back, err := readDirect(r.reader.f, r.back, c.n*ChunkSize, r.reader.size)
	if err != nil {
		return err
	}
	if !want.Matches(back) {
		return errors.New("the disk does not return the bytes that were written")
	}
	return nil
}

// recordDamage marks a ready copy as failed, durably.
func (r *repair) recordDamage(reason string) error {
	now, _, err := r.folder.readRecord()
	if err != nil {
		return err
	}
	r.record.Failed = reason
	if err := r.folder.markFailed(now, reason, r.reader.before); err != nil {
		return err
	}
	r.wasFailed = reason
	return nil
}

// recordSuccess marks the copy as ready. It keeps changes of the record that were made during the
// repair.
func (r *repair) recordSuccess() error {
	now, _, err := r.folder.readRecord()
	if err != nil {
		return err
	}
	if now.SHA512 != r.record.SHA512 || now.ManifestDigest != r.manifest.Digest() {
		return errors.New("the record of another image replaced its record")
	}
	now.SHA256, now.Failed, now.VerifiedAt = r.record.SHA256, "", time.Now().UTC()
	now.ReadBackAt = now.VerifiedAt
	return r.folder.markReady(now, r.want, r.reader.before)
}

// recordProgress updates the evidence in the record after a failed run: only this repair changed the
// file, so the next repair need not verify the file again. If there is nothing new to record,
// recordProgress does not write the record.
func (r *repair) recordProgress() error {
	newFailure := r.record.Failed != r.wasFailed
	if r.reader.before == r.start && r.record.ManifestDigest == r.manifest.Digest() && !newFailure {
		return nil
	}
	if errors.Join(r.closeOut(), r.reader.sync(), waitForTick(r.reader.f), r.reader.checkStable()) != nil {
		// The content is not known, so that Verify must run next.
		return r.folder.disk.Update(r.folder.id, func(now *Record) { now.Evidence = nil })
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

// writeInPlace writes c, or punches a hole for zeros. It never extends the file.
func (r *repair) writeInPlace(c *chunk) (err error) {
	if r.out == nil {
		if r.out, err = openRegular(r.folder.disk.root, r.folder.file(imageFile), os.O_RDWR); err != nil {
			return err
		}
	}
	offset := c.n * ChunkSize
	if allZero(c.data) {
		padded := (int64(len(c.data)) + directAlign - 1) &^ (directAlign - 1)
		err := unix.Fallocate(int(r.out.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, padded)
		if err == nil {
			return nil
		}
		clear(c.buf) // the file system does not support holes: write zeros
	}
	_, err = r.out.WriteAt(c.buf[:len(c.data)], offset)
	return err
}

// closeOut closes the file that was opened for writing. It may be called several times.
func (r *repair) closeOut() error {
	if r.out == nil {
		return nil
	}
	err := r.out.Close()
	r.out = nil
	return err
}
