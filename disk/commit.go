package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
)

// ChecksumError is the error for bytes that do not have the declared or established digest. It is
// final: another attempt with the same bytes has the same result. The caller decides whether, and when, an
// attempt may get other bytes.
type ChecksumError struct{ Want, Got ident.Digest }

// Error returns a message with both digests in full.
func (e *ChecksumError) Error() string {
	return fmt.Sprintf("checksum mismatch: want %s, got %s", e.Want, e.Got)
}

// Commit turns the partial file into the image of its folder, if its bytes have the digest want
// (zero: any digest) and an accepted format. The package comment lists the steps.
//
// After a *ChecksumError, *FormatError or *SignatureError the partial file is removed. It is also removed if the disk
// is full before the file is durable: the next attempt needs the space that it occupies. After any
// other error a later OpenPart resumes it.
//
// Commit replaces a failed image unless it is in use (*InUseError). It never replaces another file,
// which may have been created since OpenPart: that file must be verified first.
func (p *Part) Commit(want ident.Digest) (_ model.Copy, err error) {
	d, id := p.folder.disk, p.folder.id
	defer func() {
		if _, sized := errors.AsType[*NoSpaceError](err); !sized {
			err = p.wrapNoSpace(err)
		}
		if err != nil {
			err = fmt.Errorf("commit %s: %w", id, err)
		}
	}()
	swap := &replacement{folder: p.folder}
	result, err := p.finish(want, swap)
	if err != nil {
		return model.Copy{}, err
	}
	var before, r Record // the record may have changed since OpenPart
	err = d.Update(id, func(now *Record) {
		before = *now
		result(now)
		r = *now
	})
	if err != nil {
		return model.Copy{}, err
	}
	if err := swap.run(); err != nil {
		_, inUse := errors.AsType[*InUseError](err)
		if inUse || errors.Is(err, fs.ErrExist) {
			// The old file is kept. It needs its own record to be repaired or verified.
			err = errors.Join(err, p.folder.writeRecord(before))
		}
		return model.Copy{}, err
	}
	if err := atomicfile.Rename(d.root, p.folder.file(partChunksFile), p.folder.file(chunksFile)); err != nil {
		return model.Copy{}, err
	}
	if err := p.folder.commitIndex(); err != nil {
		return model.Copy{}, err
	}
	evidence, err := swap.evidenceAfterRename()
	if err == nil {
		err = p.folder.markReady(r, want, evidence)
	}
	if err != nil {
		return model.Copy{}, err
	}
	c := d.Stat(id)
	if c.State != model.Ready {
		return c, fmt.Errorf("the committed image is %s: %s", c.State, c.Message)
	}
	return c, nil
}

// finish checks the bytes, makes them durable, closes the file and prepares swap. The returned function
// writes the findings of the checks to a record.
func (p *Part) finish(want ident.Digest, swap *replacement) (result func(*Record), err error) {
	err = p.flush()
	if err == nil {
		err = p.pipeline.close()
		p.pipeline = nil
	}
	if err == nil {
		err = p.file.Truncate(p.offset)
	}
	if err == nil {
		result, err = p.check(want)
	}
	if err == nil {
		if !p.options.Private {
			err = setMode(p.file, imageMode&^umask) // before takeEvidence, because it changes the ctime
		}
		err = errors.Join(err, p.sync(), p.journal.f.Sync(), swap.checkReplaceable(), swap.takeEvidence(p.file))
	}
	if isFinal(err) || errors.Is(err, ErrNoSpace) {
		return nil, errors.Join(err, p.Discard())
	}
	return result, errors.Join(err, p.Close(), p.close())
}

// isFinal reports whether err is caused by the bytes themselves.
func isFinal(err error) bool {
	_, checksum := errors.AsType[*ChecksumError](err)
	_, format := errors.AsType[*FormatError](err)
	_, signature := errors.AsType[*SignatureError](err)
	return checksum || format || signature
}

