package configdir

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// Limits of one read of a config directory. A directory that exceeds them is most
// likely not the intended one. 10,000 images with typical fields have 5 MB.
const (
	MaxFile  = 8 << 20  // bytes of one file; a larger one is an error of that file
	maxNames = 200_000  // names of any kind, ignored ones included
	maxFiles = 50_000   // configuration files
	maxBytes = 32 << 20 // of all files together; the largest ones of more are errors
	// maxLevels limits the levels of folders, because each access to a file opens all folders above
	// it. A deeper folder is an error of that folder.
	maxLevels = 32
	// maxSteps limits the elements of paths for all symlinks together. One symlink may have 80,000,
	// because it may lead through others; real ones have a few each.
	maxSteps = 1_000_000
	// leavingSteps is what it costs to find out what a symlink that leaves the directory leads to.
	leavingSteps = 1000
)

// swapLink is the symlink in a Kubernetes volume that the kubelet swaps to publish
// a new generation of all files of the folder at once.
const swapLink = "..data"

var (
	errNotRegular = errors.New("not a regular file")
	errLevels     = fmt.Errorf("is not read: it has more than %d levels of folders", maxLevels)
	errSteps      = errors.New("is not followed: the symlinks of the directory are too long together")
	errNames      = fmt.Errorf("more than %d names: not a config directory", maxNames)
)

// tree is one read of a config directory. A location is a path relative to root
// without symlinks. The tree reads each symlink once and remembers its target,
// so that everything that is reached through it belongs to one generation.
type tree struct {
	dir    string // as the caller gave it
	real   string // absolute and without symlinks
	linked bool   // dir is a symlink itself
	root   *os.Root
	id     fs.FileInfo // of root
	git    *checkout   // nil if the folder belongs to none

	entries map[string]entry // by location
	folders map[string]bool  // locations of folders with configuration files
	walked  map[string]bool  // locations of folders that were listed
	files   map[string]bool  // locations of the files in found
	links   []link           // to follow when everything else was walked
	found   []found
	names   int
	steps   int // of the resolution of all symlinks

	swapTarget string // location that the swapLink of root leads to
	inSwap     bool   // the walk is below swapTarget
	outside    bool   // a file was found that is not below swapTarget
}

// link is a symlink to follow: name in the folder at location. path is how messages
// name it.
type link struct{ location, name, path string }

// found is a file to read, or the reason why it cannot be read.
type found struct {
	path, location string
	err            error
}

// IsConfig reports whether the config directory reads files with that name. It ignores left-overs of
// editors: x.yaml~, #x.yaml#, .x.yaml.swp, 4913. Some programs write YAML to x.YAML or x.YML.
func IsConfig(name string) bool {
	ext := path.Ext(name)
	known := ext == ".json" || ext == ".cue" || strings.EqualFold(ext, ".yaml") || strings.EqualFold(ext, ".yml")
	return known && name[0] != '.'
}

func openTree(dir string) (t *tree, err error) {
	t = &tree{
		dir:     filepath.Clean(dir),
		entries: map[string]entry{},
		folders: map[string]bool{},
		walked:  map[string]bool{},
		files:   map[string]bool{},
	}
	if err = t.open(); err == nil {
		return t, nil
	}
	if t.root != nil {
		t.root.Close() // only read from: no error matters
	}
	// The directory exists now, so a symlink on the way to it was swapped meanwhile.
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
	// Opening a FIFO would block, so check the type first.
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
	t.git = openCheckout(t.real)
	return nil
}

// unchanged reports whether all symlinks that the read followed still have the same
// target. If one has not, its old target may have been removed during the read.
func (t *tree) unchanged() bool {
	id, err := os.Stat(t.dir)
	opened, err2 := t.root.Stat(".")
	if err != nil || err2 != nil || !os.SameFile(id, t.id) || !os.SameFile(opened, t.id) {
		return false
	}
	for location, e := range t.entries {
		if e.mode&fs.ModeSymlink == 0 {
			continue
		}
		if target, err := t.root.Readlink(location); err != nil || target != e.target {
			return false
		}
	}
	return true
}

