package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
)

// writeDurably replaces the file name below root with data, so that after a
// crash at any moment either the old content is there or the new one, whole.
// There is one writer a disk, so the temporary name can be a fixed one; what a
// crash left there, or somebody else put there, is not written to.
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
	f, err := openImage(root, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSmallFile+1))
	if err == nil && len(data) > maxSmallFile {
		err = fmt.Errorf("%s has more than %d bytes, which such a file cannot have", name, maxSmallFile)
	}
	return data, err
}
