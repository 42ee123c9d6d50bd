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
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Users are the users of the images on a disk: the replicas at the time of Disk.Users, and the processes
// at the time of FileOpen.
type Users struct {
	disk     *Disk
	replicas map[string][]string // folder of the image -> names of replica folders
	since    map[string]int64    // folder of the image -> earliest ctime of their volume.meta
	err      error
	failed   int // number of replicas in err
}

// Err returns an error if a replica cannot be read. The list is then incomplete, and every image of
// the node counts as in use.
func (u Users) Err() error { return u.err }

// Replicas returns the names of the replica folders that name the image, sorted.
func (u Users) Replicas(id ident.ID) []string { return u.replicas[id.String()] }

// InUse reports whether a replica names the image, and the reason.
func (u Users) InUse(id ident.ID) (reason string, inUse bool) {
	if by := u.Replicas(id); len(by) > 0 {
		return "used by replica " + strings.Join(by, ", "), true
	}
	return "", false
}

// mayBeInUse is like InUse, but while a replica cannot be read, it counts every image as in use.
func (u Users) mayBeInUse(id ident.ID) (reason string, inUse bool) {
	if reason, inUse := u.InUse(id); inUse {
		return reason, true
	}
	if u.err != nil {
		return "cannot determine what is in use: " + u.err.Error(), true
	}
	return "", false
}

// FileOpen reports whether any process, including this one, has the file of the image open, and the
// reason.
func (u Users) FileOpen(id ident.ID) (reason string, open bool) {
	return u.disk.leases.fileOpen(u.disk.root, filePath(id, imageFile))
}

// Users reads the metadata of all replicas on the disk, in every state. It reads only files that
// changed since the last call. A replica that is not found stays a user until its deletion is certain
// (see replicas).
func (d *Disk) Users() Users {
	u := Users{disk: d, replicas: map[string][]string{}, since: map[string]int64{}}
	d.replicas.find(&u)
	return u
}

// maxReplicaErrors limits the number of unreadable replicas in a message.
const maxReplicaErrors = 10

// addError adds the error of a replica.
func (u *Users) addError(err error) {
	u.failed++
	switch {
	case u.err == nil:
		u.err = err
	case u.failed <= maxReplicaErrors:
		u.err = fmt.Errorf("%w; %w", u.err, err)
	case u.failed == maxReplicaErrors+1:
		u.err = fmt.Errorf("%w; and others", u.err)
	}
}

// usersFile has the replicas that name images, as Users last found them. It is beside longhorn-disk.cfg, not in the
// folder of an image: a replica may need an image that has no folder on the disk.
const usersFile = "backing-image-manager.users"

// usersVersion is the version of the format of usersFile.
const usersVersion = 1

// recordedUsers is the content of usersFile.
type recordedUsers struct {
	Version int             `json:"version"`
	Users   map[string]user `json:"users"`
}

// replicas are the replica folders of Longhorn on a disk, and the images that they name. It is safe for concurrent use.
//
// A use ends by evidence, not by absence (U6). A replica that is not found stays a user until its deletion is certain: the
// nearest existing folder above it must be on the file system on which the replica was last read. If this is the folder
// "replicas", its inode must be unchanged, too, because a bind mount has the same file system. So a folder that is not
// mounted ends no use, also across restarts.
type replicas struct {
	diskRoot *os.Root

	mu       sync.Mutex
	found    map[string]foundReplica // all replicas by folder, as they were last read
	loaded   bool                    // usersFile was read
	users    map[string]user         // the replicas that name an image, by folder, found or not
	recorded map[string]user         // the users in usersFile
}

// user is a replica that names an image, as it was last read.
type user struct {
	Image      string `json:"image"`                // the folder of the image
	FileSystem string `json:"fileSystem,omitempty"` // the id of fileSystemOf for the replica
	Parent     uint64 `json:"parent,omitempty"`     // the inode of the folder of the replicas
}

// foundReplica is a replica while its volume.meta has this evidence. Image "" means that the volume has no image.
type foundReplica struct {
	user
	evidence Evidence
}

// find reads all replicas, and adds the users to u.
func (r *replicas) find(u *Users) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.load(); err != nil {
		u.addError(err)
	}
	entries, err := fs.ReadDir(r.diskRoot.FS(), replicaFolder)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = r.diskRoot.Lstat(replicaFolder); err == nil {
			err = errors.New("it is a dangling symlink: mount its target")
		}
	}
	listed := ignoreMissing(err) == nil
	if !listed {
		u.addError(fmt.Errorf("list %s: %w", replicaFolder, err))
	}
	found := make(map[string]foundReplica, len(entries))
	users := map[string]user{}
	for _, e := range entries {
		replica, err := readReplica(r.diskRoot, e.Name(), r.found[e.Name()])
		if err != nil {
			u.addError(fmt.Errorf("replica %s: %w", e.Name(), err))
			continue
		}
		found[e.Name()] = replica
		if replica.Image != "" {
			users[e.Name()] = replica.user
			u.add(r.diskRoot, e.Name(), replica)
		}
	}
	for name, last := range r.users {
		if _, ok := found[name]; !ok && !(listed && hasEnded(r.diskRoot, name, last)) {
			users[name] = last
			u.replicas[last.Image] = append(u.replicas[last.Image], name+" (its folder is not there, and may not be mounted)")
		}
	}
	for _, names := range u.replicas {
		slices.Sort(names)
	}
	r.found, r.users = found, users
}

