package outfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// partEnding is behind the name of a file in the making. Whatever has such a name is
// ours: it may be emptied.
const partEnding = ".image-part"

// Target is a file that is to be.
type Target struct {
	Path    string
	Packing Packing
	Replace bool // of what is there
}

// PartialPath returns where the image is until it is whole.
func (t Target) PartialPath() string { return t.Path + partEnding }

// ExistsError says that there is something already where the file is to be.
type ExistsError struct{ Path string }

func (e *ExistsError) Error() string { return e.Path + " is there already" }

// Check says why the file cannot be made: an *ExistsError, or because there is a device
// or a folder of that name.
func (t Target) Check() error {
	info, err := os.Stat(t.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(t.Path); err == nil && !t.Replace { // a link to nowhere
			return &ExistsError{t.Path}
		}
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a file", t.Path)
	case !t.Replace:
		return &ExistsError{t.Path}
	}
	return nil
}

// part is FILE.image-part, open and locked.
type part struct {
	Target
	f *os.File
}

// Create opens the part of an image of so many bytes. Resume has to come next. Another
// process that writes the same file is an error.
func Create(t Target, size int64) (*Writer, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	f, err := openLocked(t.PartialPath())
	if err != nil {
		return nil, err
	}
	return &Writer{size: size, hash: disk.SHA512.New(), part: &part{t, f}}, nil
}

// openLocked opens a part, and makes it if there is none.
func openLocked(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o666)
		if err != nil {
			return nil, noSpace(err)
		}
		if err := lock(f); err != nil {
			f.Close()
			return nil, err
		}
		// Who had the lock before may have renamed it to the file.
		mine, err := f.Stat()
		if err == nil && !mine.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a file", path)
		}
		if err != nil {
			f.Close()
			return nil, err
		}
		if there, err := os.Lstat(path); err == nil && os.SameFile(there, mine) {
			return f, nil
		}
		f.Close()
	}
}

func lock(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		return fmt.Errorf("%s: another process writes it", f.Name())
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOLCK):
		return nil // a file system without locks
	case err != nil:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// sinkAt returns what goes on behind so many bytes of the part.
func (p *part) sinkAt(at int64) sink {
	to := &sparse{p.f, at}
	if p.Packing == Plain {
		return &flushed{to, p.f, flushEvery}
	}
	return &flushed{newPacker(writes{to}, p.Packing), p.f, flushEvery}
}

// writes makes what is packed go where sparse is.
type writes struct{ *sparse }

func (w writes) Write(b []byte) (int, error) { return len(b), w.Put(b) }

// appear makes the part the file.
func (p *part) appear() error {
	err := p.f.Sync()
	if err == nil {
		_ = unix.Fadvise(int(p.f.Fd()), 0, 0, unix.FADV_DONTNEED) // only a favour to others
		err = p.rename()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.Path, noSpace(err))
	}
	folder, err := os.Open(filepath.Dir(p.Path))
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := folder.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // not every file system can
		return fmt.Errorf("sync the folder of %s: %w", p.Path, err)
	}
	return nil
}

// rename replaces nothing that came meanwhile.
func (p *part) rename() error {
	if !p.Replace {
		err := unix.Renameat2(unix.AT_FDCWD, p.PartialPath(), unix.AT_FDCWD, p.Path, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST):
			return &ExistsError{p.Path}
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS): // else the file system cannot
			return err
		}
	}
	if err := p.Check(); err != nil {
		return err
	}
	return os.Rename(p.PartialPath(), p.Path)
}

// discard removes the part because of err.
func (p *part) discard(err error) error {
	return errors.Join(err, os.Remove(p.PartialPath()))
}

// close leaves no empty part.
func (p *part) close() error {
	info, err := p.f.Stat()
	if err == nil && info.Size() == 0 {
		there, lerr := os.Lstat(p.PartialPath())
		if lerr == nil && os.SameFile(there, info) {
			err = os.Remove(p.PartialPath())
		}
	}
	return errors.Join(err, p.f.Close())
}

// noSpace makes a full disk disk.ErrNoSpace.
func noSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", disk.ErrNoSpace, err)
	}
	return err
}
