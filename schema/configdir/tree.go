package configdir

import (
	"bytes"
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
	"time"
)

// Limits of one read of a config directory. A directory that exceeds them is most
// likely not the intended one. 10,000 images with typical fields have 5 MB.
const (
	MaxFile  = 8 << 20  // bytes of one file; a larger one is an error of that file
	maxNames = 200_000  // names of any kind, ignored ones included
	maxFiles = 50_000   // configuration files
	maxBytes = 32 << 20 // bytes of all files together; beyond them, the largest files are errors
	// maxLevels limits the levels of folders, because each access to a file opens all folders above
	// it. A deeper folder is an error of that folder.
	maxLevels = 32
	// linkTime limits the time that all symlinks together take. A symlink may lead through 40 others with 2,000 folders
	// each. So the symlinks of a small repository could take hours. Usual symlinks take microseconds.
	linkTime = 5 * time.Second
)

// swapLink is the symlink in a Kubernetes volume that the kubelet swaps to publish
// a new generation of all files of the folder at once.
const swapLink = "..data"

var (
	errNotRegular = errors.New("not a regular file")
	errLevels     = fmt.Errorf("is not read: it is more than %d levels of folders deep: move it up", maxLevels)
	errLinkTime   = errors.New("is not followed: the symlinks of the directory take too long together: remove some")
	errNames      = fmt.Errorf("more than %d names: not a config directory", maxNames)
	errLeaves     = errors.New("the link leads out of the config directory: replace it by a copy")
	errLoop       = errors.New("the link leads to itself, or through too many others: correct it")
)

// tree is the names below a config directory at one moment. A location is a path relative to root, which may lead
// through symlinks.
type tree struct {
	real string // absolute and without symlinks
	root *os.Root
	git  *checkout // nil: the directory is in no checkout

	walked  map[inode]bool // folders
	known   map[inode]bool // files
	folders []string       // locations of the folders whose names matter
	links   []found        // symlinks to follow when everything else was walked
	found   []found
	names   int
	until   time.Time // no symlink is followed afterwards
}

// inode identifies a file or folder.
type inode struct{ device, number uint64 }

