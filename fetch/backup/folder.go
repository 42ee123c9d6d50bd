package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/atomicfile"
)

// folder is a Store in a local folder, often a mounted share. The open root refers to the same folder
// even if another folder is mounted or moved to its path later.
type folder struct {
	root *os.Root
	name string
}

const (
	// maxEmptyParents is the number of empty parent folders that Delete removes, as in Longhorn.
	maxEmptyParents = 10
	// maxPutAttempts is the number of attempts of Put to create a folder that a concurrent Delete
	// removes.
	maxPutAttempts = 10
)

func (f *folder) String() string { return f.name }

// Close closes the folder.
func (f *folder) Close() error { return f.root.Close() }

// Open opens the file of an object.
func (f *folder) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	file, err := f.root.OpenFile(key, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK, because the key may name a pipe
	if err != nil {
		return nil, f.wrapError("read", key, err)
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fetch.Errorf(fetch.BadSource, "it is not a regular file")
	}
	if err != nil {
		file.Close()
		return nil, f.wrapError("read", key, err)
	}
	return &objectFile{file, f, key}, nil
}

// objectFile is the file of an object. It drops the pages that it has read from the page cache.
type objectFile struct {
	*os.File
	folder *folder
	key    string
}

func (o *objectFile) Read(p []byte) (int, error) {
	n, err := o.File.Read(p)
	if err != nil && err != io.EOF {
		err = o.folder.wrapError("read", o.key, err)
	}
	return n, err
}

func (o *objectFile) Close() error {
	_ = unix.Fadvise(int(o.Fd()), 0, 0, unix.FADV_DONTNEED) // if this fails, the pages stay cached
	return o.File.Close()
}

// Put writes a temporary file beside the destination, syncs it, and renames it.
func (f *folder) Put(ctx context.Context, key string, data []byte) error {
	err := fs.ErrNotExist
	for range maxPutAttempts {
		if err = ctx.Err(); err == nil {
			err = f.put(key, data)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	return f.wrapError("write", key, err)
}

func (f *folder) put(key string, data []byte) error {
	dir := path.Dir(key)
	if err := f.mkdirAll(dir); err != nil {
		return err
	}
	if err := f.removeStale(dir); err != nil {
		return err
	}
	file, err := atomicfile.Create(f.root, key, fmt.Sprintf("%s.tmp.0%d", key, rand.Uint64()))
	if err != nil {
		return err
	}
	_ = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) // if locks are not supported, removeStale removes nothing
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return errors.Join(err, file.Discard())
	}
	_ = unix.Fadvise(int(file.Fd()), 0, 0, unix.FADV_DONTNEED) // if this fails, the pages stay cached
	return file.Commit()
}

// mkdirAll creates a folder and its parents, durably.
func (f *folder) mkdirAll(dir string) error {
	if info, err := f.root.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		if err == nil && !info.IsDir() {
			err = fetch.Errorf(fetch.Refused, "%s is not a folder", dir)
		}
		return err
	}
	above := path.Dir(dir)
	if err := f.mkdirAll(above); err != nil {
		return err
	}
	if err := f.root.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return atomicfile.SyncFolder(f.root, above)
}

var (
	temporaryPattern = regexp.MustCompile(`\.tmp\.[0-9]+$`)
	// ownTemporaryPattern matches the temporary files of this program. The zero distinguishes them
	// from the files of Longhorn. Put locks these files while it writes them.
	ownTemporaryPattern = regexp.MustCompile(`\.tmp\.0[0-9]+$`)
)

// removeStale removes the temporary files of killed processes of this program.
func (f *folder) removeStale(dir string) error {
	entries, err := f.readDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !ownTemporaryPattern.MatchString(e.Name()) {
			continue
		}
		name := path.Join(dir, e.Name())
		file, err := f.root.OpenFile(name, os.O_RDWR|syscall.O_NONBLOCK, 0) // NFS grants the lock only if the file is open for writing
		if err != nil {
			continue // it was removed, or another process is writing it
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = f.root.Remove(name) // if this fails, the next Put in the folder removes it
		}
		file.Close()
	}
	return nil
}

// Delete removes a file, and then the parent folders that are empty.
func (f *folder) Delete(ctx context.Context, key string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	err := f.root.Remove(key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return f.wrapError("delete", key, err)
	}
	dir := path.Dir(key)
	for range maxEmptyParents {
		info, err := f.root.Lstat(dir)
		if err != nil || dir == "." || !info.IsDir() || f.root.Remove(dir) != nil {
			break // not empty, or a symbolic link
		}
		dir = path.Dir(dir)
	}
	if err := atomicfile.SyncFolder(f.root, dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.wrapError("delete", key, err)
	}
	return nil
}

// List returns the entries of a folder.
func (f *folder) List(ctx context.Context, dir string) ([]Entry, error) {
	found, err := f.readDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, f.wrapError("list", dir, err)
	}
	var entries []Entry
	for _, e := range found {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if temporaryPattern.MatchString(e.Name()) {
			continue
		}
		info, err := f.root.Stat(path.Join(dir, e.Name()))
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile
		case err != nil:
			return nil, f.wrapError("list", dir, err)
		case info.IsDir():
			entries = append(entries, Entry{Name: e.Name(), Dir: true})
		case info.Mode().IsRegular():
			entries = append(entries, Entry{Name: e.Name(), Size: info.Size(), Modified: info.ModTime()})
		}
	}
	return entries, nil
}

// readDir returns the entries of a folder, sorted by name.
func (f *folder) readDir(dir string) ([]fs.DirEntry, error) {
	d, err := f.root.Open(dir)
	if err != nil {
		return nil, err
	}
	entries, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// wrapError classifies an error and adds the operation and the address of the object.
func (f *folder) wrapError(verb, key string, err error) error {
	class := classOf(fetch.ClassifyFileError(err))
	// The message contains the whole path, so remove the relative path.
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		err = at.Err
	} else if at, ok := errors.AsType[*os.LinkError](err); ok {
		err = at.Err
	}
	if verb == "read" && errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s/%s: %w", f.name, key, err)
	}
	return fetch.Errorf(class, "%s %s/%s: %w", verb, f.name, key, err)
}
