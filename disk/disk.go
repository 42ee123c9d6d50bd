package disk

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

const (
	identityFile  = "longhorn-disk.cfg"
	imagesFolder  = "backing-images"
	replicaFolder = "replicas"
)

// Errors that callers distinguish.
var (
	// ErrNotInitialised: the path has no readable identity file, for example because the disk is not
	// mounted. Nothing below the path is changed.
	ErrNotInitialised = errors.New("no disk here")
	// ErrLocked: another process writes to the disk.
	ErrLocked = errors.New("disk is locked by another process: stop that process first")
	// ErrNoSpace: the disk is full, or would have less free space than is reserved.
	ErrNoSpace = errors.New("not enough space")
)

// ErrReadOnly: the file system of the disk is read-only.
var ErrReadOnly error = unix.EROFS

// errDiskChanged: since Open, the disk was unmounted, or another file system was mounted at the path.
var errDiskChanged = errors.New("this is not the disk that was opened")

// Disk is one disk, opened by its identity. Its methods may be called concurrently, but the caller
// must not run two methods that change the same image at the same time.
type Disk struct {
	mount
	replicas // of Longhorn's volumes

	metadata metaCache
	leases   leaseProbe
	marks    staleMarks

	// unrestored is true if the folder of an interrupted removal could not be restored, because the disk was read-only
	// or full. List tries again.
	unrestored atomic.Bool
	removals   sync.RWMutex // each Remove holds it for reading
}

// mount is the file system of a disk. It knows no images.
type mount struct {
	path     string
	uuid     string
	root     *os.Root
	identity os.FileInfo // of the identity file, to detect another disk at the path
	// refused is true after a write failed with ErrReadOnly, until a write succeeds (see ReadOnly).
	refused atomic.Bool
}

// identity is longhorn-disk.cfg, in the form that longhorn-manager writes.
type identity struct {
	DiskName   string `json:"diskName"`
	DiskUUID   string `json:"diskUUID"`
	DiskDriver string `json:"diskDriver"`
	State      string `json:"state"`
}

