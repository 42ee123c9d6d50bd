package disk

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Need describes the replicas on a disk that name an image. Their volumes cannot start without the image.
type Need struct {
	Replicas []string // names of the replica folders that name the image, sorted
	// Since is the earliest change time of their volume.meta files. Zero: not known.
	Since time.Time
	// OtherWriter is when Longhorn's manager last wrote to a temporary file of the image; zero: there is
	// none, or the image exists. That manager may be creating the image, and deletes an unexpected file.
	OtherWriter time.Time
}

// Needs returns the images that replicas name by <name>-<uuid>, whether they have a file on the disk or
// not. It leaves out an image whose folder is a symlink, or is set aside by a running Remove, which puts the
// folder back if there is a user. A replica whose metadata cannot be read needs nothing.
func (u Users) Needs() map[ident.ID]Need {
	var all map[ident.ID]Need
	for folder, replicas := range u.replicas {
		id, err := ident.ParseID(folder)
		if err != nil {
			continue
		}
		if link, _ := isLink(u.disk.root, folder); link {
			continue
		}
		need := Need{Replicas: replicas}
		if since, known := u.since[folder]; known {
			need.Since = time.Unix(0, since).UTC()
		}
		if _, err := u.disk.root.Lstat(filePath(id, imageFile)); errors.Is(err, fs.ErrNotExist) {
			if _, err := u.disk.root.Lstat(path.Join(imagesFolder, removingPrefix+folder)); err == nil {
				if !u.disk.removals.TryLock() {
					continue
				}
				u.disk.removals.Unlock() // a crash interrupted that removal
			}
			need.OtherWriter = otherWriter(u.disk.root, id)
		}
		if all == nil {
			all = map[ident.ID]Need{}
		}
		all[id] = need
	}
	return all
}

// otherWriter returns when Longhorn's manager last wrote to one of its temporary files of an image: it
// prepares the first file of a cluster in tmp, and all others in the folder of the image.
func otherWriter(root *os.Root, id ident.ID) (last time.Time) {
	for _, name := range []string{
		filePath(id, "backing.tmp"), filePath(id, "backing-raw.tmp"), path.Join("tmp", id.String()), path.Join("tmp", id.String()+".tmp"),
		path.Join("tmp", id.String()+".tmp.qcow2tmp"), path.Join("tmp", id.String()+".tmp-raw.tmp"),
	} {
		if info, err := root.Lstat(name); err == nil && info.Mode().IsRegular() && info.ModTime().After(last) {
			last = info.ModTime().UTC()
		}
	}
	return last
}
