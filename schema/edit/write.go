package edit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Write replaces the content of files of a config directory. before is the directory as it was read. If one of the files has
// another content by now, or cannot be written, no file changes. Only a failure between two renames changes some of them.
// Each file then has its old or its new content.
func Write(dir string, before configdir.Snapshot, files []configdir.File) error {
	var prepared []replacement
	var err error
	for _, f := range files {
		i := slices.IndexFunc(before.Files, func(old configdir.File) bool { return old.Path == f.Path })
		var r replacement
		if r, err = prepare(dir, before.Files[i], f.Data); err != nil {
			err = fmt.Errorf("write %s: %w", f.Path, err)
			break
		}
		prepared = append(prepared, r)
	}
	for _, r := range prepared {
		if err != nil {
			err = errors.Join(err, os.Remove(r.temporary))
		} else {
			err = r.commit()
		}
	}
	return err
}

// replacement is a complete file that will replace another one.
type replacement struct{ temporary, target string }

// prepare writes a replacement, which is durable, into the folder of the file.
func prepare(dir string, old configdir.File, data []byte) (replacement, error) {
	target, err := locate(dir, old.Path)
	if err != nil {
		return replacement{}, err
	}
	info, err := os.Stat(target)
	if err != nil {
		return replacement{}, err
	}
	now, err := configdir.ReadFile(target)
	if err != nil {
		return replacement{}, err
	}
	if !bytes.Equal(now, old.Data) {
		return replacement{}, errors.New("it has changed since it was read: run the command again")
	}
	// The name begins with a dot, so that a manager that watches the folder ignores it.
	f, err := os.CreateTemp(filepath.Dir(target), ".update-*")
	if err != nil {
		return replacement{}, err
	}
	_, err = f.Write(data)
	if os.Geteuid() == 0 { // nobody else can keep the owner
		owner := info.Sys().(*syscall.Stat_t)
		err = errors.Join(err, f.Chown(int(owner.Uid), int(owner.Gid)))
	}
	if err := errors.Join(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close()); err != nil {
		return replacement{}, errors.Join(err, os.Remove(f.Name()))
	}
	return replacement{f.Name(), target}, nil
}

// commit replaces the file, durably.
func (r replacement) commit() error {
	if err := os.Rename(r.temporary, r.target); err != nil {
		return errors.Join(err, os.Remove(r.temporary))
	}
	d, err := os.Open(filepath.Dir(r.target))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
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