var diskUUIDPattern = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}$`)

// Init creates the identity of the disk at path and returns its uuid. If the disk already has an
// identity, Init returns its uuid and changes nothing.
func Init(path string) (string, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return "", fmt.Errorf("initialise disk: %w", err)
	}
	defer root.Close()
	have, err := readIdentity(root)
	if err == nil {
		return have.DiskUUID, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("initialise disk %s: %s exists but cannot be used, repair or remove it: %w", path, identityFile, err)
	}
	id := identity{DiskUUID: uuid.NewString(), State: "ready"}
	id.DiskName = "disk-" + id.DiskUUID[:8]
	data, err := json.Marshal(id)
	if err != nil {
		return "", err
	}
	if err := writeDurably(root, identityFile, data); err != nil {
		return "", fmt.Errorf("initialise disk %s: %w", path, err)
	}
	return id.DiskUUID, nil
}

func readIdentity(root *os.Root) (identity, error) {
	data, err := readSmall(root, identityFile)
	if err != nil {
		return identity{}, err
	}
	var id identity
	if err := json.Unmarshal(data, &id); err != nil {
		return identity{}, err
	}
	if !diskUUIDPattern.MatchString(id.DiskUUID) {
		return identity{}, fmt.Errorf("diskUUID %q is not a uuid", id.DiskUUID)
	}
	return id, nil
}

// Open opens the disk at path. Call Lock before any change. ErrNotInitialised: there is no disk at
// path, or its identity cannot be read.
func Open(path string) (*Disk, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotInitialised, err)
	}
	id, err := readIdentity(root)
	var info os.FileInfo
	if err == nil {
		info, err = root.Stat(identityFile)
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %s has no %s", ErrNotInitialised, path, identityFile)
	} else if err != nil {
		err = fmt.Errorf("%w: %s of %s cannot be used: %w", ErrNotInitialised, identityFile, path, err)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return &Disk{mount: mount{path: path, uuid: id.DiskUUID, root: root, identity: info}, replicas: replicas{diskRoot: root}}, nil
}

// Path returns the absolute path at which the disk was opened.
func (m *mount) Path() string { return m.path }

// UUID returns the identity of the disk.
func (m *mount) UUID() string { return m.uuid }

// Close releases the disk. Close its partial files and readers first.
func (m *mount) Close() error { return m.root.Close() }

// Check returns an error if the disk at the path is not this disk any more: it was unmounted, or
// another file system or disk was mounted at the path.
func (m *mount) Check() error {
	now, err := os.Stat(filepath.Join(m.path, identityFile))
	if err != nil {
		return fmt.Errorf("%w: %w", errDiskChanged, err)
	}
	if !os.SameFile(now, m.identity) {
		return fmt.Errorf("%w: %s has changed", errDiskChanged, filepath.Join(m.path, identityFile))
	}
	return nil
}

// Lock makes this process the only writer of the disk until it calls unlock or ends. Lock also restores
// folders if a crash interrupted their removal, and removes old marks. It does not wait: if another
// process has the lock, it returns ErrLocked.
func (d *Disk) Lock() (unlock func() error, err error) {
	f, err := d.root.Open(identityFile)
	if err != nil {
		return nil, fmt.Errorf("lock disk %s: %w", d.path, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock disk %s: %w", d.path, ErrLocked)
		}
		return nil, fmt.Errorf("lock disk %s: %w", d.path, err)
	}
	unlock = func() error {
		// A child process shares the lock between its fork and its exec. Close alone would leave the
		// lock to the child.
		return errors.Join(unix.Flock(int(f.Fd()), unix.LOCK_UN), f.Close())
	}
	switch err := noSpace(restoreRemoved(d.root, &d.marks)); {
	case errors.Is(err, ErrReadOnly), errors.Is(err, ErrNoSpace):
		d.unrestored.Store(true) // the other copies stay in service; List tries again
	case err != nil:
		_ = unlock() // the first error is returned
		return nil, fmt.Errorf("restore images of %s whose removal was interrupted: %w", d.path, err)
	}
	d.marks.removeOld(d.root)
	return unlock, nil
}

// ReadOnly reports whether the file system of the disk is read-only. After an error, the kernel makes
// some file systems read-only without a change of their flags. Therefore the caller reports failed
// writes to WriteFailed. After such a report, each call of ReadOnly tries a write, until one succeeds. This write changes
// only the times of the disk's folder.
//
// A disk with an EIO on a write is not read-only: a bad sector affects one file, and a repair rewrites
// it.
func (m *mount) ReadOnly() (bool, error) {
	st, dir, err := m.statfs()
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if st.Flags&unix.ST_RDONLY != 0 {
		return true, nil
	}
	if m.refused.Load() {
		now := unix.Timespec{Nsec: unix.UTIME_NOW}
		m.refused.Store(errors.Is(unix.UtimesNanoAt(int(dir.Fd()), ".", []unix.Timespec{now, now}, 0), ErrReadOnly))
	}
	return m.refused.Load(), nil
}

// statfs returns the state of the file system, and the open folder of the disk.
func (m *mount) statfs() (st unix.Statfs_t, dir *os.File, err error) {
	if dir, err = m.root.Open("."); err != nil {
		return st, nil, err
	}
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return st, nil, errors.Join(fmt.Errorf("state of the file system of disk %s: %w", m.path, err), dir.Close())
	}
	return st, dir, nil
}

// WriteFailed records, for ReadOnly, that a write to the disk failed with ErrReadOnly. It ignores every other error, and nil.
func (m *mount) WriteFailed(err error) {
	if errors.Is(err, ErrReadOnly) {
		m.refused.Store(true)
	}
}

// Space returns the current size and free space of the file system.
func (m *mount) Space() (model.Space, error) {
	st, dir, err := m.statfs()
	if err != nil {
		return model.Space{}, err
	}
	defer dir.Close()
	// Blocks are counted in units of Frsize. Bsize is the preferred size of a request, which is much
	// larger on network file systems.
	unit := int64(cmp.Or(st.Frsize, st.Bsize))
	return model.Space{Total: bytesOf(st.Blocks, unit), Free: bytesOf(st.Bavail, unit)}, nil
}

// Folder returns the identity of the folder backing-images. Zero means that it does not exist.
func (m *mount) Folder() (model.FolderID, error) {
	info, err := m.root.Lstat(imagesFolder)
	if err != nil {
		return model.FolderID{}, ignoreMissing(err)
	}
	return folderID(info), nil
}

// bytesOf returns blocks * unit. Some file systems report more blocks than fit in an int64.
func bytesOf(blocks uint64, unit int64) int64 {
	if unit <= 0 || blocks > uint64(math.MaxInt64/unit) {
		return math.MaxInt64
	}
	return int64(blocks) * unit
}

// NoSpaceError is an ErrNoSpace with the number of bytes.
type NoSpaceError struct {
	Need int64 // bytes required
	Free int64 // bytes free beyond the reserve
}

// Error returns a message with both numbers.
func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("%v: %s are needed and %s are free beyond the reserve", ErrNoSpace, humanize.IBytes(uint64(e.Need)), humanize.IBytes(uint64(e.Free)))
}

// Is makes errors.Is(e, ErrNoSpace) true.
func (e *NoSpaceError) Is(target error) bool { return target == ErrNoSpace }

// noSpace wraps err in ErrNoSpace if a full disk or quota is its cause.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// commitFile has the last accepted commit of the configuration, for managers that require signed commits. It is
// beside longhorn-disk.cfg, and belongs to the whole disk.
const commitFile = "backing-image-manager.commit"

// ConfigCommit is a commit of the configuration.
type ConfigCommit struct {
	Name string // the hash by which git names it
	// Signed is a SHA-256 of what the signature covers. Committed is the date of the commit.
	Signed    string
	Committed time.Time
}

var commitPattern = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{64}) (-?[0-9]{1,12})\n?$`)

// ConfigCommit returns the commit that SetConfigCommit recorded; zero means none. After an error it is not known: the
// file cannot be read, or its content is not a commit.
func (m *mount) ConfigCommit() (ConfigCommit, error) {
	data, err := readSmall(m.root, commitFile)
	if errors.Is(err, fs.ErrNotExist) {
		return ConfigCommit{}, nil
	}
	if err != nil {
		return ConfigCommit{}, fmt.Errorf("read %s of %s: %w", commitFile, m.path, err)
	}
	fields := commitPattern.FindStringSubmatch(string(data))
	if fields == nil {
		return ConfigCommit{}, fmt.Errorf("%s of %s does not contain a commit", commitFile, m.path)
	}
	seconds, _ := strconv.ParseInt(fields[3], 10, 64) // at most 12 digits
	return ConfigCommit{Name: fields[1], Signed: fields[2], Committed: time.Unix(seconds, 0).UTC()}, nil
}

// SetConfigCommit records a commit, durably. The disk must be locked.
func (m *mount) SetConfigCommit(c ConfigCommit) error {
	if err := writeDurably(m.root, commitFile, fmt.Appendf(nil, "%s %s %d\n", c.Name, c.Signed, c.Committed.Unix())); err != nil {
		return fmt.Errorf("write %s of %s: %w", commitFile, m.path, err)
	}
	return nil
}
