package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
)

// writeDurably replaces the file name below root with data, so that after a
// crash at any moment either the old content is there or the new one, whole.
// There is one writer a disk, so the temporary name can be a fixed one.
func writeDurably(root *os.Root, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = renameDurably(root, tmp, name)
	}
	if err != nil {
		return errors.Join(noSpace(err), ignoreMissing(root.Remove(tmp)))
	}
	return nil
}

// renameDurably renames within one folder and makes that durable.
func renameDurably(root *os.Root, from, to string) error {
	if err := root.Rename(from, to); err != nil {
		return err
	}
	return syncFolder(root, path.Dir(to))
}

func syncFolder(root *os.Root, name string) error {
	dir, err := root.Open(name)
	if err != nil {
		return err
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync folder %s: %w", name, err)
	}
	return nil
}

// mkdirDurably makes the folder name below root, whose parent is there. One that
// is there may be so in memory only, if who made it was killed.
func mkdirDurably(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return noSpace(err)
	}
	return syncFolder(root, path.Dir(name))
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxSmallFile bounds every small file that is read whole. The largest real ones
// are a few KiB.
const maxSmallFile = 1 << 20

// readSmall reads a regular file of at most maxSmallFile bytes. It never follows
// a link and never blocks on a pipe.
func readSmall(root *os.Root, name string) ([]byte, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	if info.Size() > maxSmallFile {
		return nil, fmt.Errorf("%s has %d bytes, which is more than such a file can have", name, info.Size())
	}
	return root.ReadFile(name)
}
