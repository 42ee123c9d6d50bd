package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// FetchChunk puts the bytes of chunk n, which have the sum, into buf, which is aligned
// and ChunkSize long, and returns how many they are.
type FetchChunk func(ctx context.Context, n int64, sum ChunkHash, buf []byte) (int, error)

// Repair reads the image of a failed copy once, or of a ready one that is Unreadable, and
// replaces in place the chunks that are not as its manifest says, or cannot be read, by
// what fetch returns, if that has the sum. When the whole then has the established digest,
// and want where that is not zero, the copy returned is ready.
//
// It needs the manifest of the copy: ErrNoManifest. The image may be in use
// by readers; ErrChanging says that somebody writes to it. A *ChecksumError says that
// the chunks are right and the whole is not: the manifest is then worth nothing and
// not named any more. After any error a copy that had failed is not ready, nor one that
// turned out to be wrong, and what was repaired stays. progress is called with the bytes of each chunk.
func (d *Disk) Repair(ctx context.Context, id ID, want Digest, fetch FetchChunk, progress func(int64)) (Copy, error) {
	r, err := d.openRepair(id, want)
	if err != nil {
		return Copy{}, fmt.Errorf("repair %s: %w", id, err)
	}
	r.fetch = fetch
	err = r.run(ctx, progress)
	if err == nil {
		err = r.vouch()
	} else {
		err = errors.Join(err, r.giveUp())
	}
	if err = errors.Join(err, r.close()); err != nil {
		return Copy{}, fmt.Errorf("repair %s: %w", id, err)
	}
	c := d.Stat(id)
	if c.State != Ready {
		return c, fmt.Errorf("repair %s: it is %s after all: %s", id, c.State, c.Message)
	}
	return c, nil
}

// repair is one pass over an image.
type repair struct {
	disk     *Disk
	id       ID
	want     Digest
	fetch    FetchChunk
	manifest *Manifest
	named    Digest // of the manifest
	record   Record
	was      string       // record.Failed when it began
	source   *imageSource // its evidence follows our own writes, and nobody else's
	began    Evidence
	place    placer
}

