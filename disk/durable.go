package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// writeDurably replaces the file name below root with data: after a crash at any moment it
// has either the old content or the complete new one. Each disk has one writer, so the
// temporary name is fixed. A file with that name, from a crash or from somebody else, is
// removed first and not written to: it may be a link or a hard link.
func writeDurably(root *os.Root, name string, data []byte) error {
	tmp := name + ".tmp"
	if info, err := root.Lstat(tmp); err == nil && !info.IsDir() {
		if err := root.Remove(tmp); err != nil {
			return err
		}
	}
	f, err := root.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
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

// renameDurably renames within one folder, durably.
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

// mkdirDurably creates the folder name below root; its parent must exist. It syncs the parent
// even if the folder exists: a killed process may have created it without a sync.
func mkdirDurably(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return noSpace(err)
	}
	return syncFolder(root, path.Dir(name))
}

// ignoreMissing returns err, or nil if err is fs.ErrNotExist.
func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// maxSmallFile bounds every file that is read into memory as a whole. Real ones have a few KiB
// at most.
const maxSmallFile = 1 << 20

// readSmall reads a regular file of at most maxSmallFile bytes. It follows no link and never
// blocks on a pipe.
func readSmall(root *os.Root, name string) ([]byte, error) {
	f, err := openRegular(root, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err == nil && len(data) > maxSmallFile {
		err = fmt.Errorf("%s has more than %d bytes", name, maxSmallFile)
	}
	return data, err
}
