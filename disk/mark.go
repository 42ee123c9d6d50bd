package disk

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
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

// IsMarkName reports whether name has the form of a Mark.Name.
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

// staleMarks are the removals of marks that failed. A copy with a mark counts for nothing. It is safe for concurrent use.
type staleMarks struct {
	mu    sync.Mutex
	again map[string]func() error // by the path of the mark, or of the folder that could not be listed
}

// try calls remove. After an error, removeAgain calls it again.
func (s *staleMarks) try(path string, remove func() error) error {
	err := remove()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.again, path)
	case s.again == nil:
		s.again = map[string]func() error{path: remove}
	default:
		s.again[path] = remove
	}
	return err
}

// removeAgain repeats the removals that failed. It touches no other marks: they may belong to running withdrawals, also of
// other nodes.
func (s *staleMarks) removeAgain() {
	s.mu.Lock()
	again := maps.Clone(s.again)
	s.mu.Unlock()
	for path, remove := range again {
		_ = s.try(path, remove)
	}
}

func (s *staleMarks) remove(root *os.Root, mark string) error {
	return s.try(mark, func() error { return ignoreMissing(root.Remove(mark)) })
}

// removeIn removes all marks in a folder.
func (s *staleMarks) removeIn(root *os.Root, folder string) error {
	var removed error
	listed := s.try(folder, func() error {
		names, err := marksIn(root, folder)
		for _, name := range names {
			removed = errors.Join(removed, s.remove(root, path.Join(folder, markPrefix+name)))
		}
		return err
	})
	return errors.Join(listed, removed)
}

// removeOld removes the marks that an earlier process left.
func (s *staleMarks) removeOld(root *os.Root) {
	_ = s.try(imagesFolder, func() error {
		entries, err := imageEntries(root)
		for _, e := range entries {
			if id, err := ident.ParseID(e.Name()); err == nil && e.IsDir() {
				_ = s.removeIn(root, folderPath(id))
			}
		}
		return err
	})
}

func folderID(info os.FileInfo) model.FolderID {
	st := info.Sys().(*syscall.Stat_t)
	return model.FolderID{Device: st.Dev, Inode: st.Ino}
}
