// Package atomicfile replaces files: after a crash at any moment, a file has its old or its complete new content.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
)

// File is the new content of a file. It has a temporary name in the same folder until Commit.
type File struct {
	*os.File
	root            *os.Root
	ownRoot         bool // root is closed with the file
	name, temporary string
}

// Create begins to replace the named file below root. It first removes an existing file with the temporary name, which may be from a
// crash or another program. It does not open that file for writing, because the name may be a symbolic or hard link.
func Create(root *os.Root, name, temporary string) (*File, error) {
	if info, err := root.Lstat(temporary); err == nil && !info.IsDir() {
		if err := root.Remove(temporary); err != nil {
			return nil, err
		}
	}
	f, err := root.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	return &File{File: f, root: root, name: name, temporary: temporary}, nil
}

// CreateAt begins to replace the file at filename. The new file has the mode perm, independent of the umask. The temporary name begins
// with a dot, so that programs that read the folder ignore it.
func CreateAt(filename string, perm fs.FileMode) (*File, error) {
	root, err := os.OpenRoot(filepath.Dir(filename))
	if err != nil {
		return nil, err
	}
	f, err := Create(root, filepath.Base(filename), fmt.Sprintf(".new-%x", rand.Uint64()))
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	f.ownRoot = true
	if err := f.Chmod(perm); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// Commit makes the new content durable, and replaces the file durably. After an error, no temporary file is left. The new file is closed
// after the rename, so that a lock on it holds until it has its final name.
func (f *File) Commit() error {
	err := f.Sync()
	if err == nil {
		err = f.root.Rename(f.temporary, f.name)
	}
	if err != nil {
		return errors.Join(err, f.Discard())
	}
	return errors.Join(f.Close(), SyncFolder(f.root, path.Dir(f.name)), f.closeRoot())
}

// Discard ends the replacement. The old file stays.
func (f *File) Discard() error {
	err := f.root.Remove(f.temporary)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return errors.Join(err, f.Close(), f.closeRoot())
}

func (f *File) closeRoot() error {
	if f.ownRoot {
		return f.root.Close()
	}
	return nil
}

// Write replaces the named file below root with data.
func Write(root *os.Root, name, temporary string, data []byte) error {
	f, err := Create(root, name, temporary)
	if err != nil {
		return err
	}
	return f.replace(data)
}

// WriteAt replaces the file at filename with data. See CreateAt.
func WriteAt(filename string, data []byte, perm fs.FileMode) error {
	f, err := CreateAt(filename, perm)
	if err != nil {
		return err
	}
	return f.replace(data)
}

func (f *File) replace(data []byte) error {
	if _, err := f.Write(data); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Commit()
}

// Rename renames a file within one folder, durably.
func Rename(root *os.Root, from, to string) error {
	if err := root.Rename(from, to); err != nil {
		return err
	}
	return SyncFolder(root, path.Dir(to))
}

// SyncFolder makes the names in a folder durable.
func SyncFolder(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", name, err)
	}
	return nil
}