// add adds a replica that names an image.
func (u *Users) add(root *os.Root, name string, replica foundReplica) {
	image := replica.Image
	if u.replicas[image] == nil {
		if link, err := isLink(root, image); link {
			u.addError(fmt.Errorf("replica %s: the backing file %s is a symlink and may refer to any image", name, image))
		} else if err != nil {
			u.addError(fmt.Errorf("replica %s: the backing file may refer to any image: %w", name, err))
		}
	}
	if since, known := u.since[image]; !known || replica.evidence.ChangeTime < since {
		u.since[image] = replica.evidence.ChangeTime
	}
	u.replicas[image] = append(u.replicas[image], name)
}

// load reads usersFile unless an earlier call has read it. After an error it is not known which images are in use.
func (r *replicas) load() error {
	if r.loaded {
		return nil
	}
	var last recordedUsers
	data, err := readSmall(r.diskRoot, usersFile)
	if err == nil {
		err = json.Unmarshal(data, &last)
	}
	if err == nil && last.Version != usersVersion {
		err = model.VersionError(last.Version, usersVersion, "run the release of backing-image-manager that wrote it")
	}
	if ignoreMissing(err) != nil {
		return fmt.Errorf("read %s, the list of the replicas that were found earlier: %w; if all replicas can be read now, remove the file", usersFile, err)
	}
	r.loaded, r.users, r.recorded = true, last.Users, maps.Clone(last.Users)
	return nil
}

// readReplica reads the volume.meta of a replica. If it is unchanged, readReplica returns the argument last.
func readReplica(root *os.Root, folder string, last foundReplica) (foundReplica, error) {
	name := path.Join(replicaFolder, folder, "volume.meta")
	info, err := root.Lstat(name)
	if err != nil {
		return foundReplica{}, err
	}
	if last.evidence == evidenceOf(info) {
		return last, nil
	}
	fileSystem, _, err := fileSystemOf(root, path.Dir(name))
	if err != nil {
		return foundReplica{}, err
	}
	_, parent, err := fileSystemOf(root, replicaFolder)
	if err != nil {
		return foundReplica{}, err
	}
	data, err := readSmall(root, name)
	if err != nil {
		return foundReplica{}, err
	}
	m, err := ParseVolumeMeta(data)
	if err != nil {
		return foundReplica{}, err
	}
	image, _, err := m.BackingImage()
	return foundReplica{user{image, fileSystem, parent}, evidenceOf(info)}, err
}

// isLink reports whether the folder of an image or its file is a symlink. A symlink may refer to the
// folder of another image. After an error, the result is not known.
func isLink(root *os.Root, image string) (bool, error) {
	for _, name := range []string{path.Join(imagesFolder, image), path.Join(imagesFolder, image, imageFile)} {
		info, err := root.Lstat(name)
		switch {
		case err == nil && info.Mode()&fs.ModeSymlink != 0:
			return true, nil
		case ignoreMissing(err) != nil && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ENAMETOOLONG):
			return false, err
		}
	}
	return false, nil
}

// hasEnded reports whether the deletion of a replica is certain (see replicas).
func hasEnded(root *os.Root, replica string, last user) bool {
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

// fileSystemOf returns the inode of a folder, and an id of its file system. The id stays the same after a restart of the
// machine. The id "" means the file system of the disk, which the uuid of the disk identifies.
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

// RecordUsers writes the present users durably to the disk, if they changed: the users that the last
// call of Users found, without those that EndUses ended since. The disk must be locked.
func (r *replicas) RecordUsers() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.loaded || maps.Equal(r.users, r.recorded) {
		return nil
	}
	data, err := json.Marshal(recordedUsers{usersVersion, r.users})
	if err == nil && len(data) > maxSmallFile {
		err = fmt.Errorf("the list of replicas has more than %d bytes", maxSmallFile)
	}
	if err == nil {
		err = writeDurably(r.diskRoot, usersFile, data)
	}
	if err != nil {
		return fmt.Errorf("write %s of %s: %w", usersFile, r.diskRoot.Name(), err)
	}
	r.recorded = maps.Clone(r.users)
	return nil
}

// EndUses ends the uses of an image by replicas that are not found, after a person confirmed that these uses have
// ended. The uuid "" means all generations of the image. RecordUsers makes the end durable.
func (r *replicas) EndUses(name, uuid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.users, func(replica string, last user) bool {
		_, found := r.found[replica]
		id, err := ident.ParseID(last.Image)
		return !found && err == nil && id.Name == name && (uuid == "" || id.UUID == uuid)
	})
}
