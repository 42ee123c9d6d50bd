package disk

import (
	"errors"
	"io/fs"
	"path"
	"time"
)

// Demand is the need of replicas on a disk for an image that has no file there. Their volumes cannot start
// without it.
type Demand struct {
	Replicas []string // names of the replica folders that name the image, sorted
	// Since is when the volume.meta of one of the replicas last changed, the earliest time of all.
	Since time.Time
	// OtherWriter is when Longhorn's manager last wrote to a temporary file of the image; zero: there is
	// none. That manager may be creating the file, and deletes one of unexpected bytes.
	OtherWriter time.Time
}

// Demands returns the images that replicas name by <name>-<uuid> and that have no file on the disk, at the
// time of the call. A replica whose metadata cannot be read demands nothing.
func (u Users) Demands() map[ID]Demand {
	var all map[ID]Demand
	for folder, replicas := range u.replicas {
		id, err := ParseID(folder)
		if err != nil || !u.disk.hasNoFile(id) {
			continue
		}
		if all == nil {
			all = map[ID]Demand{}
		}
		all[id] = Demand{Replicas: replicas, Since: time.Unix(0, u.since[folder]).UTC(), OtherWriter: u.disk.otherWriter(id)}
	}
	return all
}

// hasNoFile reports whether it is certain that an image has no file, and that its folder is not a symlink.
func (d *Disk) hasNoFile(id ID) bool {
	_, err := d.root.Lstat(id.file(imageFile))
	return errors.Is(err, fs.ErrNotExist) && !isLink(d.root, id.String())
}

// otherWriter returns when Longhorn's manager last wrote to one of its temporary files of an image: it
// prepares the first file of a cluster in tmp, and all others in the folder of the image.
func (d *Disk) otherWriter(id ID) (last time.Time) {
	for _, name := range []string{
		id.file("backing.tmp"), id.file("backing-raw.tmp"), path.Join("tmp", id.String()), path.Join("tmp", id.String()+".tmp"),
		path.Join("tmp", id.String()+".tmp.qcow2tmp"), path.Join("tmp", id.String()+".tmp-raw.tmp"),
	} {
		if info, err := d.root.Lstat(name); err == nil && info.Mode().IsRegular() && info.ModTime().After(last) {
			last = info.ModTime().UTC()
		}
	}
	return last
}
