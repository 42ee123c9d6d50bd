package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ChecksumError says that bytes are not those that were declared or established.
// It is final: the same bytes will not become others.
type ChecksumError struct{ Want, Got Digest }

func (e *ChecksumError) Error() string {
	return fmt.Sprintf("checksum mismatch: want %s, got %s", e.Want, e.Got)
}

// Commit makes the part the image of its folder, if its bytes have the digest
// want (any will do when want is zero) and are of a format that may be kept. On
// a *ChecksumError or *FormatError nothing is left of the part, nor when the disk
// is full before it is durable: it would keep the space that it waits for. After
// any other error a later OpenPart takes it up again. An image that is in use is
// never replaced: *InUseError. Nor is one that came while the part was made, of which
// nobody knows what it is worth.
func (p *Part) Commit(want Digest) (Copy, error) {
	err := p.finish(want)
	if err != nil {
		return Copy{}, fmt.Errorf("commit %s: %w", p.id, err)
	}
	d := p.disk
	var was, r Record // as it is now, with what was remembered while the bytes came
	err = d.Update(p.id, func(now *Record) {
		was = *now
		p.found(now)
		r = *now
	})
	if err != nil {
		return Copy{}, fmt.Errorf("commit %s: %w", p.id, err)
	}
	if err := p.putInPlace(); err != nil {
		_, inUse := errors.AsType[*InUseError](err)
		if inUse || errors.Is(err, fs.ErrExist) { // what is there can only be repaired, or verified, by what it was
			err = errors.Join(err, d.writeRecord(p.id, was))
		}
		return Copy{}, fmt.Errorf("commit %s: %w", p.id, err)
	}
	if err := renameDurably(d.root, p.id.file(partChunksFile), p.id.file(chunksFile)); err != nil {
		return Copy{}, fmt.Errorf("commit %s: %w", p.id, err)
	}
	evidence, err := p.renamed()
	if err == nil {
		err = d.vouchFor(p.id, r, want, evidence)
	}
	if err != nil {
		return Copy{}, fmt.Errorf("commit %s: %w", p.id, err)
	}
	c := d.Stat(p.id)
	if c.State != Ready {
		return c, fmt.Errorf("commit %s: it is %s after all: %s", p.id, c.State, c.Message)
	}
	return c, nil
}

// finish checks the bytes, makes them durable, closes the part and leaves in found
// what was found out.
func (p *Part) finish(want Digest) error {
	err := p.flush()
	if err == nil {
		err = p.pipeline.close()
		p.pipeline = nil
	}
	if err == nil {
		err = p.file.Truncate(p.offset)
	}
	if err == nil {
		err = p.check(want)
	}
	if err == nil {
		err = errors.Join(p.sync(), p.chunks.f.Sync(), p.replaceable(), p.note())
	}
	if refused(err) || errors.Is(err, ErrNoSpace) {
		return errors.Join(err, p.Discard())
	}
	return errors.Join(err, p.Close(), p.closeFiles())
}

// note keeps what the file is when the last byte of it is hashed and written.
func (p *Part) note() error {
	info, err := p.file.Stat()
	if err != nil {
		return err
	}
	p.whole = evidenceOf(info)
	return rest(p.file)
}

// renamed returns what the image is now, if it is still the part: from here on others
// find it and may write to it, or put another file in its place. The rename itself has
// moved its ctime.
func (p *Part) renamed() (Evidence, error) {
	info, err := p.disk.root.Lstat(p.id.file(imageFile))
	if err != nil {
		return Evidence{}, err
	}
	now := evidenceOf(info)
	p.whole.ChangeTime = now.ChangeTime
	if now != p.whole {
		return Evidence{}, fmt.Errorf("%w: %s", ErrModified, p.whole.difference(now))
	}
	return now, nil
}

func refused(err error) bool {
	_, checksum := errors.AsType[*ChecksumError](err)
	_, format := errors.AsType[*FormatError](err)
	return checksum || format
}

func (p *Part) check(want Digest) error {
	if size := p.Source().Size; size >= 0 && size != p.offset {
		return fmt.Errorf("%d of %d bytes are here: %w", p.offset, size, io.ErrUnexpectedEOF)
	}
	sum512, sum256 := p.hashes.sums()
	if err := matches(want, sum512, sum256); err != nil {
		return err
	}
	info, err := p.disk.inspect(p.id.file(partFile), p.options.Format)
	if err != nil {
		return err
	}
	verified := time.Now().UTC()
	p.found = func(r *Record) {
		r.SHA512, r.SHA256, r.Format, r.VirtualSize = sum512, sum256, info.Format, info.VirtualSize
		r.ManifestDigest, r.Size = SHA256.Digest(p.manifest), p.offset
		r.Evidence, r.Failed, r.VerifiedAt = nil, "", verified
	}
	return nil
}

// matches compares what is wanted, if anything, with the digest of its kind.
func matches(want, sum512, sum256 Digest) error {
	got := sum512
	if want.Algorithm() == SHA256 {
		got = sum256
	}
	switch {
	case want.IsZero() || want == got:
		return nil
	case got.IsZero():
		return errors.New("the SHA-256 was not computed") // it says nothing about the bytes
	}
	return &ChecksumError{Want: want, Got: got}
}

