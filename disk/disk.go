package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/dustin/go-humanize"
	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

const (
	identityFile  = "longhorn-disk.cfg"
	imagesFolder  = "backing-images"
	replicaFolder = "replicas"
)

// Errors that a caller of this package decides on.
var (
	// ErrNotInitialised: there is no readable identity, so nothing below the
	// path is touched. An unmounted disk looks the same.
	ErrNotInitialised = errors.New("no disk here")
	// ErrLocked: another process writes to the disk.
	ErrLocked = errors.New("disk is held by another process")
	// ErrNoSpace: the disk is full, or would go below what is reserved.
	ErrNoSpace = errors.New("not enough space")
	// ErrGone: another file system has come or gone at the path since Open.
	errDiskChanged = errors.New("disk is not what it was when it was opened")
)

// Disk is one disk, opened by its identity. Its methods may be called
// concurrently, but at most one for each image that changes something.
type Disk struct {
	path string
	uuid string
	root *os.Root
	self os.FileInfo // of the identity file, to notice another disk at the path

	mu       sync.Mutex
	replicas map[string]replicaLook
	texts    map[ID]described
	left     map[ID]leftPages
}

// identity is longhorn-disk.cfg, in the form that longhorn-manager writes.
type identity struct {
	DiskName   string `json:"diskName"`
	DiskUUID   string `json:"diskUUID"`
	DiskDriver string `json:"diskDriver"`
	State      string `json:"state"`
}

var diskUUIDPattern = regexp.MustCompile(`^[0-9a-zA-Z-]{1,64}$`)

// Init gives the folder path an identity and returns it. A disk that has one
// keeps it: Init then changes nothing and returns what is there.
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
		return "", fmt.Errorf("initialise disk %s: %s is there but cannot be used: %w", path, identityFile, err)
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

// Open opens the disk at path for reading. An error that is ErrNotInitialised
// says that no disk is there, or that it cannot be told who it is.
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
	var self os.FileInfo
	if err == nil {
		self, err = root.Stat(identityFile)
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
	return &Disk{path: path, uuid: id.DiskUUID, root: root, self: self, texts: map[ID]described{}, left: map[ID]leftPages{}}, nil
}

// Path returns the absolute path that the disk was opened at.
func (d *Disk) Path() string { return d.path }

// UUID returns the identity of the disk.
func (d *Disk) UUID() string { return d.uuid }

// Close releases the disk. Parts and readers of it must be closed before.
func (d *Disk) Close() error { return d.root.Close() }

// Check reports ErrGone when the path does not lead to this disk any more:
// unmounted, hidden by another mount, or another disk in its place.
func (d *Disk) Check() error {
	now, err := os.Stat(filepath.Join(d.path, identityFile))
	if err != nil {
		return fmt.Errorf("%w: %w", errDiskChanged, err)
	}
	if !os.SameFile(now, d.self) {
		return fmt.Errorf("%w: %s has changed", errDiskChanged, filepath.Join(d.path, identityFile))
	}
	return nil
}

// Lock makes this process the one that writes to the disk, until unlock or the
// end of the process, and puts back what a crash left half removed. It does not
// wait: ErrLocked says that another process has it.
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
	if err := d.restoreRemoved(); err != nil {
		f.Close()
		return nil, fmt.Errorf("put back half removed images of %s: %w", d.path, err)
	}
	return f.Close, nil
}

// Space is the room on the file system of a disk, in bytes.
type Space struct {
	Total int64
	Free  int64 // for everybody, without what is reserved for root
}

// Space looks how much room there is.
func (d *Disk) Space() (Space, error) {
	dir, err := d.root.Open(".")
	if err != nil {
		return Space{}, err
	}
	defer dir.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &st); err != nil {
		return Space{}, fmt.Errorf("space of disk %s: %w", d.path, err)
	}
	unit := st.Frsize // Bsize is what network file systems like to read at once
	if unit == 0 {
		unit = st.Bsize
	}
	return Space{Total: bytesOf(st.Blocks, int64(unit)), Free: bytesOf(st.Bavail, int64(unit))}, nil
}

// bytesOf is blocks of unit bytes; some file systems tell of more than there can be.
func bytesOf(blocks uint64, unit int64) int64 {
	if unit <= 0 || blocks > uint64(math.MaxInt64/unit) {
		return math.MaxInt64
	}
	return int64(blocks) * unit
}

// NoSpaceError is an ErrNoSpace of which it is known what was needed.
type NoSpaceError struct {
	Need int64 // bytes that were to be written
	Free int64 // bytes that were free beyond the reserve
}

func (e *NoSpaceError) Error() string {
	return fmt.Sprintf("%v: %s are needed and %s are free beyond the reserve", ErrNoSpace, humanize.IBytes(uint64(e.Need)), humanize.IBytes(uint64(e.Free)))
}

func (e *NoSpaceError) Is(target error) bool { return target == ErrNoSpace }

// noSpace marks err with ErrNoSpace when that is its cause, and leaves it be
// otherwise.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