func (d *Disk) openRepair(id ID, want Digest) (*repair, error) {
	c := d.Stat(id)
	if c.State != Failed && c.State != Ready || c.SHA512.IsZero() {
		return nil, fmt.Errorf("it is %s, of which is not known what it was", c.State)
	}
	if want.Algorithm() == SHA512 && want != c.SHA512 {
		return nil, fmt.Errorf("it was never the image that is wanted: %w", &ChecksumError{Want: want, Got: c.SHA512})
	}
	m, err := d.Manifest(id)
	if err != nil {
		return nil, err
	}
	r := &repair{disk: d, id: id, want: want, manifest: m, named: c.ManifestDigest}
	if r.record, _, err = d.readRecord(id); err == nil {
		r.source, err = openSource(d.root, id.file(imageFile))
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	r.began, r.was = r.source.before, r.record.Failed
	r.place = placer{root: d.root, name: id.file(imageFile)}
	if err := r.unchanged(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// unchanged makes sure that the file is the one that failed, or is ready, and that nobody
// else is about to change it.
func (r *repair) unchanged() error {
	if of := r.record.Evidence; of == nil || *of != r.source.before {
		return errors.New("it changed since it was last looked into")
	}
	return r.source.settled()
}

func (r *repair) close() error {
	return errors.Join(r.place.close(), r.source.close(), r.manifest.Close())
}

// run makes every chunk right and the file durable, and checks the whole.
func (r *repair) run(ctx context.Context, progress func(int64)) error {
	h, consumers := newHashes(r.want.Algorithm() == SHA256 || !r.record.SHA256.IsZero())
	p := newPipeline(consumers...)
	err := errors.Join(r.pour(ctx, p, progress), p.close())
	if err == nil {
		err = errors.Join(r.source.sync(), r.place.close(), rest(r.source.f))
	}
	if err == nil {
		err = r.source.settled()
	}
	if err != nil {
		return err
	}
	sum512, sum256 := h.sums()
	if err := matches(r.record.SHA512, sum512, sum256); err != nil {
		r.record.ManifestDigest = Digest{}
		r.record.Failed = fmt.Sprintf("damaged: its chunks are those of its manifest, but %v", err)
		return err
	}
	r.record.SHA256 = sum256
	return matches(r.want, sum512, sum256)
}

func (r *repair) pour(ctx context.Context, p *pipeline, progress func(int64)) error {
	for n := range r.manifest.Chunks() {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		c, err := p.get()
		if err == nil {
			err = r.right(ctx, c, n)
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

// IsMediaError reports whether err is about the medium of a disk, which may keep other bytes
// where it cannot read these.
func IsMediaError(err error) bool {
	return errors.Is(err, unix.EIO) || errors.Is(err, unix.ENODATA) || errors.Is(err, unix.EREMOTEIO) ||
		errors.Is(err, unix.EILSEQ) || errors.Is(err, unix.EBADMSG)
}

// right fills c with the bytes that chunk n has to have, and makes the file have
// them.
func (r *repair) right(ctx context.Context, c *chunk, n int64) error {
	sum, err := r.manifest.Hash(n)
	if err != nil {
		return err
	}
	err = r.source.read(c, n*ChunkSize)
	if err != nil && !IsMediaError(err) || err == nil && HashChunk(c.data) == sum {
		return err
	}
	if err == nil && r.record.Failed == "" { // until all of it is right
		r.record.Failed = fmt.Sprintf("damaged: chunk %d is not what it was", n)
	}
	length := r.manifest.ChunkLength(n)
	if zero := zeros[:length]; sum == hashBytes(zero, true) {
		c.data = zero
		return r.write(c, sum)
	}
	got, err := r.fetch(ctx, n, sum, c.buf)
	if err != nil {
		return fmt.Errorf("fetch chunk %d: %w", n, err)
	}
	if int64(got) != length || HashChunk(c.buf[:length]) != sum {
		return fmt.Errorf("fetch chunk %d: %d bytes came that are not its %d", n, got, length)
	}
	c.data = c.buf[:length]
	return r.write(c, sum)
}

// write puts c in its place. The disk has failed once here: whether it keeps the
// bytes is looked at, as far as the page cache allows. Nothing that others write in
// the meantime becomes ours by it.
func (r *repair) write(c *chunk, sum ChunkHash) error {
	if _, err := r.source.unchanged(); err != nil {
		return err
	}
	err := r.place.put(c)
	info, statErr := r.source.f.Stat()
	if statErr != nil {
		return errors.Join(err, statErr)
	}
	if info.Size() != r.source.size {
		return errors.Join(err, ErrModified)
	}
	r.source.before = evidenceOf(info)
	if err != nil {
		return fmt.Errorf("write chunk %d: %w", c.n, noSpace(err))
	}
	back, err := readDirect(r.source.f, r.place.buffer(), c.n*ChunkSize, r.source.size)
	if err != nil {
		return err
	}
	if HashChunk(back) != sum {
		return fmt.Errorf("write chunk %d: the disk does not keep what is written to it", c.n)
	}
	return nil
}

// vouch records that the image is right, with what was remembered meanwhile.
func (r *repair) vouch() error {
	now, _, err := r.disk.readRecord(r.id)
	if err != nil {
		return err
	}
	if now.SHA512 != r.record.SHA512 || now.ManifestDigest != r.named {
		return errors.New("its record is that of another image now")
	}
	now.SHA256, now.Failed, now.VerifiedAt = r.record.SHA256, "", time.Now().UTC()
	return r.disk.vouchFor(r.id, now, r.want, r.source.before)
}

// giveUp has the record say that the file is still the same one, as it is after our
// own writes: what is left to repair needs no other look at all of it. If it says
// nothing new, it leaves the record alone.
func (r *repair) giveUp() error {
	failed := r.record.Failed != r.was
	if r.source.before == r.began && r.record.ManifestDigest == r.named && !failed {
		return nil
	}
	if errors.Join(r.place.close(), r.source.sync(), rest(r.source.f), r.source.settled()) != nil {
		return nil // nobody knows what it is: it has to be verified
	}
	if !failed {
		return r.disk.Update(r.id, r.still)
	}
	now, _, err := r.disk.readRecord(r.id)
	if err != nil {
		return err
	}
	r.still(&now)
	return r.disk.fail(r.id, now, r.record.Failed, r.source.before)
}

func (r *repair) still(now *Record) {
	now.Evidence, now.Failed, now.ManifestDigest = &r.source.before, r.record.Failed, r.record.ManifestDigest
}

// placer writes chunks of an image in place. It opens the file when the first one
// comes: an image in which nothing is wrong is not opened for writing at all.
type placer struct {
	root           *os.Root
	name           string
	whole, partial *os.File // past the page cache where that is possible, and through it
	spare          []byte
}

// put writes c, which never makes the file longer, or makes a hole for zeros.
func (p *placer) put(c *chunk) error {
	f, err := p.open(len(c.data)%directAlign == 0)
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
		clear(c.buf)
	}
	_, err = f.WriteAt(c.buf[:len(c.data)], offset)
	return err
}

// open returns the file to write to. What O_DIRECT cannot write, the odd end of a
// file, goes through the page cache.
func (p *placer) open(aligned bool) (*os.File, error) {
	f, open := &p.partial, openImage
	if aligned {
		f, open = &p.whole, openWhole
	}
	if *f != nil {
		return *f, nil
	}
	var err error
	*f, err = open(p.root, p.name, os.O_RDWR)
	return *f, err
}

func openWhole(root *os.Root, name string, flag int) (*os.File, error) {
	f, _, err := openDirect(root, name, flag)
	return f, err
}

// buffer returns room to read a chunk back.
func (p *placer) buffer() []byte {
	if p.spare == nil {
		p.spare = NewChunkBuffer()
	}
	return p.spare
}

// close is for when nothing more is to be written. It may be called again.
func (p *placer) close() error {
	var err error
	for _, f := range []**os.File{&p.whole, &p.partial} {
		if *f != nil {
			err = errors.Join(err, (*f).Close())
			*f = nil
		}
	}
	return err
}
