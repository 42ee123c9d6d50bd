package disk

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
)

const (
	// indexFile is the index of the image, in the format of package caibx. Only a copy that was downloaded by
	// an index has one. It is a cache: without it, the index of a copy can be computed from its bytes.
	indexFile = "backing.caibx"
	// partIndexFile is the index by which the partial file is downloaded.
	partIndexFile = "backing.part.caibx"
)

// partFolder is the folder of a partial file: the space on its disk, and the files beside it.
type partFolder struct {
	folder  imageFolder
	reserve int64 // bytes that must stay free on the disk
	maxSize int64 // maximum size of the image; 0: no limit
}

// checkSize returns an error if the image is larger than maxSize, or if the disk has no space for it. An unknown
// size passes.
func (p *partFolder) checkSize(source PartSource) error {
	if source.Size < 0 {
		return nil
	}
	if err := p.checkImageSize(source.Size); err != nil {
		return err
	}
	return p.checkSpace(source.need())
}

// checkImageSize returns an ErrTooLarge if an image of size bytes is larger than maxSize.
func (p *partFolder) checkImageSize(size int64) error {
	if p.maxSize > 0 && size > p.maxSize {
		return fmt.Errorf("%w: it has at least %d bytes, at most %d are allowed", ErrTooLarge, size, p.maxSize)
	}
	return nil
}

// checkSpace returns a *NoSpaceError if a write of the given bytes would reach the reserve.
func (p *partFolder) checkSpace(more int64) error {
	room, err := p.Room()
	if err == nil && room < more {
		err = &NoSpaceError{Need: more, Free: room}
	}
	return err
}

// Room returns the bytes that can be written to the disk before the reserve is reached.
func (p *partFolder) Room() (int64, error) {
	space, err := p.folder.disk.Space()
	return max(0, space.Free-p.reserve), err
}

// StoreIndex stores the index of the partial file. write receives an empty file and writes the index to it.
// The index is durable when StoreIndex returns. It exists until Discard, DropIndex or Commit, or until a Begin whose source
// has no index. The bytes are not interpreted.
func (p *partFolder) StoreIndex(write func(*os.File) error) error {
	root, name := p.folder.disk.root, p.folder.file(partTempFile)
	f, err := p.createTemp()
	if err != nil {
		return fmt.Errorf("store index of %s: %w", p.folder.id, err)
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	err = errors.Join(noSpace(err), f.Close())
	if err == nil {
		err = atomicfile.Rename(root, name, p.folder.file(partIndexFile))
	}
	if err != nil {
		return errors.Join(err, ignoreMissing(root.Remove(name)))
	}
	return nil
}

// Index opens the index that StoreIndex stored, in this process or in an earlier one. fs.ErrNotExist: there is
// no index.
func (p *partFolder) Index() (*os.File, error) {
	return openRegular(p.folder.disk.root, p.folder.file(partIndexFile), os.O_RDONLY)
}

// PartIndex opens the index by which the partial file of a copy is downloaded, and returns the source of that partial file. A job
// may write to the partial file meanwhile. fs.ErrNotExist: there is no index.
func (d *Disk) PartIndex(id ident.ID) (*os.File, PartSource, error) {
	source := d.PartSource(id)
	if source.Index == "" {
		return nil, source, fs.ErrNotExist
	}
	f, err := openRegular(d.root, filePath(id, partIndexFile), os.O_RDONLY)
	return f, source, err
}

// DropIndex removes the index of the partial file, if there is one.
func (p *partFolder) DropIndex() error {
	return ignoreMissing(p.folder.disk.root.Remove(p.folder.file(partIndexFile)))
}

// TempFile creates an unlinked file in the folder of the partial file, for data that need not survive the
// process. StoreIndex must not run meanwhile.
func (p *partFolder) TempFile() (*os.File, error) {
	f, err := p.createTemp()
	if err != nil {
		return nil, err
	}
	if err := p.folder.disk.root.Remove(p.folder.file(partTempFile)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// createTemp creates partTempFile. It removes the file that a crash may have left.
func (p *partFolder) createTemp() (*os.File, error) {
	root, name := p.folder.disk.root, p.folder.file(partTempFile)
	if err := ignoreMissing(root.Remove(name)); err != nil {
		return nil, err
	}
	f, err := root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, privateMode)
	return f, noSpace(err)
}

// Index opens the index of a ready copy. fs.ErrNotExist: the copy has no index, or the index does not have the
// recorded digest.
func (d *Disk) Index(id ident.ID) (*os.File, error) {
	f, err := openRegular(d.root, filePath(id, indexFile), os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	folder := d.image(id)
	r, _, err := folder.readRecord()
	if err == nil {
		var digest ident.Digest
		if digest, err = fileDigest(f); err == nil && (r.IndexDigest.IsZero() || digest != r.IndexDigest) {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("open index of %s: %w", id, err)
	}
	return f, nil
}

// DropIndex removes the index of a copy, if there is one.
func (d *Disk) DropIndex(id ident.ID) error {
	return ignoreMissing(d.root.Remove(filePath(id, indexFile)))
}

// fileDigest returns the SHA-256 of a file. The offset of the file is 0 afterwards.
func fileDigest(f *os.File) (ident.Digest, error) {
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return ident.Digest{}, err
	}
	_, err := f.Seek(0, io.SeekStart)
	return ident.SHA256.Digest(h), err
}

// indexDigest returns the digest of the index of the partial file, zero if there is none.
func (p *partFolder) indexDigest() (ident.Digest, error) {
	f, err := p.Index()
	if err != nil {
		return ident.Digest{}, ignoreMissing(err)
	}
	defer f.Close()
	return fileDigest(f)
}

// commitIndex makes the index of the partial file the index of the image. If there is none, it removes the index of
// the image, which describes the previous bytes.
func (f imageFolder) commitIndex() error {
	err := atomicfile.Rename(f.disk.root, f.file(partIndexFile), f.file(indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = ignoreMissing(f.disk.root.Remove(f.file(indexFile)))
	}
	return err
}
