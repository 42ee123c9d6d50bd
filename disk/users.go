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

// BackingImage returns the folder name of the image below the volume. ok is false for a
// volume without one.
//
// The path is as some container saw it, so only its end counts; the disk itself may be
// mounted below a folder of the same name. A path whose text does not name an image may
// still lead to one by links: that is an error.
func (m VolumeMeta) BackingImage() (folder string, ok bool, err error) {
	if m.BackingFilePath == "" {
		return "", false, nil
	}
	elements := strings.Split(path.Clean(m.BackingFilePath), "/")
	for i := len(elements) - 2; i >= 0; i-- {
		if elements[i] == imagesFolder {
			return elements[i+1], true, nil
		}
	}
	return "", false, fmt.Errorf("it lies on %q, and which image that is cannot be told", m.BackingFilePath)
}

// Users tells which images of a disk its replicas use.
type Users struct {
	replicas map[string][]string // folder of the image -> names of replica folders
	err      error
}

// Replicas returns the replicas that use the image, sorted.
func (u Users) Replicas(id ID) []string { return u.replicas[id.String()] }

// Err returns why the list of users is incomplete: some replica cannot be read. Every
// image of the disk then counts as in use. nil: the list is complete.
func (u Users) Err() error { return u.err }

// InUse reports whether the image counts as in use, and why.
func (u Users) InUse(id ID) (reason string, inUse bool) {
	if by := u.Replicas(id); len(by) > 0 {
		return "used by replica " + strings.Join(by, ", "), true
	}
	if u.err != nil {
		return "cannot tell what is used: " + u.err.Error(), true
	}
	return "", false
}

// replicaLook remembers what one volume.meta said, for as long as it is the same
// file.
type replicaLook struct {
	evidence Evidence
	image    string // the folder of its image; "": it has none
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
		u.err = fmt.Errorf("list %s: %w", replicaFolder, err)
		return u
	}
	looks := make(map[string]replicaLook, len(entries))
	for _, e := range entries {
		look, err := d.lookAtReplica(e)
		if err != nil {
			u.err = fmt.Errorf("replica %s: %w", e.Name(), err)
			continue
		}
		looks[e.Name()] = look
		if look.image != "" {
			if u.replicas[look.image] == nil && d.isLink(look.image) {
				u.err = fmt.Errorf("replica %s: it lies on %s, which is a link to what may be any image", e.Name(), look.image)
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
	image, _, err := m.BackingImage()
	return replicaLook{evidence: evidenceOf(info), image: image}, err
}

// FileOpen reports whether any process has the file of the image open, this process
// included, and why it counts as open.
func (d *Disk) FileOpen(id ID) (reason string, open bool) { return d.fileOpenAt(id.file(imageFile)) }

// fileOpenAt probes one file at a time: each of two probes would find the file of the other.
func (d *Disk) fileOpenAt(name string) (reason string, open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f, err := openImage(d.root, name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		return "cannot tell whether a process has the file open: " + err.Error(), true
	}
	defer f.Close()
	return openElsewhere(f)
}

// openElsewhere reports whether any process has f open by another descriptor: the kernel
// then refuses a write lease. Where leases do not work, the file counts as open.
func openElsewhere(f *os.File) (reason string, open bool) {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	}
	switch {
	case err == nil:
		return "", false
	case errors.Is(err, unix.EAGAIN):
		return "a process has the file open", true
	}
	return fmt.Sprintf("cannot tell whether a process has the file open: %v", err), true
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
