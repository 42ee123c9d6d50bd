package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
)

// Replicas returns the names of the replica folders on the disk, sorted.
func (d *Disk) Replicas() ([]string, error) {
	entries, err := fs.ReadDir(d.root.FS(), replicaFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of disk %s: %w", replicaFolder, d.path, err)
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
func (d *Disk) OpenReplica(name string) (*ReplicaFolder, error) {
	if !fs.ValidPath(name) || path.Base(name) != name || name == "." {
		return nil, fmt.Errorf("%q is not the name of a replica folder", name)
	}
	name = path.Join(replicaFolder, name)
	info, err := d.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%s is not a folder", name)
	}
	root, err := d.root.OpenRoot(name)
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
// volume may use an image before it is verified. It does not open a Failed copy, because its file is
// known to be wrong.
func (d *Disk) OpenBackingFile(id ID) (*File, Copy, error) {
	c := d.Stat(id)
	if c.State != Ready && c.State != Unknown {
		return nil, c, fmt.Errorf("open backing file: %s", c)
	}
	f, err := openFile(d.root, id.file(imageFile))
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
