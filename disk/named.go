package disk

import (
	"errors"
	"fmt"
	"io/fs"
)

// Named looks at the image folders of one name, in all generations, sorted by
// folder. It costs in proportion to them.
func (d *Disk) Named(name string) ([]Copy, error) {
	err := d.isFolder(imagesFolder)
	var entries []fs.DirEntry
	if err == nil {
		entries, err = fs.ReadDir(d.root.FS(), imagesFolder)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list images of %s: %w", d.path, err)
	}
	var copies []Copy
	for _, e := range entries {
		if id, err := ParseID(e.Name()); err == nil && id.Name == name && e.IsDir() {
			copies = append(copies, d.look(id))
		}
	}
	return copies, nil
}