// check compares size, digest and format. The returned function writes the findings to a record.
func (p *Part) check(want ident.Digest) (result func(*Record), err error) {
	if size := p.Source().Size; size >= 0 && size != p.offset {
		return nil, fmt.Errorf("%d of %d bytes were received: %w", p.offset, size, io.ErrUnexpectedEOF)
	}
	sum512, sum256 := p.hashes.digests()
	if err := errors.Join(matches(want, sum512, sum256), matches(p.options.Check.Digest, sum512, sum256)); err != nil {
		return nil, err
	}
	signature, err := p.options.Check.end()
	if err != nil {
		return nil, err
	}
	info, err := p.folder.inspect(partFile, p.options.Format)
	if err != nil {
		return nil, err
	}
	index, err := p.indexDigest()
	if err != nil {
		return nil, err
	}
	verified := time.Now().UTC()
	return func(r *Record) {
		r.SHA512, r.SHA256, r.Format, r.VirtualSize = sum512, sum256, info.Format, info.VirtualSize
		r.ManifestDigest, r.Size = p.manifest.Digest(), p.offset
		r.IndexDigest, r.Signature = index, signature
		r.Evidence, r.Failed, r.VerifiedAt, r.ReadBackAt = nil, "", verified, time.Time{}
	}, nil
}

// matches returns a *ChecksumError if want is not zero and differs from the computed digest of the
// same algorithm.
func matches(want, sum512, sum256 ident.Digest) error {
	got := sum512
	if want.Algorithm() == ident.SHA256 {
		got = sum256
	}
	switch {
	case want.IsZero() || want == got:
		return nil
	case got.IsZero():
		return errors.New("the SHA-256 was not computed, so the file could not be compared with the declared checksum") // no ChecksumError: the bytes may be right
	}
	return &ChecksumError{Want: want, Got: got}
}

// replacement renames the complete partial file of a folder to the image.
type replacement struct {
	folder   imageFolder
	old      Evidence // of the failed image to replace; zero: none
	complete Evidence // of the complete partial file
}

// checkReplaceable returns nil if there is no image, or a failed image that is not in use. It stores
// the evidence of the failed image in s.old. A file in any other state must be verified first.
func (s *replacement) checkReplaceable() error {
	var err error
	if s.old, err = s.folder.evidence(imageFile); err != nil {
		return err
	}
	switch c := s.folder.disk.Stat(s.folder.id); c.State {
	case model.Pending:
		return nil
	case model.Failed:
		return s.folder.checkUnused(s.folder.file(imageFile))
	case model.Ready:
		return fmt.Errorf("%s is already ready", s.folder.id)
	default:
		return fmt.Errorf("the folder has a file that must be verified before it is replaced: %s", c.Message)
	}
}

// takeEvidence records the evidence of the complete file, and waits until any later write would
// change the times of the file.
func (s *replacement) takeEvidence(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		err = checkOneName(partFile, info)
	}
	if err != nil {
		return err
	}
	s.complete = evidenceOf(info)
	return waitForTick(f)
}

// checkOld returns nil if the named file does not exist, or is the unchanged file that
// checkReplaceable checked. It returns fs.ErrExist for any other file.
func (s *replacement) checkOld(name string) error {
	now, err := s.folder.evidence(name)
	if err != nil {
		return err
	}
	now.ChangeTime = s.old.ChangeTime // the rename changes it
	if now != (Evidence{ChangeTime: now.ChangeTime}) && now != s.old {
		return fmt.Errorf("a file appeared that must be verified before it is replaced: %w", fs.ErrExist)
	}
	return nil
}

// run renames the partial file to the image. If there is a failed image, one system call exchanges
// the names of the two files. From then on no new user can open the failed image, and run checks it
// again. It exchanges the names back if the failed image has a user (*InUseError) or has changed
// (fs.ErrExist).
func (s *replacement) run() error {
	f, root := s.folder, s.folder.disk.root
	err := error(unix.ENOENT)
	if s.old != (Evidence{}) {
		err = f.renamePart(unix.RENAME_EXCHANGE)
	}
	if err == nil {
		err := s.checkOld(partFile)
		if err == nil {
			err = f.checkUnused(f.file(partFile))
		}
		if err != nil {
			return errors.Join(err, f.renamePart(unix.RENAME_EXCHANGE), atomicfile.SyncFolder(root, f.path()))
		}
		return atomicfile.SyncFolder(root, f.path())
	}
	if errors.Is(err, unix.ENOENT) { // no image exists; a file that is created now must not be overwritten
		err = f.renamePart(unix.RENAME_NOREPLACE)
	}
	switch {
	case err == nil:
		return atomicfile.SyncFolder(root, f.path())
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOTSUP):
		return s.runWithoutFlags()
	}
	return fmt.Errorf("rename %s to %s: %w", partFile, imageFile, err)
}

