package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
)

// removingPrefix marks a folder under removal. ParseID refuses such a name, so it is never
// listed as an image.
const removingPrefix = ".removing-"

// InUseError: an image was not removed or replaced, because it is in use, or because that
// could not be determined.
type InUseError struct {
	ID     ID
	Reason string
}

// Error names the image and the reason.
func (e *InUseError) Error() string { return fmt.Sprintf("%s is in use: %s", e.ID, e.Reason) }

// checkUnused returns an *InUseError if a replica names the image, or a process has file open:
// the path of the image's file, which may have been renamed.
func (f imageFolder) checkUnused(file string) error {
	if reason, inUse := f.disk.Users().InUse(f.id); inUse {
		return &InUseError{ID: f.id, Reason: reason}
	}
	if reason, open := f.disk.leases.fileOpen(f.disk.root, file); open {
		return &InUseError{ID: f.id, Reason: reason}
	}
	return nil
}

// Remove deletes our files in the folder of id, and then the folder. It does not delete other
// files: a folder with other files in it, or without a record, stays, with an error.
//
// *InUseError: the image is in use. Remove checks this twice. It renames the folder between
// the checks, so that no new user can find the image, and renames it back if the second check
// finds a user.
func (d *Disk) Remove(id ID) error {
	f := d.image(id)
	_, owned, err := f.readRecord()
	if err == nil && !owned {
		err = fmt.Errorf("it has no %s: it is not owned", recordFile)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	if err := f.checkUnused(f.file(imageFile)); err != nil {
		return err
	}
	aside := path.Join(imagesFolder, removingPrefix+id.String())
	if err := d.root.Rename(f.path(), aside); err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	if err := syncFolder(d.root, imagesFolder); err != nil {
		return errors.Join(fmt.Errorf("remove %s: %w", id, err), d.root.Rename(aside, f.path()))
	}
	if err := f.checkUnused(path.Join(aside, imageFile)); err != nil {
		return errors.Join(err, renameDurably(d.root, aside, f.path()))
	}
	if err := removeOwnFiles(d.root, aside); err != nil {
		// What cannot be deleted keeps the name under which its users and the next attempt
		// find it.
		return errors.Join(fmt.Errorf("remove %s: %w", id, err), renameDurably(d.root, aside, f.path()))
	}
	if err := ignoreMissing(d.root.Remove(aside)); err != nil {
		// Unmanaged files are in it: they stay, under the old name.
		return errors.Join(fmt.Errorf("remove %s: other files are in its folder: %w", id, err),
			renameDurably(d.root, aside, f.path()))
	}
	return syncFolder(d.root, imagesFolder)
}

// ownFiles are the files of an image folder that this program may delete. The record is the
// last: while it exists, the folder is known to be owned.
var ownFiles = []string{
	imageFile, partFile, partChunksFile, partManifestFile, chunksFile, newManifestFile, cfgFile, cfgFile + ".tmp", recordFile + ".tmp", recordFile,
}

func removeOwnFiles(root *os.Root, folder string) error {
	for _, name := range ownFiles {
		if err := ignoreMissing(root.Remove(path.Join(folder, name))); err != nil {
			return err
		}
		if name != imageFile {
			continue
		}
		// A power failure must not bring the image back without its other files.
		if err := syncFolder(root, folder); err != nil {
			return err
		}
	}
	return nil
}

// restoreRemoved renames folders back whose removal a crash interrupted. The next plan
// decides about what is left of such an image.
func restoreRemoved(root *os.Root) error {
	entries, err := imageEntries(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, removing := strings.CutPrefix(e.Name(), removingPrefix)
		if _, err := ParseID(name); !removing || !e.IsDir() || err != nil {
			continue
		}
		if _, err := root.Lstat(path.Join(imagesFolder, name)); !errors.Is(err, fs.ErrNotExist) {
			continue // the image was created again: the old folder is listed as unmanaged
		}
		if err := renameDurably(root, path.Join(imagesFolder, e.Name()), path.Join(imagesFolder, name)); err != nil {
			return err
		}
	}
	return nil
}
