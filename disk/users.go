package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// VolumeMeta contains the keys of a replica's volume.meta that matter for the image below the volume,
// and for an image that is exported from the volume. Other keys are ignored.
type VolumeMeta struct {
	Size            int64  // bytes of the volume
	Head            string // the file that the volume writes to
	BackingFilePath string // path of the image below the volume; "": none
	Dirty           bool   // a process has the replica open, or exited without closing it
	Rebuilding      bool   // Longhorn is fetching its files from another replica
	Error           string // why Longhorn marked the replica as failed; "": it is not failed
}

// ParseVolumeMeta parses a volume.meta. An empty or truncated file is an error: Longhorn then creates
// a new one from the other files, without the backing file.
func ParseVolumeMeta(data []byte) (VolumeMeta, error) {
	var m VolumeMeta
	if err := json.Unmarshal(data, &m); err != nil {
		return VolumeMeta{}, fmt.Errorf("read volume.meta: %w", err)
	}
	if m.Size <= 0 {
		return VolumeMeta{}, fmt.Errorf("read volume.meta: invalid size %d", m.Size)
	}
	return m, nil
}

// BackingImage returns the folder name of the image below the volume. ok is false for a volume
// without an image.
//
// The path is from inside a container, so BackingImage uses only its last elements; the disk itself
// may be mounted below a folder of the same name. If the path does not name an image, it may still
// refer to an image by symlinks: that is an error.
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
	return "", false, fmt.Errorf("its backing file %q does not name an image", m.BackingFilePath)
}

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

// mayBeInUse is InUse that counts an image as in use, too, if a replica cannot be read.
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
// changed since the last call. A replica that was not deleted, as far as that is known, is still a user
// (see lastUsers).
func (d *Disk) Users() Users {
	u := d.replicas.users(d.root)
	u.disk = d
	return u
}

// maxReplicaErrors limits how many replicas a message names that cannot be read.
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

// replicaCache caches the image of each replica while its volume.meta is unchanged. It is safe for
// concurrent use.
type replicaCache struct {
	mu       sync.Mutex
	replicas map[string]cachedReplica // by folder
	last     lastUsers
}

type cachedReplica struct {
	evidence   Evidence // of volume.meta
	image      string   // folder of the image below the volume; "": none
	fileSystem string   // of the folder: see fileSystemOf
	parent     uint64   // the inode of the folder of the replicas
}

func (c *replicaCache) users(root *os.Root) Users {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := Users{replicas: map[string][]string{}, since: map[string]int64{}}
	if err := c.last.load(root); err != nil {
		u.addError(err)
	}
	entries, err := fs.ReadDir(root.FS(), replicaFolder)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err = root.Lstat(replicaFolder); err == nil {
			err = errors.New("dangling symlink")
		}
	}
	listed := ignoreMissing(err) == nil
	if !listed {
		u.addError(fmt.Errorf("list %s: %w", replicaFolder, err))
	}
	present := make(map[string]cachedReplica, len(entries))
	for _, e := range entries {
		replica, err := readReplica(root, e.Name(), c.replicas[e.Name()])
		if err != nil {
			u.addError(fmt.Errorf("replica %s: %w", e.Name(), err))
			continue
		}
		present[e.Name()] = replica
		if replica.image == "" {
			continue
		}
		if u.replicas[replica.image] == nil {
			if link, err := isLink(root, replica.image); link {
				u.addError(fmt.Errorf("replica %s: the backing file %s is a symlink and may refer to any image", e.Name(), replica.image))
			} else if err != nil {
				u.addError(fmt.Errorf("replica %s: the backing file may refer to any image: %w", e.Name(), err))
			}
		}
		if since, known := u.since[replica.image]; !known || replica.evidence.ChangeTime < since {
			u.since[replica.image] = replica.evidence.ChangeTime
		}
		u.replicas[replica.image] = append(u.replicas[replica.image], e.Name())
	}
	c.replicas = present
	c.last.update(root, present, listed, &u)
	return u
}

