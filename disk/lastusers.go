package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// usersFile has the replicas that name images, as Users last found them. It is beside longhorn-disk.cfg, and belongs to
// the whole disk: a replica may need an image that has no folder on the disk.
const usersFile = "backing-image-manager.users"

// lastUsers are the replicas that name images, by folder. A use ends by evidence, not by absence (U6): a replica that
// is not found any more is a user until the nearest folder above it that exists is on the same file system as when the
// replica was last read, and is the same folder: a bind mount is no other file system. So a folder that is not mounted
// ends no use, also across restarts.
//
// The zero value is not loaded. It is for one goroutine.
type lastUsers struct {
	loaded   bool
	users    map[string]lastUser
	recorded map[string]lastUser // the content of usersFile
}

// lastUser is a replica when it was last read.
type lastUser struct {
	Image      string `json:"image"`                // the folder of the image
	FileSystem string `json:"fileSystem,omitempty"` // of the replica: see fileSystemOf
	Parent     uint64 `json:"parent,omitempty"`     // the inode of the folder of the replicas
}

// load reads usersFile once. While that fails, it is not known which images are in use.
func (l *lastUsers) load(root *os.Root) error {
	if l.loaded {
		return nil
	}
	data, err := readSmall(root, usersFile)
	if err == nil {
		err = json.Unmarshal(data, &l.users)
	}
	if ignoreMissing(err) != nil {
		return fmt.Errorf("read %s, which has the replicas that were found earlier: %w (remove it if all replicas can be read now)", usersFile, err)
	}
	l.loaded, l.recorded = true, maps.Clone(l.users)
	return nil
}

// update replaces the users by the replicas that were read, and by those that were not found and whose use has not
// ended. It adds the latter to u. listed: the folder of the replicas could be listed, or does not exist.
func (l *lastUsers) update(root *os.Root, present map[string]cachedReplica, listed bool, u *Users) {
	users := map[string]lastUser{}
	for replica, last := range l.users {
		if _, found := present[replica]; !found && !(listed && hasEnded(root, replica, last)) {
			users[replica] = last
			u.replicas[last.Image] = append(u.replicas[last.Image], replica+" (its folder is not there, and may not be mounted)")
		}
	}
	for replica, now := range present {
		if now.image != "" {
			users[replica] = lastUser{now.image, now.fileSystem, now.parent}
		}
	}
	for _, replicas := range u.replicas {
		slices.Sort(replicas)
	}
	l.users = users
}

// hasEnded reports whether it is certain that a replica was deleted.
func hasEnded(root *os.Root, replica string, last lastUser) bool {
	for folder := path.Join(replicaFolder, replica); ; folder = path.Dir(folder) {
		now, inode, err := fileSystemOf(root, folder)
		if folder == path.Join(replicaFolder, replica) && err == nil {
			return false // it is there, and cannot be read
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err == nil && now == last.FileSystem && (folder != replicaFolder || inode == last.Parent)
		}
	}
}

// fileSystemOf identifies the file system of a folder, also after a restart of the machine, and returns the inode of
// the folder. It is "" for the file system of the disk, which the uuid of the disk identifies.
func fileSystemOf(root *os.Root, folder string) (id string, inode uint64, err error) {
	f, err := root.OpenFile(folder, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", 0, err
	}
	defer f.Close()
	var st unix.Statfs_t
	disk, errDisk := root.Stat(".")
	info, errHere := f.Stat()
	if err := errors.Join(errDisk, errHere, unix.Fstatfs(int(f.Fd()), &st)); err != nil {
		return "", 0, fmt.Errorf("file system of %s: %w", folder, err)
	}
	here := folderID(info)
	if here.Device == folderID(disk).Device {
		return "", here.Inode, nil
	}
	return fmt.Sprintf("%x-%x", st.Type, st.Fsid.Val), here.Inode, nil
}

// RecordUsers records the replicas that name images, as Users last found them, durably. It writes only if they changed.
// The disk must be locked.
func (d *Disk) RecordUsers() error {
	d.replicas.mu.Lock()
	defer d.replicas.mu.Unlock()
	l := &d.replicas.last
	if !l.loaded || maps.Equal(l.users, l.recorded) {
		return nil
	}
	data, err := json.Marshal(l.users)
	if err == nil && len(data) > maxSmallFile {
		err = fmt.Errorf("more than %d bytes", maxSmallFile)
	}
	if err == nil {
		err = writeDurably(d.root, usersFile, data)
	}
	if err != nil {
		return fmt.Errorf("write %s of %s: %w", usersFile, d.path, err)
	}
	l.recorded = maps.Clone(l.users)
	return nil
}

// EndUses ends the uses of an image by replicas that are not found any more, because a person says that they have
// ended. All generations of the image are meant if uuid is "". RecordUsers makes that durable.
func (d *Disk) EndUses(name, uuid string) {
	d.replicas.mu.Lock()
	defer d.replicas.mu.Unlock()
	maps.DeleteFunc(d.replicas.last.users, func(replica string, last lastUser) bool {
		_, found := d.replicas.replicas[replica]
		id, err := ident.ParseID(last.Image)
		return !found && err == nil && id.Name == name && (uuid == "" || id.UUID == uuid)
	})
}
