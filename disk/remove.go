package disk

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
)

// removingPrefix marks a folder under removal. ParseID rejects names with this prefix, so the folder
// is never listed as an image.
const removingPrefix = ".removing-"

// InUseError: an image was not removed or replaced, because it is in use, or because its use could
// not be determined.
type InUseError struct {
	ID     ident.ID
	Reason string
}

// Error returns a message with the image and the reason.
func (e *InUseError) Error() string { return fmt.Sprintf("%s is in use: %s", e.ID, e.Reason) }

// checkUnused returns an *InUseError if a replica names the image, or if a process has its file open.
// The argument file is the path of this file, which may have been renamed.
func (f imageFolder) checkUnused(file string) error {
	if reason, inUse := f.disk.Users().mayBeInUse(f.id); inUse {
		return &InUseError{ID: f.id, Reason: reason}
	}
	if reason, open := f.disk.leases.fileOpen(f.disk.root, file); open {
		return &InUseError{ID: f.id, Reason: reason}
	}
	return nil
}

// Removal implements the steps of RemoveUnused for one image.
type Removal interface {
	// CheckUnused returns an *InUseError if the image is in use. aside is true after SetAside.
	CheckUnused(aside bool) error
	// SetAside hides the image from new users.
	SetAside() error
	// CheckMark returns an error if the mark of the withdrawal is gone. It is called after SetAside: from then on, no
	// other node can remove the mark and count on the image.
	CheckMark() error
	// PutBack undoes SetAside.
	PutBack() error
	// Delete deletes the image that was set aside.
	Delete() error
	// Sync makes the deletion durable.
	Sync() error
}

// RemoveUnused removes an image unless it is in use. It checks this twice, and hides the image with
// SetAside between the two checks. After SetAside no new user can find the image, and the second
// check finds every user that started after the first check. Then the mark must still be there (U5). If one of these checks
// or Delete fails after SetAside, RemoveUnused calls PutBack.
func RemoveUnused(r Removal) error {
	if err := r.CheckUnused(false); err != nil {
		return err
	}
	if err := r.SetAside(); err != nil {
		return err
	}
	err := r.CheckUnused(true)
	if err == nil {
		err = r.CheckMark()
	}
	if err != nil {
		return errors.Join(err, r.PutBack())
	}
	if err := r.Delete(); err != nil {
		// An image that cannot be deleted gets its name back, so that its users and the next attempt
		// find it.
		return errors.Join(err, r.PutBack())
	}
	return r.Sync()
}

// Remove deletes the files of this program in the folder of id, and then the folder. It does not
// delete other files: if there are any, or if the folder has no record, Remove keeps the folder and
// returns an error. m is the mark of the withdrawal; zero: it has none. Remove calls the functions in checks after it has
// renamed the folder. If one of them returns an error, the image stays.
//
// *InUseError: the image is in use (see RemoveUnused). ErrMarkGone: the mark was removed meanwhile.
func (d *Disk) Remove(id ident.ID, m Mark, checks ...func() error) error {
	f := d.image(id)
	_, owned, err := f.readRecord()
	if err == nil && !owned {
		err = fmt.Errorf("it has no %s: it is not owned", recordFile)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", id, err)
	}
	d.removals.RLock()
	defer d.removals.RUnlock()
	r := &folderRemoval{folder: f, mark: m, checks: checks, now: f.path()}
	defer r.release()
	return RemoveUnused(r)
}

// folderRemoval implements Removal. Its SetAside renames the folder.
//
// On some full file systems, such as btrfs, a rename has no space although a deletion is possible. Then
// SetAside takes a write lease on the image instead. While this process has the lease, the kernel blocks
// every other process that opens the file. The open breaks the lease, which counts as a use. Delete then
// deletes the files where they are, the image first, so that after a crash the folder has no image.
type folderRemoval struct {
	folder  imageFolder
	mark    Mark // zero: none
	checks  []func() error
	now     string    // the present path of the folder
	inPlace bool      // SetAside took a lease instead of the rename
	leased  *leasedIn // nil if inPlace is false, or if the folder has no image
}

// aside returns the path of the folder after the rename.
func (r *folderRemoval) aside() string {
	return path.Join(imagesFolder, removingPrefix+r.folder.id.String())
}

// CheckUnused implements Removal.
func (r *folderRemoval) CheckUnused(bool) error {
	if r.inPlace {
		return r.checkLeased()
	}
	return r.folder.checkUnused(path.Join(r.now, imageFile))
}

// checkLeased does what checkUnused does, for an image with a lease of this removal.
func (r *folderRemoval) checkLeased() error {
	if reason, inUse := r.folder.disk.Users().mayBeInUse(r.folder.id); inUse {
		return &InUseError{ID: r.folder.id, Reason: reason}
	}
	if r.leased != nil && !r.leased.held() {
		return &InUseError{ID: r.folder.id, Reason: "a process opens the file"}
	}
	return nil
}

