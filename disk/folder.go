package disk

import (
	"errors"
	"fmt"
	"os"
	"time"
)

// Files of an image folder. backing.cfg is in cfg.go.
const (
	imageFile      = "backing"
	chunksFile     = "backing.chunks"
	recordFile     = "backing.record"
	partFile       = "backing.part"
	partChunksFile = "backing.part.chunks"

	// partManifestFile has a name only between create and unlink (see openUnlinked). If a
	// crash leaves one, it is of no use.
	partManifestFile = "backing.part.manifest"
)

// partFiles belong to the partial file and to nothing else.
var partFiles = []string{partManifestFile, partChunksFile, partFile}

// imageFolder is the folder of one image on one disk, whether it exists or not.
type imageFolder struct {
	disk *Disk
	id   ID
}

func (d *Disk) image(id ID) imageFolder { return imageFolder{d, id} }

// path and file return paths below the root of the disk.
func (f imageFolder) path() string            { return f.id.folder() }
func (f imageFolder) file(name string) string { return f.id.file(name) }

// check returns why nothing may be read or written in the folder: the id is not valid, or
// something that is no folder has its name, such as a link to the folder of another image.
// A missing folder is no error.
func (f imageFolder) check() error {
	if err := errors.Join(CheckName(f.id.Name), CheckUUID(f.id.UUID)); err != nil {
		return err
	}
	if err := checkFolder(f.disk.root, imagesFolder); err != nil {
		return err
	}
	return checkFolder(f.disk.root, f.path())
}

// checkFolder returns an error if name exists and is no folder.
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

// create makes the folder with a record in it, so that all files that are written there later
// are known to be owned.
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

// evidence returns the present evidence of a file of the folder; the zero Evidence if there
// is no such file.
func (f imageFolder) evidence(name string) (Evidence, error) {
	info, err := f.disk.root.Lstat(f.file(name))
	if err != nil {
		return Evidence{}, ignoreMissing(err)
	}
	return evidenceOf(info), nil
}

// inspect returns the format of a file of the folder. It reads through the page cache: Inspect
// reads at any offset, and only a few pages.
func (f imageFolder) inspect(name string, declared Format) (Info, error) {
	file, err := openRegular(f.disk.root, f.file(name), os.O_RDONLY)
	if err != nil {
		return Info{}, err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return Info{}, err
	}
	return Inspect(file, stat.Size(), declared)
}