// readReplica returns the image of a replica. If volume.meta is unchanged, it returns last.
func readReplica(root *os.Root, folder string, last cachedReplica) (cachedReplica, error) {
	name := path.Join(replicaFolder, folder, "volume.meta")
	info, err := root.Lstat(name)
	if err != nil {
		return cachedReplica{}, err
	}
	if last.evidence == evidenceOf(info) {
		return last, nil
	}
	fileSystem, _, err := fileSystemOf(root, path.Dir(name))
	if err != nil {
		return cachedReplica{}, err
	}
	_, parent, err := fileSystemOf(root, replicaFolder)
	if err != nil {
		return cachedReplica{}, err
	}
	data, err := readSmall(root, name)
	if err != nil {
		return cachedReplica{}, err
	}
	m, err := ParseVolumeMeta(data)
	if err != nil {
		return cachedReplica{}, err
	}
	image, _, err := m.BackingImage()
	return cachedReplica{evidence: evidenceOf(info), image: image, fileSystem: fileSystem, parent: parent}, err
}

// isLink reports whether the folder of an image or its file is a symlink. A symlink may refer to the
// folder of another image. With an error that is not known.
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

// leaseProbe uses file leases to determine whether a file is open. It runs one probe at a time,
// because two concurrent probes of a file would detect each other, and none during Disk.Prove.
type leaseProbe struct{ mu sync.Mutex }

func (p *leaseProbe) fileOpen(root *os.Root, name string) (reason string, open bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f, err := openRegular(root, name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil {
		return "cannot determine whether a process has the file open: " + err.Error(), true
	}
	defer f.Close()
	return openElsewhere(f)
}

// leasedIn is a file with a write lease of this process.
type leasedIn struct {
	f     *os.File
	probe *leaseProbe
}

// lease takes a write lease on a file. It returns nil if the file does not exist, and an error if a
// process has it open, or if that cannot be determined. Until release there are no other probes: they
// would break the lease.
func (p *leaseProbe) lease(root *os.Root, name string) (*leasedIn, error) {
	p.mu.Lock()
	f, err := openRegular(root, name, os.O_RDONLY)
	if err == nil {
		if _, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err == nil {
			return &leasedIn{f, p}, nil
		}
		f.Close()
	}
	p.mu.Unlock()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.EAGAIN):
		return nil, errors.New("a process has the file open")
	}
	return nil, fmt.Errorf("cannot determine whether a process has the file open: %w", err)
}

// held reports whether no process has tried to open the file since the lease was taken.
func (l *leasedIn) held() bool {
	kind, err := unix.FcntlInt(l.f.Fd(), unix.F_GETLEASE, 0)
	return err == nil && kind == unix.F_WRLCK
}

// release ends the lease. Processes that opened the file meanwhile continue.
func (l *leasedIn) release() {
	l.f.Close()
	l.probe.mu.Unlock()
}

// openElsewhere reports whether any process has f open by another descriptor: the kernel then rejects
// a write lease. Where leases are not supported, the file counts as open.
func openElsewhere(f *os.File) (reason string, open bool) {
	switch err := probeLease(f, unix.F_WRLCK); {
	case err == nil:
		return "", false
	case errors.Is(err, unix.EAGAIN):
		return "a process has the file open", true
	default:
		return fmt.Sprintf("cannot determine whether a process has the file open: %v", err), true
	}
}

// openForWriting reports whether a process has f open for writing: the kernel then rejects a read
// lease. Where leases are not supported, it returns false. A process that is being started has copies
// of all descriptors of this one until it executes its program, so only a rejection that lasts counts.
func openForWriting(f *os.File) bool {
	const limit, pause = time.Second, 5 * time.Millisecond
	for start := time.Now(); errors.Is(probeLease(f, unix.F_RDLCK), unix.EAGAIN); time.Sleep(pause) {
		if time.Since(start) > limit {
			return true
		}
	}
	return false
}

// probeLease requests a lease on f and releases it.
func probeLease(f *os.File, kind int) error {
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, kind); err != nil {
		return err
	}
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
	return err
}
