package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// removingPrefix marks a folder on its way out. ParseID refuses such a name, so
// it is never taken for an image.
const removingPrefix = ".removing-"

// InUseError says that an image was left alone because it is used, or because
// nobody can tell.
type InUseError struct {
	ID     ID
	Reason string
}

func (e *InUseError) Error() string { return fmt.Sprintf("%s is in use: %s", e.ID, e.Reason) }

// used looks whether the image file at name, which is or was that of id, has a
// user: a replica that names it or a process that has it open.
func (d *Disk) used(id ID, name string) error {
	if reason, inUse := d.Users().InUse(id); inUse {
		return &InUseError{ID: id, Reason: reason}
	}
	if reason, open := d.fileOpenAt(name); open {
		return &InUseError{ID: id, Reason: reason}
	}
	return nil
}

// Remove deletes the files of ours in the folder of id, and the folder when
// nothing else is in it. It renames the folder aside first, so that no new user
// can come, looks for users again and puts the folder back if there is one: the
// error is then an *InUseError. Files that are not ours are left in the folder, and all
// of them in one that has no record.
func (d *Disk) Remove(id ID) error {
	_, ours, err := d.readRecord(id)
	if err == nil && !ours {
		err = fmt.Errorf("it has no %s: it is not known to be ours", recordFile)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	if err := d.used(id, id.file(imageFile)); err != nil {
		return err
	}
	aside := path.Join(imagesFolder, removingPrefix+id.String())
	if err := d.root.Rename(id.folder(), aside); err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	if err := syncFolder(d.root, imagesFolder); err != nil {
		return errors.Join(fmt.Errorf("remove %s: %w", id, err), d.root.Rename(aside, id.folder()))
	}
	if err := d.used(id, path.Join(aside, imageFile)); err != nil {
		return errors.Join(err, renameDurably(d.root, aside, id.folder()))
	}
	if err := d.unlink(aside); err != nil {
		// What cannot be deleted stays where its users and the next try look for it.
		return errors.Join(fmt.Errorf("remove %s: %w", id, err), renameDurably(d.root, aside, id.folder()))
	}
	if err := ignoreMissing(d.root.Remove(aside)); err != nil {
		// Something foreign is in it: it stays, under its own name.
		return errors.Join(fmt.Errorf("remove %s: other files are in its folder: %w", id, err),
			renameDurably(d.root, aside, id.folder()))
	}
	return syncFolder(d.root, imagesFolder)
}

// ownFiles are the files of an image folder that are ours to delete, the record
// last: as long as it is there, the folder is known to be ours.
var ownFiles = []string{
	imageFile, partFile, partChunksFile, partManifestFile, chunksFile, chunksFile + ".tmp", cfgFile, cfgFile + ".tmp", recordFile + ".tmp", recordFile,
}

func (d *Disk) unlink(folder string) error {
	for _, name := range ownFiles {
		if err := ignoreMissing(d.root.Remove(path.Join(folder, name))); err != nil {
			return err
		}
		if name != imageFile {
			continue
		}
		// A power cut must not bring the image back without what belongs to it.
		if err := syncFolder(d.root, folder); err != nil {
			return err
		}
	}
	return nil
}

// restoreRemoved gives folders that a crash left aside their names back. What is
// left of such an image is planned for anew.
func (d *Disk) restoreRemoved() error {
	if err := d.isFolder(imagesFolder); err != nil {
		return err
	}
	entries, err := fs.ReadDir(d.root.FS(), imagesFolder)
	if err != nil {
		return ignoreMissing(err)
	}
	for _, e := range entries {
		name, aside := strings.CutPrefix(e.Name(), removingPrefix)
		if _, err := ParseID(name); !aside || !e.IsDir() || err != nil {
			continue
		}
		if _, err := d.root.Lstat(path.Join(imagesFolder, name)); !errors.Is(err, fs.ErrNotExist) {
			continue // it has been made again: the old one is reported as foreign
		}
		if err := renameDurably(d.root, path.Join(imagesFolder, e.Name()), path.Join(imagesFolder, name)); err != nil {
			return err
		}
	}
	return nil
}