// generation identifies the swap that published the entire content. It is "" if the
// content was not published by a swap.
func (t *tree) generation() string {
	gen := ""
	if t.linked {
		st := t.id.Sys().(*syscall.Stat_t)
		gen = fmt.Sprintf("%d:%d", st.Dev, st.Ino)
	}
	if t.swapTarget != "" && !t.outside {
		gen += " " + t.swapTarget
	}
	return gen
}

func (t *tree) absoluteFolders() []string {
	var out []string
	for location := range t.folders {
		out = append(out, filepath.Join(t.real, location))
	}
	slices.Sort(out)
	return out
}

// walk finds the files. It follows symlinks last, so that a file that is in the
// directory itself keeps its own name.
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

// walkFolder finds the files of the folder at location. Messages name the folder dir.
func (t *tree) walkFolder(location, dir string) error {
	if t.walked[location] {
		return nil
	}
	t.walked[location], t.folders[location] = true, true
	entries, err := t.list(location)
	if err != nil {
		return t.unlisted(location, dir, err)
	}
	swapped, err := t.walkSwap(location, dir, entries)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name()[0] == '.' {
			continue
		}
		l := link{location, e.Name(), path.Join(dir, e.Name())}
		if err := t.walkEntry(l, e.Type(), swapped); err != nil {
			return err
		}
	}
	return nil
}

// walkSwap walks the target of the swapLink in a folder as if its files were in the
// folder, and reports whether there is a swapLink. It does not use the kubelet's
// symlinks to the single files: only after the swap, the kubelet creates symlinks to new files and
// removes symlinks to removed files.
func (t *tree) walkSwap(location, dir string, entries []fs.DirEntry) (bool, error) {
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == swapLink }) {
		return false, nil
	}
	target, mode, err := t.resolve(location, swapLink)
	if err == nil && !mode.IsDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return false, t.add(found{path: path.Join(dir, swapLink), err: err})
	}
	if location == "." {
		t.swapTarget, t.inSwap = target, true
		defer func() { t.inSwap = false }()
	}
	return true, t.walkFolder(target, dir)
}

func (t *tree) walkEntry(l link, typ fs.FileMode, swapped bool) error {
	location := path.Join(l.location, l.name)
	switch {
	case typ.IsDir():
		return t.walkFolder(location, l.path)
	case typ&fs.ModeSymlink != 0:
		if !swapped || !strings.HasPrefix(t.entry(location).target, swapLink+"/") {
			t.links = append(t.links, l)
		}
	case IsConfig(l.name):
		return t.addFile(location, l.path, typ)
	}
	return nil
}

// follow walks the target of a symlink. A symlink that is broken or that leaves the
// directory is an error only if it would have led to configuration files.
func (t *tree) follow(l link) error {
	location, mode, err := t.resolve(l.location, l.name)
	switch {
	case errors.Is(err, errSteps), errors.Is(err, errLevels), err == errLeaves && t.leadsToFolder(l):
		return t.add(found{path: l.path, err: err}) // it may lead to a folder with configuration files
	case err == nil && mode.IsDir():
		return t.walkFolder(location, l.path)
	case !IsConfig(l.name):
		return nil
	case err != nil:
		return t.add(found{path: l.path, err: err})
	}
	return t.addFile(location, l.path, mode)
}

func (t *tree) leadsToFolder(l link) bool {
	t.steps += leavingSteps
	fi, err := os.Stat(filepath.Join(t.real, l.location, l.name))
	return err == nil && fi.IsDir()
}

func (t *tree) addFile(location, shown string, typ fs.FileMode) error {
	if t.files[location] {
		return nil
	}
	t.files[location], t.folders[path.Dir(location)] = true, true
	f := found{path: shown, location: location}
	if !typ.IsRegular() {
		f.err = errNotRegular
	}
	return t.add(f)
}

func (t *tree) add(f found) error {
	t.found = append(t.found, f)
	t.outside = t.outside || !t.inSwap
	if len(t.found) > maxFiles {
		return fmt.Errorf("more than %d files of configuration", maxFiles)
	}
	return nil
}