// found is a file to read, or the reason why it cannot be read. path is how messages name it.
type found struct {
	path, location string
	linked         bool // location leads through a symlink of its own
	size           int64
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
	t = &tree{walked: map[inode]bool{}, known: map[inode]bool{}}
	defer func() {
		if err != nil && t.root != nil {
			t.root.Close() // only read from: no error matters
		}
	}()
	// Opening a FIFO would block, so check the type first.
	fi, err := os.Stat(dir)
	if err != nil {
		return t, err
	}
	if !fi.IsDir() {
		return t, &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	if t.root, err = os.OpenRoot(dir); err != nil {
		return t, err
	}
	if t.real, err = filepath.EvalSymlinks(dir); err != nil {
		return t, err
	}
	if t.real, err = filepath.Abs(t.real); err != nil {
		return t, err
	}
	t.git = openCheckout(t.real)
	return t, t.walk()
}

func inodeOf(fi fs.FileInfo) inode {
	st := fi.Sys().(*syscall.Stat_t)
	return inode{st.Dev, st.Ino}
}

// absoluteFolders returns the paths of the folders whose names matter, and of the folders with the targets of symlinks.
func (t *tree) absoluteFolders() []string {
	var all []string
	add := func(location string, parent func(string) string) {
		// An error means that the folder was removed meanwhile, which is an event of its parent.
		if real, err := filepath.EvalSymlinks(filepath.Join(t.real, location)); err == nil {
			all = append(all, parent(real))
		}
	}
	for _, location := range t.folders {
		add(location, filepath.Clean)
	}
	for _, f := range t.found {
		if f.linked && f.err == nil { // with an error it may lead out of the directory
			add(f.location, filepath.Dir)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// walk finds the files. It follows symlinks last, so that a file that is in the
// directory itself keeps its own name.
func (t *tree) walk() error {
	if err := t.walkFolder(".", ""); err != nil {
		return err
	}
	t.until = time.Now().Add(linkTime)
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

// walkFolder finds the files of the folder at a location. The argument dir is its name in messages.
func (t *tree) walkFolder(location, dir string) error {
	entries, err := t.list(location)
	if errors.Is(err, errNames) || errors.Is(err, fs.ErrNotExist) || err != nil && location == "." {
		return err
	}
	if err != nil {
		return t.add(found{path: dir, location: location, err: withoutPath(err)})
	}
	swapped, err := t.walkSwap(location, dir, entries)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name()[0] == '.' {
			continue
		}
		f := found{path: path.Join(dir, e.Name()), location: path.Join(location, e.Name())}
		switch {
		case e.IsDir():
			err = t.walkFolder(f.location, f.path)
		case e.Type()&fs.ModeSymlink != 0:
			if target, _ := t.root.Readlink(f.location); !swapped || !strings.HasPrefix(target, swapLink+"/") {
				f.linked = true
				t.links = append(t.links, f)
			}
		case IsConfig(e.Name()):
			var fi fs.FileInfo
			if fi, err = t.root.Lstat(f.location); !errors.Is(err, fs.ErrNotExist) {
				err = t.addFile(f, fi, err)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// walkSwap walks the target of the swapLink in a folder as if its files were in the
// folder, and reports whether there is a swapLink. The kubelet's symlinks to the single files are not
// used: the kubelet creates and removes them only after the swap.
func (t *tree) walkSwap(location, dir string, entries []fs.DirEntry) (bool, error) {
	if !slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == swapLink }) {
		return false, nil
	}
	at := path.Join(location, swapLink)
	if fi, err := t.root.Stat(at); err != nil || !fi.IsDir() {
		if err == nil {
			err = syscall.ENOTDIR
		}
		return false, t.add(found{path: path.Join(dir, swapLink), location: at, err: fmt.Errorf("follow link: %w", withoutPath(err))})
	}
	return true, t.walkFolder(at, dir)
}

// follow walks the target of a symlink. A symlink that is broken or that leaves the
// directory is an error only if it would have led to configuration files.
func (t *tree) follow(l found) error {
	if time.Now().After(t.until) {
		l.err = errLinkTime
		return t.add(l) // it may lead to a folder with configuration files
	}
	fi, err := t.root.Stat(l.location)
	if err == nil && fi.IsDir() {
		return t.walkFolder(l.location, l.path)
	}
	isConfig := IsConfig(path.Base(l.path))
	if err != nil && !errors.Is(err, syscall.ENAMETOOLONG) {
		outside, outsideErr := os.Stat(filepath.Join(t.real, l.location))
		switch {
		case outsideErr == nil:
			err, isConfig = errLeaves, isConfig || outside.IsDir()
		case errors.Is(outsideErr, syscall.ELOOP):
			err = errLoop
		default:
			err = fmt.Errorf("follow link: %w", withoutPath(outsideErr))
		}
	}
	if !isConfig || err == nil && t.known[inodeOf(fi)] {
		return nil
	}
	return t.addFile(l, fi, err)
}

// addFile adds a file with its size, or with the error why it cannot be read.
func (t *tree) addFile(f found, fi fs.FileInfo, err error) error {
	if f.err = withoutPath(err); err == nil {
		f.size = fi.Size()
		t.known[inodeOf(fi)] = true
		if !fi.Mode().IsRegular() {
			f.err = errNotRegular
		}
	}
	return t.add(f)
}

func (t *tree) add(f found) error {
	if t.found = append(t.found, f); len(t.found) > maxFiles {
		return fmt.Errorf("more than %d files of configuration", maxFiles)
	}
	return nil
}

// list returns the entries of the folder at a location, sorted by name. For a folder that was listed before, it returns nothing.
func (t *tree) list(location string) ([]fs.DirEntry, error) {
	if strings.Count(location, "/") >= maxLevels {
		return nil, errLevels
	}
	f, err := t.root.Open(location)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from: no error matters
	fi, err := f.Stat()
	if err != nil || t.walked[inodeOf(fi)] {
		return nil, err
	}
	t.walked[inodeOf(fi)] = true
	t.folders = append(t.folders, location)
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

// readFiles reads the files. If they are too large together, it leaves out the largest ones, so that one large file
// does not affect the others. It fails if a file was removed after it was listed.
func (t *tree) readFiles() ([]File, error) {
	files, bySize := make([]File, len(t.found)), make([]int, len(t.found))
	for i, f := range t.found {
		files[i], bySize[i] = File{Path: f.path, Err: f.err}, i
	}
	slices.SortStableFunc(bySize, func(a, b int) int { return cmp.Compare(t.found[a].size, t.found[b].size) })
	total := int64(0)
	for _, i := range bySize {
		f := t.found[i]
		if f.size <= MaxFile && f.err == nil {
			total += f.size
		}
		switch {
		case f.err != nil:
		case total > maxBytes && f.size <= MaxFile:
			files[i].Err = fmt.Errorf("is not read: the files of the directory have more than %d MiB together, and this is one of the largest", maxBytes>>20)
		default:
			// The regular file may have been replaced by a FIFO, which must not block the read.
			files[i].Data, files[i].Err = readLimited(t.root.OpenFile(f.location, os.O_RDONLY|syscall.O_NONBLOCK, 0))
			total += max(0, int64(len(files[i].Data))-f.size) // the file may have grown meanwhile
			if errors.Is(files[i].Err, fs.ErrNotExist) {
				return nil, fmt.Errorf("%s %w", f.path, files[i].Err)
			}
		}
	}
	return files, nil
}

// ReadFile reads one configuration file, which need not be in a config directory. The error does
// not contain its path.
func ReadFile(path string) ([]byte, error) {
	return readLimited(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))
}

// readLimited reads a file, and closes it. The arguments are the results of opening the file.
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
	b := bytes.NewBuffer(make([]byte, 0, fi.Size()+bytes.MinRead)) // enough unless the file grows
	if _, err := b.ReadFrom(io.LimitReader(f, MaxFile+1)); err != nil {
		return nil, withoutPath(err)
	}
	if b.Len() > MaxFile {
		return nil, SizeError(int64(b.Len()))
	}
	return b.Bytes(), nil
}

// SizeError returns the error of a file of more than MaxFile bytes.
func SizeError(size int64) error {
	return fmt.Errorf("larger than %d MiB (%d bytes): not a configuration file", MaxFile>>20, size)
}

// withoutPath removes the path from err: it is absolute, and the caller reports the
// path within the config directory.
func withoutPath(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}