// inspect reads the format of the file name. It needs odd offsets, so not past
// the page cache, and only a few of the file's pages.
func (d *Disk) inspect(name string, declared Format) (Info, error) {
	f, err := openImage(d.root, name, os.O_RDONLY)
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	stat, err := f.Stat()
	if err != nil {
		return Info{}, err
	}
	return Inspect(f, stat.Size(), declared)
}

// vouchFor describes the image of id, whose bytes were as r has it when the file
// was as evidence says, to Longhorn and then to ourselves. A part that was to
// replace it is not needed any more.
func (d *Disk) vouchFor(id ID, r Record, expected Digest, evidence Evidence) error {
	info, err := d.root.Lstat(id.file(imageFile))
	if err == nil && evidenceOf(info) != evidence {
		err = fmt.Errorf("%w: %s", ErrModified, evidence.difference(evidenceOf(info)))
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", id, err)
	}
	if err := d.describeToLonghorn(id, r, expected, info); err != nil {
		return err
	}
	for _, name := range partFiles {
		if err := ignoreMissing(d.root.Remove(id.file(name))); err != nil {
			return fmt.Errorf("drop part of %s: %w", id, err)
		}
	}
	d.find(id, func(f *found) { f.damaged = Evidence{} })
	r.Evidence, r.Source = &evidence, nil
	return d.writeRecord(id, r)
}

// replaceable makes sure that there is no image yet, or one that failed and that
// nobody uses, and notes which that is. Of a file that has come meanwhile nobody knows
// what it is worth.
func (p *Part) replaceable() error {
	var err error
	if p.replaces, err = p.disk.evidence(p.id.file(imageFile)); err != nil {
		return err
	}
	switch c := p.disk.Stat(p.id); c.State {
	case Pending:
		return nil
	case Failed:
		return p.disk.used(p.id, p.id.file(imageFile))
	case Ready:
		return fmt.Errorf("%s is ready already", p.id)
	default:
		return fmt.Errorf("a file is there, which has to be verified before it may be replaced: %s", c.Message)
	}
}

// evidence is what a file is at the moment, zero where there is none.
func (d *Disk) evidence(name string) (Evidence, error) {
	info, err := d.root.Lstat(name)
	if err != nil {
		return Evidence{}, ignoreMissing(err)
	}
	return evidenceOf(info), nil
}

// replaced makes sure that the file at name is the one that was looked at, or that
// there is none. fs.ErrExist says that another one came, or other bytes.
func (p *Part) replaced(name string) error {
	now, err := p.disk.evidence(name)
	if err != nil {
		return err
	}
	now.ChangeTime = p.replaces.ChangeTime // moves with the name
	if now != (Evidence{ChangeTime: now.ChangeTime}) && now != p.replaces {
		return fmt.Errorf("a file has come, which has to be verified before it may be replaced: %w", fs.ErrExist)
	}
	return nil
}

// putInPlace gives the part the name of the image. An older image, which failed,
// changes places with it, so that it can be looked at once more when no new user can
// find it, and goes back if it has got one meanwhile, *InUseError, or is not the one
// that failed: fs.ErrExist.
func (p *Part) putInPlace() error {
	d, id := p.disk, p.id
	err := error(unix.ENOENT)
	if p.replaces != (Evidence{}) {
		err = d.renamePart(id, unix.RENAME_EXCHANGE)
	}
	if err == nil {
		err := p.replaced(id.file(partFile))
		if err == nil {
			err = d.used(id, id.file(partFile))
		}
		if err != nil {
			return errors.Join(err, d.renamePart(id, unix.RENAME_EXCHANGE), syncFolder(d.root, id.folder()))
		}
		return syncFolder(d.root, id.folder())
	}
	if errors.Is(err, unix.ENOENT) { // there is no image, and one that comes now stays
		err = d.renamePart(id, unix.RENAME_NOREPLACE)
	}
	switch {
	case err == nil:
		return syncFolder(d.root, id.folder())
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		return p.replace()
	}
	return fmt.Errorf("give the part its name: %w", err)
}

// renamePart renames the part of id to the image in one step, in the way of
// renameat2's flags.
func (d *Disk) renamePart(id ID, flags uint) error {
	folder, err := d.root.Open(id.folder())
	if err != nil {
		return err
	}
	defer folder.Close()
	fd := int(folder.Fd())
	return unix.Renameat2(fd, partFile, fd, imageFile, flags)
}

// replace is for file systems that know no flags. Users are looked for at the last
// moment before, since nothing can be taken back.
func (p *Part) replace() error {
	d, id := p.disk, p.id
	_, err := d.root.Lstat(id.file(imageFile))
	if err == nil {
		err = d.used(id, id.file(imageFile))
	}
	if err == nil {
		err = p.replaced(id.file(imageFile))
	}
	if ignoreMissing(err) != nil {
		return err
	}
	return renameDurably(d.root, id.file(partFile), id.file(imageFile))
}