// list returns the entries of the folder at location, sorted by name.
func (t *tree) list(location string) ([]fs.DirEntry, error) {
	if levels(location) > maxLevels {
		return nil, errLevels
	}
	f, err := t.root.Open(location)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from: no error matters
	var all []fs.DirEntry
	for {
		some, err := f.ReadDir(1024)
		all = append(all, some...)
		if t.names += len(some); t.names > maxNames {
			return nil, errNames
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortFunc(all, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return all, nil
}

// unlisted handles a folder that could not be listed: it is an error of the read, or of
// that folder.
func (t *tree) unlisted(location, dir string, err error) error {
	switch {
	case isGone(err):
		return ErrChanging
	case location == "." || err == errNames:
		return err
	}
	return t.add(found{path: dir, err: withoutPath(err)})
}

func (t *tree) readFiles() ([]File, error) {
	sizes := t.admittedSizes()
	files := make([]File, 0, len(t.found))
	left := 2 * maxBytes // files may grow while they are read
	for i, f := range t.found {
		file := File{Path: f.path, Err: f.err}
		switch {
		case f.err != nil:
		case sizes[i] < 0:
			file.Err = fmt.Errorf("is not read: the files of the directory have more than %d MiB together, and this is one of the largest", maxBytes>>20)
		default:
			file.Data, file.Err = t.readFile(f.location)
		}
		if isGone(file.Err) && f.err == nil {
			return nil, ErrChanging
		}
		if left -= len(file.Data); left < 0 {
			return nil, ErrChanging
		}
		files = append(files, file)
	}
	return files, nil
}

// admittedSizes returns the sizes of the found files, -1 for those that are left out: of files that
// are too large together the largest ones, so that one of them does not affect the others.
func (t *tree) admittedSizes() []int64 {
	sizes, bySize := make([]int64, len(t.found)), make([]int, 0, len(t.found))
	for i, f := range t.found {
		if f.err != nil {
			continue
		}
		// An error, or a size beyond MaxFile, is that of readFile.
		if fi, err := t.root.Stat(f.location); err == nil && fi.Size() <= MaxFile {
			sizes[i] = fi.Size()
		}
		bySize = append(bySize, i)
	}
	slices.SortStableFunc(bySize, func(a, b int) int { return cmp.Compare(sizes[a], sizes[b]) })
	left := int64(maxBytes)
	for _, i := range bySize {
		if left -= sizes[i]; left < 0 {
			sizes[i] = -1
		}
	}
	return sizes
}

func (t *tree) readFile(location string) ([]byte, error) {
	// The regular file may have been replaced by a FIFO, which must not block the read.
	return readLimited(t.root.OpenFile(location, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

// ReadFile reads one configuration file, which need not be in a config directory. The error does
// not contain its path.
func ReadFile(path string) ([]byte, error) {
	return readLimited(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

// readLimited reads a file that was just opened, and closes it.
func readLimited(f *os.File, err error) ([]byte, error) {
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close() // only read from: no error matters
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, withoutPath(err)
	case !fi.Mode().IsRegular():
		return nil, errNotRegular
	case fi.Size() > MaxFile:
		return nil, SizeError(fi.Size())
	}
	// There is room for one more byte, which finds the end of the file.
	b := make([]byte, 0, fi.Size()+1)
	for len(b) <= MaxFile {
		b = slices.Grow(b, 1)
		n, err := f.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return b, nil
		}
		if err != nil {
			return nil, withoutPath(err)
		}
	}
	return nil, SizeError(int64(len(b)))
}

// SizeError returns the error of a file of more than MaxFile bytes.
func SizeError(size int64) error {
	return fmt.Errorf("larger than %d MiB (%d bytes): not a configuration file", MaxFile>>20, size)
}

// isGone reports whether err means that a file was removed after it was listed.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESTALE)
}

// withoutPath removes the path from err: it is absolute, and the caller reports the
// path within the config directory.
func withoutPath(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}
