package configdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// maxLinks is how many symlinks the resolution of one path follows, as in Linux.
const maxLinks = 40

var (
	errLeaves = errors.New("the link leads out of the config directory")
	errLoop   = errors.New("the link leads to itself, or through too many others")
)

// entry is a file, folder or symlink, or the reason why it cannot be inspected.
type entry struct {
	mode   fs.FileMode
	target string // of a symlink
	err    error
}

// pathWalk resolves a path element by element through all symlinks.
type pathWalk struct {
	// root is "." or "/". Below "." a symlink that is absolute or leads above root is
	// errLeaves.
	root  string
	entry func(path string) entry
	// visit is called for each element that is not "." or "..". last is true for
	// the last element of the path. nil: not called.
	visit func(folder, name string, e entry, last bool)
}

// resolve returns the location of the last element, and its type.
func (w pathWalk) resolve(folder, name string) (string, fs.FileMode, error) {
	at, mode, links := folder, fs.ModeDir, 0
	for rest := elements(name); len(rest) > 0; {
		name, rest = rest[0], rest[1:]
		if name == ".." {
			if at == "." {
				return "", 0, errLeaves
			}
			at, mode = path.Dir(at), fs.ModeDir // the parent of "/" is "/"
			continue
		}
		next := path.Join(at, name)
		e := w.entry(next)
		if w.visit != nil {
			w.visit(at, name, e, len(rest) == 0)
		}
		switch {
		case e.err != nil:
			return "", 0, fmt.Errorf("follow link: %w", e.err)
		case e.mode&fs.ModeSymlink == 0:
			at, mode = next, e.mode
			continue
		case path.IsAbs(e.target):
			if w.root == "." {
				return "", 0, errLeaves
			}
			at = w.root
		}
		if links++; links > maxLinks {
			return "", 0, errLoop
		}
		rest = slices.Concat(elements(e.target), rest)
	}
	return at, mode, nil
}

// elements returns the elements of a path without those that mean nothing.
func elements(name string) []string {
	return slices.DeleteFunc(strings.Split(name, "/"), func(e string) bool { return e == "" || e == "." })
}

// entry inspects a location once and remembers the result.
func (t *tree) entry(location string) entry {
	if e, ok := t.entries[location]; ok {
		return e
	}
	e := readEntry(t.root.Lstat, t.root.Readlink, location)
	t.entries[location] = e
	return e
}

func readEntry(lstat func(string) (fs.FileInfo, error), readlink func(string) (string, error), name string) (e entry) {
	fi, err := lstat(name)
	if err != nil {
		return entry{err: withoutPath(err)}
	}
	if e.mode = fi.Mode(); e.mode&fs.ModeSymlink != 0 {
		e.target, e.err = readlink(name)
	}
	return e
}

// resolve follows name, relative to the folder at location, through all symlinks. The error is errSteps
// or errLevels if that costs too much.
func (t *tree) resolve(location, name string) (string, fs.FileMode, error) {
	return pathWalk{root: ".", entry: t.step}.resolve(location, name)
}

// step is entry for one element of a path, within the limits.
func (t *tree) step(location string) entry {
	switch t.steps++; {
	case t.steps > maxSteps:
		return entry{err: errSteps}
	case levels(path.Dir(location)) > maxLevels:
		return entry{err: errLevels}
	}
	return t.entry(location)
}

// levels returns how many folders a location of a folder has.
func levels(location string) int {
	if location == "." {
		return 0
	}
	return 1 + strings.Count(location, "/")
}

// names are the names in a folder that matter. nil means all.
type names map[string]bool

// parentFolders returns the folders in which the directory, or a symlink on the way
// to it, can be replaced, each with the name that matters there. If a folder on the way
// does not exist, it returns the nearest folder that does.
func parentFolders(dir string) map[string]names {
	folders := map[string]names{}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return folders // the working directory was removed: there is nothing to watch
	}
	w := pathWalk{
		root:  "/",
		entry: func(name string) entry { return readEntry(os.Lstat, os.Readlink, name) },
		visit: func(folder, name string, e entry, last bool) {
			if e.err != nil || e.mode&fs.ModeSymlink != 0 || last {
				addName(folders, folder, name)
			}
		},
	}
	// An error needs no handling: the folder in which the walk ended is among the
	// result, and a change there is an event.
	_, _, _ = w.resolve("/", abs)
	return folders
}

func addName(folders map[string]names, folder, name string) {
	if folders[folder] == nil {
		folders[folder] = names{}
	}
	folders[folder][name] = true
}
