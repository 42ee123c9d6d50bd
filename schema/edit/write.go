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

	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// Write replaces the content of files of a config directory. old is the directory as it was read. If one of the files has
// another content now, or cannot be written, Write returns an error. Either all files change or none, with one exception:
// after a failure between two renames, some have the new content and the others the old.
func Write(dir string, old configdir.Snapshot, files []configdir.File) error {
	var prepared []*atomicfile.File
	var err error
	for _, f := range files {
		i := slices.IndexFunc(old.Files, func(o configdir.File) bool { return o.Path == f.Path })
		var r *atomicfile.File
		if r, err = prepare(dir, old.Files[i], f.Data); err != nil {
			err = fmt.Errorf("write %s: %w", f.Path, err)
			break
		}
		prepared = append(prepared, r)
	}
	for _, r := range prepared {
		if err != nil {
			err = errors.Join(err, r.Discard())
		} else {
			err = r.Commit()
		}
	}
	return err
}

// prepare writes a complete and durable file, which will replace an old file.
func prepare(dir string, old configdir.File, data []byte) (*atomicfile.File, error) {
	target, err := locate(dir, old.Path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(target)
	if err != nil {
		return nil, err
	}
	now, err := configdir.ReadFile(target)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(now, old.Data) {
		return nil, errors.New("it has changed since it was read: run the command again")
	}
	f, err := atomicfile.CreateAt(target, info.Mode().Perm())
	if err != nil {
		return nil, err
	}
	_, err = f.Write(data)
	if os.Geteuid() == 0 { // nobody else can keep the owner
		owner := info.Sys().(*syscall.Stat_t)
		err = errors.Join(err, f.Chown(int(owner.Uid), int(owner.Gid)))
	}
	if err := errors.Join(err, f.Sync()); err != nil {
		return nil, errors.Join(err, f.Discard())
	}
	return f, nil
}

// locate returns the path of a file behind all symlinks. A file outside of the directory is an error.
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
