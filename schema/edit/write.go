package edit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Write replaces the content of a file of a config directory. old is the file as it was read: if it has another content
// by now, Write changes nothing. After a failure, the file has its old or its new content.
func Write(dir string, old, edited configdir.File) error {
	target, err := locate(dir, old.Path)
	if err != nil {
		return err
	}
	info, err := os.Stat(target)
	if err != nil {
		return err
	}
	now, err := configdir.ReadFile(target)
	if err != nil {
		return fmt.Errorf("read %s: %w", old.Path, err)
	}
	if !bytes.Equal(now, old.Data) {
		return fmt.Errorf("%s has changed since it was read: run the command again", old.Path)
	}
	return replaceFile(target, edited.Data, info.Mode().Perm())
}

// locate returns the path of a file behind all symlinks, which must be in the directory.
func locate(dir, name string) (string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	target, err := filepath.EvalSymlinks(filepath.Join(root, filepath.FromSlash(name)))
	if err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(root, target); err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "", fmt.Errorf("%s is a link that leads out of the config directory", name)
	}
	return target, nil
}

// replaceFile writes a temporary file in the same folder, and renames it. The name begins with a dot, so that a
// manager that watches the folder ignores it.
func replaceFile(target string, data []byte, mode fs.FileMode) error {
	folder := filepath.Dir(target)
	f, err := os.CreateTemp(folder, ".update-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), target)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(folder)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
