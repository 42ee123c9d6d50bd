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
	"syscall"
)

// What one look at a config directory takes at most. A directory beyond the
// bounds is most likely not the one that was meant.
const (
	maxNames = 200_000  // names of any kind, those that are ignored included
	maxFiles = 50_000   // files of ours
	maxBytes = 64 << 20 // of all files together
	MaxFile  = 16 << 20 // bytes of one file; a larger one is an error of that file
	maxPlace = 4096     // bytes of a path; a deeper folder is an error of that folder
)

// swapLink is the link in a volume of Kubernetes that is swapped to publish
// a new generation of all the files of the folder at once.
const swapLink = "..data"

// tree is one look at a config directory. Its places are paths relative to
// root that hold no link: every link is looked at once and then remembered,
// so that all that is reached through it is of one generation.
type tree struct {
	dir    string // as it was given
	real   string // absolute and without links
	linked bool   // dir is a link itself
	root   *os.Root
	id     fs.FileInfo // of root
	git    string      // see gitDir

	nodes   map[string]node // by place
	folders map[string]bool // places of folders that are read from
	walked  map[string]bool // places of folders that were listed
	files   map[string]bool // places of files in found
	links   []link          // to be followed when all else was walked
	found   []found
	names   int

	swap   string // where the swapLink of root leads to
	inSwap bool   // walking there
	stray  bool   // something was found elsewhere
}

// link is a link to follow, name in the folder at place, which is shown as path.
type link struct{ place, name, path string }

// found is a file to read, or what is wrong with it.
type found struct {
	path, place string
	err         error
}

// IsConfig reports whether files of that name are read. Left-overs of
// editors (x.yaml~, #x.yaml#, .x.yaml.swp, 4913) are not.
func IsConfig(name string) bool {
	switch path.Ext(name) {
	case ".yaml", ".yml", ".json", ".cue":
		return name[0] != '.'
	}
	return false
}

func openTree(dir string) (t *tree, err error) {
	t = &tree{
		dir:     filepath.Clean(dir),
		nodes:   map[string]node{},
		folders: map[string]bool{},
		walked:  map[string]bool{},
		files:   map[string]bool{},
	}
	if err = t.open(); err == nil {
		return t, nil
	}
	if t.root != nil {
		t.root.Close() // only read from: nothing to lose
	}
	// The way to a directory that is there went through one that is not.
	if _, statErr := os.Stat(t.dir); statErr == nil && errors.Is(err, fs.ErrNotExist) {
		err = ErrChanging
	}
	return nil, fmt.Errorf("read config directory: %w", err)
}

func (t *tree) open() (err error) {
	fi, err := os.Lstat(t.dir)
	if err != nil {
		return err
	}
	t.linked = fi.Mode()&fs.ModeSymlink != 0
	// Opening a FIFO would block: ask before.
	if t.id, err = os.Stat(t.dir); err != nil {
		return err
	}
	if !t.id.IsDir() {
		return &fs.PathError{Op: "open", Path: t.dir, Err: syscall.ENOTDIR}
	}
	if t.root, err = os.OpenRoot(t.dir); err != nil {
		return err
	}
	if t.real, err = filepath.EvalSymlinks(t.dir); err != nil {
		return err
	}
	if t.real, err = filepath.Abs(t.real); err != nil {
		return err
	}
	t.git = gitDir(t.real)
	return nil
}

// unchanged reports whether all links that the look went through still lead
// where they did, so that nobody was removing what lies behind them.
func (t *tree) unchanged() bool {
	id, err := os.Stat(t.dir)
	opened, err2 := t.root.Stat(".")
	if err != nil || err2 != nil || !os.SameFile(id, t.id) || !os.SameFile(opened, t.id) {
		return false
	}
	for place, n := range t.nodes {
		if n.mode&fs.ModeSymlink == 0 {
			continue
		}
		if to, err := t.root.Readlink(place); err != nil || to != n.target {
			return false
		}
	}
	return true
}

