package outfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// partialSuffix is the suffix of a partial file. This program may truncate any file with this suffix.
const partialSuffix = ".image-part"

// Target is a file to write.
type Target struct {
	Path        string
	Compression Compression
	Replace     bool // replace an existing file
}

// PartialPath returns the path of the partial file.
func (t Target) PartialPath() string { return t.Path + partialSuffix }

// ExistsError means that the target file already exists.
type ExistsError struct{ Path string }

func (e *ExistsError) Error() string { return e.Path + " already exists" }

// Check returns an error if the file cannot be created: an *ExistsError, or an error for a
// device or a folder at the path.
func (t Target) Check() error {
	info, err := os.Stat(t.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(t.Path); err == nil && !t.Replace { // a dangling symbolic link
			return &ExistsError{t.Path}
		}
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file: name another path", t.Path)
	case !t.Replace:
		return &ExistsError{t.Path}
	}
	return nil
}

// partialFile is FILE.image-part, open and locked.
type partialFile struct {
	Target
	f *os.File
}

// Create opens the partial file of an image of size bytes. The caller must call Resume next.
// If another process writes the same file, Create fails.
func Create(t Target, size int64) (*Writer, error) {
	if err := t.Check(); err != nil {
		return nil, err
	}
	f, err := openLocked(t.PartialPath())
	if err != nil {
		return nil, err
	}
	return &Writer{size: size, hash: ident.SHA512.New(), part: &partialFile{t, f}}, nil
}

// openLocked opens or creates a partial file and locks it.
func openLocked(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o666)
		if err != nil {
			return nil, wrapNoSpace(err)
		}
		if err := lock(f); err != nil {
			f.Close()
			return nil, err
		}
		// The process that had the lock before may have renamed the file to its target.
		mine, err := f.Stat()
		if err == nil && !mine.Mode().IsRegular() {
			err = fmt.Errorf("%s is not a regular file", path)
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
		return fmt.Errorf("%s: another process is writing it", f.Name())
	case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOLCK):
		return nil // the file system does not support locks
	case err != nil:
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

// sinkFrom returns the sink for the chunks after the first offset bytes of the partial file.
func (p *partialFile) sinkFrom(offset int64) sink {
	var to sink = &sparseFile{p.f, offset}
	if p.Compression != None {
		to = newChunkCompressor(to, p.Compression)
	}
	return &flushingSink{to, p.f, flushEvery}
}

// reader returns a function that reads the next chunk. Its argument must be exactly as long as the chunk. The function returns how many
// bytes the chunk takes in the partial file, where it may be compressed.
func (p *partialFile) reader() (func(chunk []byte) (length int64, err error), error) {
	if _, err := p.f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if p.Compression != None {
		return newChunkDecompressor(p.f, p.Compression).next, nil
	}
	return func(chunk []byte) (int64, error) {
		n, err := io.ReadFull(p.f, chunk)
		return int64(n), err
	}, nil
}

// publish renames the partial file to the target.
func (p *partialFile) publish() error {
	err := p.f.Sync()
	if err == nil {
		_ = unix.Fadvise(int(p.f.Fd()), 0, 0, unix.FADV_DONTNEED) // if this fails, the pages stay cached
		err = p.rename()
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", p.Path, wrapNoSpace(err))
	}
	folder, err := os.Open(filepath.Dir(p.Path))
	if err != nil {
		return err
	}
	defer folder.Close()
	if err := folder.Sync(); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: the file system does not support it
		return fmt.Errorf("sync the folder of %s: %w", p.Path, err)
	}
	return nil
}

// rename renames the partial file to the target. Without Replace, it does not replace a file that was
// created after Check, if the file system supports that.
func (p *partialFile) rename() error {
	if !p.Replace {
		err := unix.Renameat2(unix.AT_FDCWD, p.PartialPath(), unix.AT_FDCWD, p.Path, unix.RENAME_NOREPLACE)
		switch {
		case errors.Is(err, unix.EEXIST):
			return &ExistsError{p.Path}
		case !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS): // these two mean that RENAME_NOREPLACE is not supported
			return err
		}
	}
	if err := p.Check(); err != nil {
		return err
	}
	return os.Rename(p.PartialPath(), p.Path)
}

// close closes the partial file, and removes it if it is empty.
func (p *partialFile) close() error {
	info, err := p.f.Stat()
	if err == nil && info.Size() == 0 {
		there, lerr := os.Lstat(p.PartialPath())
		if lerr == nil && os.SameFile(there, info) {
			err = os.Remove(p.PartialPath())
		}
	}
	return errors.Join(err, p.f.Close())
}

// wrapNoSpace wraps disk.ErrNoSpace around the errors of a full disk.
func wrapNoSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", disk.ErrNoSpace, err)
	}
	return err
}
