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

// Removal are the steps of RemoveUnused for one image.
type Removal interface {
	// CheckUnused returns an *InUseError if the image is in use. aside: it is set aside.
	CheckUnused(aside bool) error
	// SetAside hides the image from new users.
	SetAside() error
	// PutBack undoes SetAside.
	PutBack() error
	// Delete deletes the image that was set aside.
	Delete() error
	// Sync makes the deletion durable.
	Sync() error
}

// RemoveUnused removes an image unless it is in use. It checks this twice, and sets the image
// aside between the checks: then no new user can find it, and a user that came after the first
// check is found by the second one. The image is put back after an error.
func RemoveUnused(r Removal) error {
	if err := r.CheckUnused(false); err != nil {
		return err
	}
	if err := r.SetAside(); err != nil {
		return err
	}
	if err := r.CheckUnused(true); err != nil {
		return errors.Join(err, r.PutBack())
	}
	if err := r.Delete(); err != nil {
		// What cannot be deleted keeps the name under which its users and the next attempt
		// find it.
		return errors.Join(err, r.PutBack())
	}
	return r.Sync()
}

// Remove deletes our files in the folder of id, and then the folder. It does not delete other
// files: a folder with other files in it, or without a record, stays, with an error.
//
// *InUseError: the image is in use: see RemoveUnused.
func (d *Disk) Remove(id ID) error {
	f := d.image(id)
	_, owned, err := f.readRecord()
	if err == nil && !owned {
		err = fmt.Errorf("it has no %s: it is not owned", recordFile)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	return RemoveUnused(folderRemoval{f, path.Join(imagesFolder, removingPrefix+id.String())})
}

// folderRemoval implements Removal. It sets a folder aside by renaming it.
type folderRemoval struct {
	imageFolder
	aside string // the path of the folder while it is set aside
}

// CheckUnused implements Removal.
func (r folderRemoval) CheckUnused(aside bool) error {
	if aside {
		return r.checkUnused(path.Join(r.aside, imageFile))
	}
	return r.checkUnused(r.file(imageFile))
}

// SetAside implements Removal.
func (r folderRemoval) SetAside() error {
	if err := r.disk.root.Rename(r.path(), r.aside); err != nil {
		return fmt.Errorf("remove %s: %w", r.id, err)
	}
	if err := r.Sync(); err != nil {
		return errors.Join(fmt.Errorf("remove %s: %w", r.id, err), r.disk.root.Rename(r.aside, r.path()))
	}
	return nil
}

// PutBack implements Removal.
func (r folderRemoval) PutBack() error { return renameDurably(r.disk.root, r.aside, r.path()) }

// Delete implements Removal.
func (r folderRemoval) Delete() error {
	if err := removeOwnFiles(r.disk.root, r.aside); err != nil {
		return fmt.Errorf("remove %s: %w", r.id, err)
	}
	if err := ignoreMissing(r.disk.root.Remove(r.aside)); err != nil {
		// Unmanaged files are in it: they stay, under the old name.
		return fmt.Errorf("remove %s: other files are in its folder: %w", r.id, err)
	}
	return nil
}

// Sync implements Removal.
func (r folderRemoval) Sync() error { return syncFolder(r.disk.root, imagesFolder) }

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