// generation names what the whole content came with, "" if it did not come
// through a swap.
func (t *tree) generation() string {
	gen := ""
	if t.linked {
		st := t.id.Sys().(*syscall.Stat_t)
		gen = fmt.Sprintf("%d:%d", st.Dev, st.Ino)
	}
	if t.swap != "" && !t.stray {
		gen += " " + t.swap
	}
	return gen
}

func (t *tree) absoluteFolders() []string {
	var out []string
	for place := range t.folders {
		out = append(out, filepath.Join(t.real, place))
	}
	slices.Sort(out)
	return out
}

// walk finds the files. Folders come before links, so that a file that has
// a name of its own is known by that one.
func (t *tree) walk() error {
	if err := t.walkFolder(".", ""); err != nil {
		return err
	}
	for len(t.links) > 0 {
		l := t.links[0]
		t.links = t.links[1:]
		if err := t.follow(l); err != nil {
			return err
		}
	}
	slices.SortStableFunc(t.found, func(a, b found) int { return strings.Compare(a.path, b.path) })
	return nil
}

// walkFolder finds the files of the folder at place, which is shown as dir.
func (t *tree) walkFolder(place, dir string) error {
	if t.walked[place] {
		return nil
	}
	t.walked[place], t.folders[place] = true, true
	entries, err := t.list(place)
	if err != nil {
		return t.hidden(place, dir, err)
	}
	swapped, err := t.walkSwap(place, dir, entries)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name()[0] == '.' {
			continue
		}
		l := link{place, e.Name(), path.Join(dir, e.Name())}
		if err := t.entry(l, e.Type(), swapped); err != nil {
			return err
		}
	}
	return nil
}

// walkSwap walks what the swapLink among the entries of a folder leads to as
// if it stood in the folder, and reports whether there is one. The links for
// users beside it are not asked: those for new files are made after the
// swap, and those to removed ones are removed after it.
func (t *tree) walkSwap(place, dir string, entries []fs.DirEntry) (bool, error) {
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == swapLink }) {
		return false, nil
	}
	to, mode, err := t.resolve(place, swapLink)
	if err == nil && !mode.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return false, t.add(found{path: path.Join(dir, swapLink), err: err})
	}
	if place == "." {
		t.swap, t.inSwap = to, true
		defer func() { t.inSwap = false }()
	}
	return true, t.walkFolder(to, dir)
}

func (t *tree) entry(l link, typ fs.FileMode, swapped bool) error {
	place := path.Join(l.place, l.name)
	switch {
	case typ.IsDir():
		return t.walkFolder(place, l.path)
	case typ&fs.ModeSymlink != 0:
		if !swapped || !strings.HasPrefix(t.node(place).target, swapLink+"/") {
			t.links = append(t.links, l)
		}
	case IsConfig(l.name):
		return t.file(place, l.path, typ)
	}
	return nil
}

// follow finds what a link leads to. Of links to nothing, and out of the
// directory, those matter that would have brought us files.
func (t *tree) follow(l link) error {
	place, mode, err := t.resolve(l.place, l.name)
	switch {
	case err == errLeaves && t.leadsToFolder(l):
		return t.add(found{path: l.path, err: err})
	case err == nil && mode.IsDir():
		return t.walkFolder(place, l.path)
	case !IsConfig(l.name):
		return nil
	case err != nil:
		return t.add(found{path: l.path, err: err})
	}
	return t.file(place, l.path, mode)
}

func (t *tree) leadsToFolder(l link) bool {
	fi, err := os.Stat(filepath.Join(t.real, l.place, l.name))
	return err == nil && fi.IsDir()
}

func (t *tree) file(place, shown string, typ fs.FileMode) error {
	if t.files[place] {
		return nil
	}
	t.files[place], t.folders[path.Dir(place)] = true, true
	f := found{path: shown, place: place}
	if !typ.IsRegular() {
		f.err = errNotRegular
	}
	return t.add(f)
}

func (t *tree) add(f found) error {
	t.found = append(t.found, f)
	t.stray = t.stray || !t.inSwap
	if len(t.found) > maxFiles {
		return fmt.Errorf("more than %d files of configuration", maxFiles)
	}
	return nil
}