// SetAside implements Removal.
func (r *folderRemoval) SetAside() error {
	err := noSpace(r.folder.disk.root.Rename(r.folder.path(), r.aside()))
	if errors.Is(err, ErrNoSpace) {
		r.inPlace = true
		if r.leased, err = r.folder.disk.leases.lease(r.folder.disk.root, r.folder.file(imageFile)); err != nil {
			return &InUseError{ID: r.folder.id, Reason: err.Error()}
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", r.folder.id, err)
	}
	r.now = r.aside()
	if err := r.Sync(); err != nil {
		return errors.Join(fmt.Errorf("remove %s: %w", r.folder.id, err), r.PutBack())
	}
	return nil
}

// CheckMark implements Removal.
func (r *folderRemoval) CheckMark() error {
	for _, check := range r.checks {
		if err := check(); err != nil {
			return err
		}
	}
	if r.mark == (Mark{}) {
		return nil
	}
	names, err := marksIn(r.folder.disk.root, r.now)
	if err == nil && !slices.Contains(names, r.mark.Name) {
		err = ErrMarkGone
	}
	return err
}

// PutBack implements Removal.
func (r *folderRemoval) PutBack() error {
	if r.inPlace {
		return nil
	}
	err := atomicfile.Rename(r.folder.disk.root, r.aside(), r.folder.path())
	if err != nil {
		r.folder.disk.unrestored.Store(true)
	}
	return err
}

// release ends the lease of SetAside, if there is one.
func (r *folderRemoval) release() {
	if r.leased != nil {
		r.leased.release()
	}
}

// Delete implements Removal.
func (r *folderRemoval) Delete() error {
	if r.inPlace {
		if err := r.checkLeased(); err != nil { // as late as possible
			return err
		}
	}
	images := []string{imageFile, hiddenFile}
	if !r.inPlace {
		hidden, err := r.hideImage()
		if err != nil {
			return fmt.Errorf("remove %s: %w", r.folder.id, err)
		}
		if hidden {
			images = []string{hiddenFile}
		}
	}
	if err := removeOwnFiles(r.folder.disk.root, r.now, images); err != nil {
		return fmt.Errorf("remove %s: %w", r.folder.id, err)
	}
	if err := ignoreMissing(r.folder.disk.root.Remove(r.now)); err != nil {
		// The folder contains unmanaged files: they are kept, under the old name.
		return fmt.Errorf("remove %s: other files are in its folder, move them away: %w", r.folder.id, err)
	}
	return nil
}

// hideImage renames the image in the folder that was set aside. Another node with the same folder may start at any moment. It
// then restores the names, and counts on the image, even while this process is about to open the folder or to delete a file in
// it. Therefore the image gets another name before it is deleted. If the other node started before the rename, the rename finds
// no folder. If it starts later, it takes the new name away. hidden is false if there is no space for the rename.
func (r *folderRemoval) hideImage() (hidden bool, err error) {
	root := r.folder.disk.root
	switch err := noSpace(root.Rename(path.Join(r.now, imageFile), path.Join(r.now, hiddenFile))); {
	case errors.Is(err, ErrNoSpace):
		return false, nil
	case errors.Is(err, fs.ErrNotExist): // there is no image
		return true, nil
	case err != nil:
		return false, err
	}
	_, err = root.Lstat(path.Join(r.now, hiddenFile))
	if errors.Is(err, fs.ErrNotExist) {
		err = ErrMarkGone
	}
	if err = cmp.Or(err, r.CheckMark()); err != nil {
		err = errors.Join(err, showImage(root, r.now), showImage(root, r.folder.path()))
	}
	return err == nil, err
}

// showImage undoes hideImage in a folder. It does nothing if the folder has no hidden image, or an image.
func showImage(root *os.Root, folder string) error {
	hidden, image := path.Join(folder, hiddenFile), path.Join(folder, imageFile)
	if _, err := root.Lstat(hidden); err != nil {
		return ignoreMissing(err)
	}
	if _, err := root.Lstat(image); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return ignoreMissing(atomicfile.Rename(root, hidden, image))
}

// Sync implements Removal.
func (r *folderRemoval) Sync() error { return atomicfile.SyncFolder(r.folder.disk.root, imagesFolder) }

// ownFiles are the files of an image folder that this program may delete besides images and marks, in this order. The record
// is the last one, because a folder without a record is not owned.
var ownFiles = []string{
	partFile, partChunksFile, partTempFile, partIndexFile, chunksFile, newManifestFile, indexFile, cfgFile, cfgFile + ".tmp", recordFile + ".tmp", recordFile,
}

// removeOwnFiles deletes the images first: without them, the other files are no copy.
func removeOwnFiles(root *os.Root, folder string, images []string) error {
	remove := func(names []string) error {
		for _, name := range names {
			if err := ignoreMissing(root.Remove(path.Join(folder, name))); err != nil {
				return err
			}
		}
		return nil
	}
	if err := remove(images); err != nil {
		return err
	}
	// After a power failure, the image must not exist without its other files.
	if err := atomicfile.SyncFolder(root, folder); err != nil {
		return err
	}
	// As long as the image exists, its mark shows other nodes that it may be deleted.
	if err := new(staleMarks).removeIn(root, folder); err != nil {
		return err
	}
	return remove(ownFiles)
}

// restoreRemoved restores the names of folders and images whose removal a crash interrupted. The next plan
// contains the action for the remaining files. It also removes the marks in these folders, because nothing else would.
func restoreRemoved(root *os.Root, marks *staleMarks) error {
	entries, err := imageEntries(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, removing := strings.CutPrefix(e.Name(), removingPrefix)
		if _, err := ident.ParseID(name); !e.IsDir() || err != nil {
			continue
		}
		if err := showImage(root, path.Join(imagesFolder, e.Name())); err != nil {
			return err
		}
		if !removing {
			continue
		}
		if _, err := root.Lstat(path.Join(imagesFolder, name)); !errors.Is(err, fs.ErrNotExist) {
			continue // the image was created again: the old folder is listed as unmanaged
		}
		if err := atomicfile.Rename(root, path.Join(imagesFolder, e.Name()), path.Join(imagesFolder, name)); err != nil {
			return err
		}
		_ = marks.removeIn(root, path.Join(imagesFolder, name)) // after an error, List tries again
	}
	return nil
}
