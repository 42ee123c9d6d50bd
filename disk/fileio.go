package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
	"github.com/seed-26586806/backing-image-manager/internal/smallfile"
)

const (
	// privateMode is the mode of partial files and manifests: other users must not read an image that is
	// not verified, or that nobody publishes.
	privateMode = 0o600
	// imageMode is the mode of an image before the umask, as Longhorn creates it.
	imageMode = 0o644
)

// umask is the umask of the process. It is read before other goroutines can create files.
var umask = func() os.FileMode {
	mask := unix.Umask(0o077)
	unix.Umask(mask)
	return os.FileMode(mask)
}()

// setMode changes the mode of a file. Some file systems have no modes.
func setMode(f *os.File, mode os.FileMode) error {
	err := f.Chmod(mode)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

// openRegular opens a regular file below root. It does not follow links and never blocks on a pipe. A
// file that is opened for writing must have no second name (hard link): a write would also change the
// file with the other name.
func openRegular(root *os.Root, name string, flag int) (*os.File, error) {
	before, missing := root.Lstat(name)
	if missing == nil && !before.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	writes := flag&unix.O_ACCMODE != os.O_RDONLY
	if writes && missing != nil {
		flag |= os.O_EXCL // do not follow a link that another process creates now
	}
	f, err := openLeased(root, name, flag|unix.O_NONBLOCK)
	if err != nil {
		return nil, noSpace(err)
	}
	// The file may have been replaced after Lstat.
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", name)
	case writes && missing == nil && !os.SameFile(before, info):
		err = fmt.Errorf("%s was replaced while it was opened", name)
	case writes:
		err = checkOneName(name, info)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkOneName returns an error if the file has a second name (a hard link).
func checkOneName(name string, info os.FileInfo) error {
	if n := links(info); n != 1 {
		return fmt.Errorf("%s has %d names (hard links), and is not written, because that would change the file of each name: remove the other names", name, n)
	}
	return nil
}

// links returns the number of names of a file.
func links(info os.FileInfo) uint64 { return uint64(info.Sys().(*syscall.Stat_t).Nlink) }

// removeLinked removes one name of a regular file that has other names (hard links). The file continues
// to exist under the other names.
func removeLinked(root *os.Root, name string) error { return removeRegular(root, name, 2) }

// removeRegular removes a file below root if it is a regular file with at least the given number of
// hard links. It does not open or remove anything else.
func removeRegular(root *os.Root, name string, names uint64) error {
	info, err := root.Lstat(name)
	if err != nil {
		return ignoreMissing(err)
	}
	if !info.Mode().IsRegular() || links(info) < names {
		return nil
	}
	return root.Remove(name)
}

// openLeased opens a file. It waits up to 100 ms while a process has a lease on the file. This process
// can have the lease, because Users.FileOpen uses a lease to check whether the file is open.
func openLeased(root *os.Root, name string, flag int) (*os.File, error) {
	for tries := 0; ; tries++ {
		f, err := root.OpenFile(name, flag, privateMode)
		if tries == 100 || !errors.Is(err, unix.EAGAIN) {
			return f, err
		}
		time.Sleep(time.Millisecond)
	}
}

// openDirect opens a file for direct I/O, so that a large image does not displace other data from the
// page cache. If the file system does not support direct I/O, direct is false: reads and writes use
// the page cache, and dropCache empties it.
func openDirect(root *os.Root, name string, flag int) (f *os.File, direct bool, err error) {
	f, err = openRegular(root, name, flag|unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) {
		f, err = openRegular(root, name, flag)
		return f, false, err
	}
	return f, err == nil, err
}

// maxCached bounds the bytes of a file in the page cache if the file cannot use direct I/O.
const maxCached = 32 << 20

// dropCache writes the cached pages of f to the disk and drops them. It also drops them after an
// error: the kernel marks a page as clean even if it could not write the page, and the next reader
// would get bytes that are not on the disk.
func dropCache(f *os.File) error {
	err := unix.Fdatasync(int(f.Fd()))
	if err != nil {
		err = fmt.Errorf("sync %s: %w", f.Name(), noSpace(err))
	}
	return errors.Join(err, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// extents finds the holes of a file, so that they need not be read. If the file system does
// not support SEEK_DATA, the whole file counts as data.
type extents struct {
	f          *os.File
	start, end int64 // the range of the last data that isHole found
}

// isHole reports whether the range [from, to) contains no data.
func (e *extents) isHole(from, to int64) bool {
	if from >= e.end {
		start, err := unix.Seek(int(e.f.Fd()), from, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // a hole up to the end of the file
			e.start, e.end = 1<<62, 1<<62
		case err != nil:
			e.start, e.end = from, 1<<62
		default:
			end, err := unix.Seek(int(e.f.Fd()), start, unix.SEEK_HOLE)
			if err != nil {
				end = 1 << 62
			}
			e.start, e.end = start, end
		}
	}
	return to <= e.start
}

// readDirect reads [offset, min(offset+len(buf), size)) into buf, which is aligned. Direct I/O needs
// aligned lengths, so readDirect requests all of buf even at the end of the file.
func readDirect(f *os.File, buf []byte, offset, size int64) ([]byte, error) {
	length := int(min(int64(len(buf)), size-offset))
	for n := 0; n < length; {
		m, err := unix.Pread(int(f.Fd()), buf[n:], offset+int64(n))
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err == nil && m == 0:
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("read %s at %d: %w", f.Name(), offset, err)
		}
		n += m
	}
	return buf[:length], nil
}

// writeDurably replaces a file below root with data (package atomicfile). Each disk has one writer, so the temporary
// name is fixed.
func writeDurably(root *os.Root, name string, data []byte) error {
	return noSpace(atomicfile.Write(root, name, name+".tmp", data))
}

// mkdirDurably creates a folder below root; its parent must exist. It syncs the parent even if
// the folder exists, because a killed process may have created the folder without a sync.
func mkdirDurably(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return noSpace(err)
	}
	return atomicfile.SyncFolder(root, path.Dir(name))
}

// ignoreMissing returns err, or nil if err is fs.ErrNotExist.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxSmallFile limits the size of every file that is read completely into memory. Such files usually
// have a few KiB at most.
const maxSmallFile = 1 << 20

// readSmall reads a regular file of at most maxSmallFile bytes. It does not follow links and never
// blocks on a pipe.
func readSmall(root *os.Root, name string) ([]byte, error) {
	f, err := openRegular(root, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return smallfile.Read(f, maxSmallFile)
}