// runWithoutFlags replaces the method run on file systems that do not support the flags of renameat2. It
// cannot undo the rename, so it checks for users as late as possible.
func (s *replacement) runWithoutFlags() error {
	f, root := s.folder, s.folder.disk.root
	_, err := root.Lstat(f.file(imageFile))
	if err == nil {
		err = f.checkUnused(f.file(imageFile))
	}
	if err == nil {
		err = s.checkOld(imageFile)
	}
	if ignoreMissing(err) != nil {
		return err
	}
	return atomicfile.Rename(root, f.file(partFile), f.file(imageFile))
}

// evidenceAfterRename returns the evidence of the image, if the image is still the complete partial
// file. After the rename, other processes can find the file, and may write to it or replace it. The
// rename itself changes the ctime.
func (s *replacement) evidenceAfterRename() (Evidence, error) {
	info, err := s.folder.disk.root.Lstat(s.folder.file(imageFile))
	if err == nil {
		err = checkOneName(imageFile, info)
	}
	if err != nil {
		return Evidence{}, err
	}
	now := evidenceOf(info)
	s.complete.ChangeTime = now.ChangeTime
	if now != s.complete {
		return Evidence{}, fmt.Errorf("%w: %s", ErrModified, s.complete.difference(now))
	}
	return now, nil
}

// renamePart renames the partial file to the image in one system call, with flags of renameat2.
func (f imageFolder) renamePart(flags uint) error {
	folder, err := f.disk.root.Open(f.path())
	if err != nil {
		return err
	}
	defer folder.Close()
	fd := int(folder.Fd())
	return unix.Renameat2(fd, partFile, fd, imageFile, flags)
}

// markReady makes the record r valid for the image. The digests in r are those of the file that had
// the given evidence. markReady writes backing.cfg, removes the files of the partial file, and writes
// the record last.
func (f imageFolder) markReady(r Record, expected ident.Digest, evidence Evidence) error {
	root := f.disk.root
	info, err := root.Lstat(f.file(imageFile))
	if err == nil && evidenceOf(info) != evidence {
		err = fmt.Errorf("%w: %s", ErrModified, evidence.difference(evidenceOf(info)))
	}
	if err != nil {
		return fmt.Errorf("stat %s: %w", f.id, err)
	}
	if err := f.writeCfg(r, expected, info); err != nil {
		return err
	}
	for _, name := range partFiles {
		if err := ignoreMissing(root.Remove(f.file(name))); err != nil {
			return fmt.Errorf("remove partial file of %s: %w", f.id, err)
		}
	}
	f.disk.metadata.markDamaged(f.id, Evidence{})
	r.Evidence, r.Source = &evidence, nil
	return f.writeRecord(r)
}

var (
	signatureWord  = regexp.MustCompile(`^[a-z-]{1,40}$`)
	signaturePlain = regexp.MustCompile(`^[A-Za-z0-9:]{1,200}$`)
)

// validSignature returns the signature, or the zero value if this program never writes such a signature. Another program
// may have written the record, and must not control what this program prints.
func validSignature(s model.Signature) model.Signature {
	if !signatureWord.MatchString(s.Scheme) || !signaturePlain.MatchString(s.Signer) || s.Warning != "" && !signatureWord.MatchString(s.Warning) {
		return model.Signature{}
	}
	s.Time = ValidTime(s.Time)
	return s
}

// SignatureCheck judges the bytes of a partial file by a signature before they become a copy.
type SignatureCheck struct {
	// Digest is a second digest that the image must have; zero: none.
	Digest ident.Digest
	// Begin returns a writer for all bytes of the image in order, also those that a resume keeps. It is called again when the
	// bytes begin again. One goroutine writes to the writer. nil: the bytes are not needed.
	Begin func() io.Writer
	// End is called by Commit after the last byte. It returns the signature for the record. Commit wraps its error in a
	// *SignatureError, and creates no copy. nil: there is no signature.
	End func() (model.Signature, error)
}

func (c SignatureCheck) end() (model.Signature, error) {
	if c.End == nil {
		return model.Signature{}, nil
	}
	s, err := c.End()
	if err != nil {
		return model.Signature{}, &SignatureError{err}
	}
	return validSignature(s), nil
}

// SignatureError is the error for bytes without a valid signature. Like a ChecksumError, it is final.
type SignatureError struct{ Err error }

func (e *SignatureError) Error() string { return "signature: " + e.Err.Error() }

func (e *SignatureError) Unwrap() error { return e.Err }
