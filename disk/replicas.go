package disk

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// VolumeMeta contains the keys of a replica's volume.meta that matter for the image below the volume,
// and for an image that is exported from the volume. Other keys are ignored.
type VolumeMeta struct {
	Size            int64  // bytes of the volume
	Head            string // the file that the volume writes to
	BackingFilePath string // path of the image below the volume; "": none
	Dirty           bool   // a process has the replica open, or exited without closing it
	Rebuilding      bool   // Longhorn is fetching the replica's files from another replica
	Error           string // why Longhorn marked the replica as failed; "": it is not failed
}

// ParseVolumeMeta parses a volume.meta. An empty or truncated file is an error: Longhorn then creates
// a new volume.meta from the other files, without the backing file.
func ParseVolumeMeta(data []byte) (VolumeMeta, error) {
	var m VolumeMeta
	if err := json.Unmarshal(data, &m); err != nil {
		return VolumeMeta{}, fmt.Errorf("read volume.meta: %w", err)
	}
	if m.Size <= 0 {
		return VolumeMeta{}, fmt.Errorf("read volume.meta: invalid size %d", m.Size)
	}
	return m, nil
}

// BackingImage returns the folder name of the image below the volume. ok is false for a volume
// without an image.
//
// The path is valid only inside a container, so BackingImage searches it from its end: the disk itself
// may be below another folder backing-images. A path that does not name an image is an error, because
// it may still refer to an image by symlinks.
func (m VolumeMeta) BackingImage() (folder string, ok bool, err error) {
	if m.BackingFilePath == "" {
		return "", false, nil
	}
	elements := strings.Split(path.Clean(m.BackingFilePath), "/")
	for i := len(elements) - 2; i >= 0; i-- {
		if elements[i] == imagesFolder {
			return elements[i+1], true, nil
		}
	}
	return "", false, fmt.Errorf("its backing file %q does not name an image", m.BackingFilePath)
}

// Replicas returns the names of the replica folders on the disk, sorted.
func (r *replicas) Replicas() ([]string, error) {
	entries, err := fs.ReadDir(r.diskRoot.FS(), replicaFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of disk %s: %w", replicaFolder, r.diskRoot.Name(), err)
	}
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !e.IsDir() })
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names, nil
}

// ReplicaFolder is an open replica folder of Longhorn. No name or link can refer to a file outside
// it.
type ReplicaFolder struct{ root *os.Root }

// OpenReplica opens a replica folder by its name. It does not follow links.
func (r *replicas) OpenReplica(name string) (*ReplicaFolder, error) {
	if !fs.ValidPath(name) || path.Base(name) != name || name == "." {
		return nil, fmt.Errorf("%q is not the name of a replica folder", name)
	}
	name = path.Join(replicaFolder, name)
	info, err := r.diskRoot.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", name)
	}
	root, err := r.diskRoot.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	// Lstat and OpenRoot are two steps: a link may have replaced the folder between them.
	if now, err := root.Stat("."); err != nil || !os.SameFile(now, info) {
		root.Close()
		return nil, errors.Join(fmt.Errorf("%s was replaced while it was opened", name), err)
	}
	return &ReplicaFolder{root: root}, nil
}

// Read returns the content of a small file of the folder.
func (r *ReplicaFolder) Read(name string) ([]byte, error) { return readSmall(r.root, name) }

// Stat returns the current evidence of a file of the folder.
func (r *ReplicaFolder) Stat(name string) (Evidence, error) {
	info, err := r.root.Lstat(name)
	if err != nil {
		return Evidence{}, err
	}
	if !info.Mode().IsRegular() {
		return Evidence{}, fmt.Errorf("%s is not a regular file", name)
	}
	return evidenceOf(info), nil
}

// Open opens a data file of the folder.
func (r *ReplicaFolder) Open(name string) (*File, error) { return openFile(r.root, name) }

// Close closes the folder. Files opened from it stay open.
func (r *ReplicaFolder) Close() error { return r.root.Close() }

// OpenBackingFile opens the file of the image below a volume, if the copy is Ready or Unknown: a
// volume may use an image before it is verified. It does not open the file of a Failed copy, which is
// known to be wrong.
func (d *Disk) OpenBackingFile(id ident.ID) (*File, model.Copy, error) {
	c := d.Stat(id)
	if c.State != model.Ready && c.State != model.Unknown {
		return nil, c, fmt.Errorf("open backing file: %s", c)
	}
	f, err := openFile(d.root, filePath(id, imageFile))
	if err == nil && d.metadata.isDamaged(id, f.Evidence()) {
		return nil, c, errors.Join(fmt.Errorf("open backing file: %s", c), f.Close())
	}
	return f, c, err
}

func openFile(root *os.Root, name string) (*File, error) {
	f, err := openRegular(root, name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	return NewFile(f)
}

// File is a file or block device of another program, open for reading. After Close, the page cache
// contains the same pages of the file as before. A File is not safe for concurrent use.
type File struct {
	f      *os.File
	before Evidence // when it was opened
	pages  *cachedPages
}

// NewFile returns a File that owns f. It closes f if it returns an error. f must not have been read
// before.
func NewFile(f *os.File) (*File, error) {
	info, err := f.Stat()
	var size int64
	if err == nil {
		size, err = f.Seek(0, io.SeekEnd) // stat does not return the size of a device
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	before := evidenceOf(info)
	before.Size = size
	return &File{f, before, newCachedPages(f, size, nil)}, nil
}

// Size returns the bytes of the file when it was opened.
func (f *File) Size() int64 { return f.before.Size }

// Evidence returns the evidence of the file when it was opened.
func (f *File) Evidence() Evidence { return f.before }

// Fd returns the file descriptor, for ioctl. It is valid until Close.
func (f *File) Fd() int { return int(f.f.Fd()) }

// ReadAt implements io.ReaderAt. It adds pages to the page cache that Close does not drop;
// call Prefetch first for more than a few bytes.
func (f *File) ReadAt(b []byte, offset int64) (int, error) { return f.f.ReadAt(b, offset) }

// ReadAhead returns a reader that calls Prefetch itself. It is for reading most of the
// file sequentially.
func (f *File) ReadAhead() io.ReaderAt { return pagedFile{f.pages} }

// Prefetch starts to read the pages of the spans that are not in the page cache, so that later reads
// do not wait for the disk one by one. The spans must be sorted. It drops pages of earlier calls.
func (f *File) Prefetch(spans []Span) {
	f.pages.mu.Lock()
	defer f.pages.mu.Unlock()
	f.pages.prefetch(spans...)
}

// Unchanged returns ErrModified if the file was modified since it was opened: the bytes may be a mix
// of the old and the new content. For a device it always returns nil.
func (f *File) Unchanged() error {
	info, err := f.f.Stat()
	if err != nil {
		return err
	}
	if now := evidenceOf(info); info.Mode().IsRegular() && now != f.before {
		return fmt.Errorf("%s: %w: %s", f.f.Name(), ErrModified, f.before.difference(now))
	}
	return nil
}

// Close closes the file and drops all pages that Prefetch added to the page cache.
func (f *File) Close() error {
	f.pages.release()
	return f.f.Close()
}
