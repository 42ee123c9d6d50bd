package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// VolumeMeta is what a replica's volume.meta says that matters to an image: one that
// the volume lies on, or that is to be made of it. The other keys are ignored.
type VolumeMeta struct {
	Size            int64  // bytes of the volume
	Head            string // the file that is written to
	BackingFilePath string // of the image below the volume; "" when there is none
	Dirty           bool   // a process has the replica open, or died with it
	Rebuilding      bool   // its files are being fetched from another replica
	Error           string // what Longhorn gave the replica up for
}

// ParseVolumeMeta reads a volume.meta. An empty or cut one is an error: Longhorn
// makes a new one from the other files then, without the backing file.
func ParseVolumeMeta(data []byte) (VolumeMeta, error) {
	var m VolumeMeta
	if err := json.Unmarshal(data, &m); err != nil {
		return VolumeMeta{}, fmt.Errorf("read volume.meta: %w", err)
	}
	if m.Size <= 0 {
		return VolumeMeta{}, fmt.Errorf("read volume.meta: size %d", m.Size)
	}
	return m, nil
}

// Image returns the folder name of the image that the volume lies on, "" for a
// volume on none. The path is as some container saw it, so that only its end is
// looked at; the disk itself may lie below a folder of the same name. A path that
// does not lead to an image by its text may do so by links.
func (m VolumeMeta) Image() (string, error) {
	if m.BackingFilePath == "" {
		return "", nil
	}
	elements := strings.Split(path.Clean(m.BackingFilePath), "/")
	for i := len(elements) - 2; i >= 0; i-- {
		if elements[i] == imagesFolder {
			return elements[i+1], nil
		}
	}
	return "", fmt.Errorf("it lies on %q, and which image that is cannot be told", m.BackingFilePath)
}

// Users tells which images of a disk its replicas use.
type Users struct {
	replicas map[string][]string // folder of the image -> names of replica folders
	unknown  string
}

// Replicas returns the replicas that use the image, sorted.
func (u Users) Replicas(id ID) []string { return u.replicas[id.String()] }

// Unknown is not empty when some replica cannot be read, with the reason. Every
// image of the disk then counts as used.
func (u Users) Unknown() string { return u.unknown }

// Using says why the image must be left alone, and is empty when nothing uses it.
func (u Users) Using(id ID) string {
	if by := u.Replicas(id); len(by) > 0 {
		return "used by replica " + strings.Join(by, ", ")
	}
	if u.unknown != "" {
		return "cannot tell what is used: " + u.unknown
	}
	return ""
}

// replicaLook remembers what one volume.meta said, for as long as it is the same
// file.
type replicaLook struct {
	evidence Evidence
	image    string
}

// Users reads the metadata of all replicas on the disk, whatever their state.
// Only those that changed since the last call are read again.
func (d *Disk) Users() Users {
	d.mu.Lock()
	defer d.mu.Unlock()
	u := Users{replicas: map[string][]string{}}
	entries, err := fs.ReadDir(d.root.FS(), replicaFolder)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := d.root.Lstat(replicaFolder); errors.Is(err, fs.ErrNotExist) {
			return u
		}
		err = fmt.Errorf("%s is a link that leads nowhere", replicaFolder)
	}
	if err != nil {
		u.unknown = fmt.Sprintf("list %s: %v", replicaFolder, err)
		return u
	}
	looks := make(map[string]replicaLook, len(entries))
	for _, e := range entries {
		look, err := d.lookAtReplica(e)
		if err != nil {
			u.unknown = fmt.Sprintf("replica %s: %v", e.Name(), err)
			continue
		}
		looks[e.Name()] = look
		if look.image != "" {
			if u.replicas[look.image] == nil && d.isLink(look.image) {
				u.unknown = fmt.Sprintf("replica %s: it lies on %s, which is a link to what may be any image", e.Name(), look.image)
			}
			u.replicas[look.image] = append(u.replicas[look.image], e.Name())
		}
	}
	d.replicas = looks
	return u
}

// isLink reports whether the bytes of an image that a replica names are behind a link,
// and so perhaps in the folder of another one.
func (d *Disk) isLink(image string) bool {
	for _, name := range []string{path.Join(imagesFolder, image), path.Join(imagesFolder, image, imageFile)} {
		if info, err := d.root.Lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return true
		}
	}
	return false
}

func (d *Disk) lookAtReplica(e fs.DirEntry) (replicaLook, error) {
	name := path.Join(replicaFolder, e.Name(), "volume.meta")
	info, err := d.root.Lstat(name)
	if err != nil {
		return replicaLook{}, err
	}
	last, ok := d.replicas[e.Name()]
	if ok && last.evidence == evidenceOf(info) {
		return last, nil
	}
	data, err := readSmall(d.root, name)
	if err != nil {
		return replicaLook{}, err
	}
	m, err := ParseVolumeMeta(data)
	if err != nil {
		return replicaLook{}, err
	}
	image, err := m.Image()
	return replicaLook{evidence: evidenceOf(info), image: image}, err
}

// Opened says whether any process has the file of the image open, this one
// included, and is empty when none has.
func (d *Disk) Opened(id ID) string { return d.openedAt(id.file(imageFile)) }

// openedAt looks at one file at a time: two looks would each find the other's.
func (d *Disk) openedAt(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := openImage(d.root, name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		return "cannot tell whether a process has the file open: " + err.Error()
	}
	defer f.Close()
	return opened(f)
}

// opened says whether any process has the file open: then a write lease cannot
// be had. Where leases do not work, nobody can tell, and it counts as open.
func opened(f *os.File) string {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(err, unix.EAGAIN):
		return "a process has the file open"
	}
	return fmt.Sprintf("cannot tell whether a process has the file open: %v", err)
}

// writable reports whether any process has the file open for writing: then a read
// lease cannot be had. Where leases do not work it says no.
func writable(f *os.File) bool {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
