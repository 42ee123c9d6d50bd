package disk

import (
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Files of an image folder. backing.cfg is in cfg.go.
const (
	imageFile      = "backing"
	hiddenFile     = "backing.removed" // the image during its removal
	chunksFile     = "backing.chunks"
	recordFile     = "backing.record"
	partFile       = "backing.part"
	partChunksFile = "backing.part.chunks"
	partTempFile   = "backing.part.tmp" // an index while it is received, or a TempFile before it is unlinked; it is never used after a crash
)

// partFiles are all files of a partial file.
var partFiles = []string{partTempFile, partIndexFile, partChunksFile, partFile}

// imageFolder is the folder of one image on one disk, whether it exists or not.
type imageFolder struct {
	disk *Disk
	id   ident.ID
}

func (d *Disk) image(id ident.ID) imageFolder { return imageFolder{d, id} }

// folderPath and filePath return paths below the root of the disk.
func folderPath(id ident.ID) string            { return path.Join(imagesFolder, id.String()) }
func filePath(id ident.ID, name string) string { return path.Join(imagesFolder, id.String(), name) }

// path and file return paths below the root of the disk.
func (f imageFolder) path() string            { return folderPath(f.id) }
func (f imageFolder) file(name string) string { return filePath(f.id, name) }

// check returns an error if no file of the folder may be accessed: the id is not valid, or the path
// exists and is not a folder, for example a link to the folder of another image. A missing folder is
// not an error.
func (f imageFolder) check() error {
	if err := errors.Join(ident.CheckName(f.id.Name), ident.CheckUUID(f.id.UUID)); err != nil {
		return err
	}
	if err := checkFolder(f.disk.root, imagesFolder); err != nil {
		return err
	}
	return checkFolder(f.disk.root, f.path())
}

// checkFolder returns an error if the path exists and is not a folder.
func checkFolder(root *os.Root, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return ignoreMissing(err)
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is not a folder", name)
	}
	return nil
}

// create creates the folder and its record, so that all files that are written later belong to an
// owned copy.
func (f imageFolder) create() (Record, error) {
	err := f.check()
	if err == nil {
		err = mkdirDurably(f.disk.root, imagesFolder)
	}
	if err == nil {
		err = mkdirDurably(f.disk.root, f.path())
	}
	if err != nil {
		return Record{}, fmt.Errorf("create folder of %s: %w", f.id, err)
	}
	r, owned, err := f.readRecord()
	if owned || err != nil {
		return r, err
	}
	r = Record{Created: time.Now().UTC().Truncate(time.Second)}
	return r, f.writeRecord(r)
}

// evidence returns the current evidence of a file of the folder. It is the zero Evidence if the file
// does not exist.
func (f imageFolder) evidence(name string) (Evidence, error) {
	info, err := f.disk.root.Lstat(f.file(name))
	if err != nil {
		return Evidence{}, ignoreMissing(err)
	}
	return evidenceOf(info), nil
}

// inspect returns the format of a file of the folder. It uses the page cache, because Inspect reads
// only tables, at arbitrary offsets. They are a small part of the file, and its users need them, too.
func (f imageFolder) inspect(name string, declared model.Format) (Info, error) {
	file, err := openRegular(f.disk.root, f.file(name), os.O_RDONLY)
	if err != nil {
		return Info{}, err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return Info{}, err
	}
	// After a read-ahead, the kernel marks a page. A Reader that reaches this page would cause another read-ahead, of
	// which cachedPages does not know, again and again.
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_RANDOM) // if this fails, only more pages stay in the page cache
	return Inspect(file, stat.Size(), declared)
}
