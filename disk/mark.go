package disk

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Mark marks the folder of a withdrawn copy (U5). A node that sees the name in the folder of its own copy has the
// withdrawn copy itself, by another path: a bind mount, or a file system that two nodes share. The secret proves that
// the node has seen the mark. The name is random, so that no cache of a network file system has an answer about it.
type Mark struct{ Name, Secret string }

// ErrMarkGone: another node that has the same folder started, and removed the marks in it. So it may count on the copy.
var ErrMarkGone = errors.New("not deleted: the mark in its folder was removed: another node may have the same folder")

// The mark is a symbolic link to its secret: it needs no block on a full disk.
const markPrefix = "backing.leaving."

var markPattern = regexp.MustCompile(`^[0-9a-f]{16}$`)

// IsMarkName reports whether name may be Mark.Name.
func IsMarkName(name string) bool { return markPattern.MatchString(name) }

// SetMark puts a mark into the folder of a copy.
func (d *Disk) SetMark(id ident.ID, m Mark) error {
	f := d.image(id)
	if err := f.check(); err != nil {
		return err
	}
	return noSpace(d.root.Symlink(m.Secret, f.file(markPrefix+m.Name)))
}

// ReadMark returns the secret of the named mark in the folder of a copy. "" means that it is not there.
func (d *Disk) ReadMark(id ident.ID, name string) (secret string, err error) {
	secret, err = d.root.Readlink(d.image(id).file(markPrefix + name))
	return secret, ignoreMissing(err)
}

// Marked reports whether the folder of a copy has a mark: a node is about to delete the copy, perhaps by another path.
func (d *Disk) Marked(id ident.ID) (bool, error) {
	names, err := marksIn(d.root, folderPath(id))
	return len(names) > 0, err
}

// marksIn returns the names of the marks in a folder. Opening a folder makes a network file system ask its server.
func marksIn(root *os.Root, folder string) (names []string, err error) {
	entries, err := fs.ReadDir(root.FS(), folder)
	for _, e := range entries {
		if name, ok := strings.CutPrefix(e.Name(), markPrefix); ok {
			names = append(names, name)
		}
	}
	return names, ignoreMissing(err)
}

// RemoveMark removes the named mark, if it is there. After an error, List tries again.
func (d *Disk) RemoveMark(id ident.ID, name string) error {
	return d.marks.remove(d.root, d.image(id).file(markPrefix+name))
}

// staleMarks are the paths of marks that could not be removed. A copy with a mark counts for nothing. It is safe for concurrent use.
type staleMarks struct {
	mu    sync.Mutex
	paths map[string]bool
}

func (s *staleMarks) remove(root *os.Root, mark string) error {
	err := ignoreMissing(root.Remove(mark))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.paths, mark)
	case s.paths == nil:
		s.paths = map[string]bool{mark: true}
	default:
		s.paths[mark] = true
	}
	return err
}

// removeAgain removes the marks that could not be removed. It touches no others: they may be of running withdrawals, also of other nodes.
func (s *staleMarks) removeAgain(root *os.Root) {
	s.mu.Lock()
	again := slices.Collect(maps.Keys(s.paths))
	s.mu.Unlock()
	for _, mark := range again {
		_ = s.remove(root, mark)
	}
}

// removeIn removes all marks in a folder.
func (s *staleMarks) removeIn(root *os.Root, folder string) error {
	names, err := marksIn(root, folder)
	for _, name := range names {
		err = errors.Join(err, s.remove(root, path.Join(folder, markPrefix+name)))
	}
	return err
}

// removeOld removes the marks that an earlier process left.
func (s *staleMarks) removeOld(root *os.Root) {
	entries, _ := imageEntries(root)
	for _, e := range entries {
		if id, err := ident.ParseID(e.Name()); err == nil && e.IsDir() {
			_ = s.removeIn(root, folderPath(id))
		}
	}
}

func folderID(info os.FileInfo) model.FolderID {
	st := info.Sys().(*syscall.Stat_t)
	return model.FolderID{Device: st.Dev, Inode: st.Ino}
}
