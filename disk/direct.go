package disk

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// openImage opens a regular file below root. It follows no link and
// never blocks on a pipe.
func openImage(root *os.Root, name string, flag int) (*os.File, error) {
	if info, err := root.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := openLeased(root, name, flag|unix.O_NONBLOCK)
	if err != nil {
		return nil, noSpace(err)
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", name)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openLeased waits a moment for whoever has a lease of the file. That may be this very
// process, which asks in that way whether anybody has the file open.
func openLeased(root *os.Root, name string, flag int) (*os.File, error) {
	for tries := 0; ; tries++ {
		f, err := root.OpenFile(name, flag, 0o644)
		if tries == 100 || !errors.Is(err, unix.EAGAIN) {
			return f, err
		}
		time.Sleep(time.Millisecond)
	}
}

// openDirect opens a file past the page cache, so that moving a large image does
// not push out what others have there. Where the file system cannot do that, the
// file is read and written through the cache, which drop then empties.
func openDirect(root *os.Root, name string, flag int) (f *os.File, direct bool, err error) {
	f, err = openImage(root, name, flag|unix.O_DIRECT)
	if errors.Is(err, unix.EINVAL) {
		f, err = openImage(root, name, flag)
		return f, false, err
	}
	return f, err == nil, err
}

// cached is what may lie in the page cache of a file that cannot do O_DIRECT.
const cached = 32 << 20

// drop writes back what the page cache has of f and lets it go. After an error it
// lets go too: the kernel takes what it could not write for written, and would
// give bytes to the next reader that are on no disk.
func drop(f *os.File) error {
	err := unix.Fdatasync(int(f.Fd()))
	if err != nil {
		err = fmt.Errorf("sync %s: %w", f.Name(), noSpace(err))
	}
	return errors.Join(err, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
}

// extents finds the holes of a file, so that they need not be read. Where the
// file system does not tell, all is data.
type extents struct {
	f          *os.File
	start, end int64 // of the data that was found last
}

// isHole reports whether [from, to) is known to have no data.
func (e *extents) isHole(from, to int64) bool {
	if from >= e.end {
		start, err := unix.Seek(int(e.f.Fd()), from, unix.SEEK_DATA)
		switch {
		case errors.Is(err, unix.ENXIO): // nothing but a hole up to the end
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

// readDirect reads [offset, min(offset+len(buf), size)) into buf, which is
// aligned. It asks for all of buf, as O_DIRECT wants it, at the end of the file
// too.
func readDirect(f *os.File, buf []byte, offset, size int64) ([]byte, error) {
	want := int(min(int64(len(buf)), size-offset))
	for n := 0; n < want; {
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
	return buf[:want], nil
}
