package configdir

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

var (
	errLeaves     = errors.New("the link leads out of the config directory")
	errLoop       = errors.New("the link leads to itself, or through too many others")
	errNotRegular = errors.New("not a regular file")
	errNames      = fmt.Errorf("more than %d names: not a config directory", maxNames)
)

// node is what stands at a place, or err.
type node struct {
	mode   fs.FileMode
	target string // of a link
	err    error
}

// node looks at a place once.
func (t *tree) node(place string) node {
	if n, ok := t.nodes[place]; ok {
		return n
	}
	var n node
	if fi, err := t.root.Lstat(place); err != nil {
		n.err = reason(err)
	} else if n.mode = fi.Mode(); n.mode&fs.ModeSymlink != 0 {
		n.target, n.err = t.root.Readlink(place)
	}
	t.nodes[place] = n
	return n
}

// resolve follows name, relative to the folder at place, through all links.
func (t *tree) resolve(place, name string) (string, fs.FileMode, error) {
	const maxLinks = 40 // as in Linux
	mode, links := fs.ModeDir, 0
	for rest := []string{name}; len(rest) > 0; {
		name, rest = rest[0], rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if place == "." {
				return "", 0, errLeaves
			}
			place, mode = path.Dir(place), fs.ModeDir
			continue
		}
		next := path.Join(place, name)
		n := t.node(next)
		switch {
		case n.err != nil:
			return "", 0, fmt.Errorf("follow link: %w", n.err)
		case n.mode&fs.ModeSymlink == 0:
			place, mode = next, n.mode
			continue
		case path.IsAbs(n.target):
			return "", 0, errLeaves
		}
		if links++; links > maxLinks {
			return "", 0, errLoop
		}
		rest = slices.Concat(strings.Split(n.target, "/"), rest)
	}
	return place, mode, nil
}

// list returns what is in the folder at place, sorted by name.
func (t *tree) list(place string) ([]fs.DirEntry, error) {
	if len(place) > maxPlace {
		return nil, syscall.ENAMETOOLONG
	}
	f, err := t.root.Open(place)
	if err != nil {
		return nil, err
	}
	defer f.Close() // only read from: nothing to lose
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

// hidden says what it means that the folder at place could not be listed.
func (t *tree) hidden(place, dir string, err error) error {
	switch {
	case gone(err):
		return ErrChanging
	case place == "." || err == errNames:
		return err
	}
	return t.add(found{path: dir, err: reason(err)})
}

func (t *tree) readFiles() ([]File, error) {
	var files []File
	left := maxBytes
	for _, f := range t.found {
		file := File{Path: f.path, Err: f.err}
		if f.err == nil {
			file.Data, file.Err = t.read(f.place)
		}
		if gone(file.Err) && f.err == nil {
			return nil, ErrChanging
		}
		if left -= len(file.Data); left < 0 {
			return nil, fmt.Errorf("more than %d MiB of configuration", maxBytes>>20)
		}
		files = append(files, file)
	}
	return files, nil
}

func (t *tree) read(place string) ([]byte, error) {
	// What was a regular file may be a FIFO by now, which must not block us.
	f, err := t.root.OpenFile(place, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, reason(err)
	}
	defer f.Close() // only read from: nothing to lose
	fi, err := f.Stat()
	switch {
	case err != nil:
		return nil, reason(err)
	case !fi.Mode().IsRegular():
		return nil, errNotRegular
	case fi.Size() > MaxFile:
		return nil, ErrTooLarge(fi.Size())
	}
	var b bytes.Buffer
	b.Grow(int(fi.Size()) + bytes.MinRead)
	if _, err := b.ReadFrom(io.LimitReader(f, MaxFile+1)); err != nil {
		return nil, reason(err)
	}
	if b.Len() > MaxFile {
		return nil, ErrTooLarge(int64(b.Len()))
	}
	return b.Bytes(), nil
}

func ErrTooLarge(size int64) error {
	return fmt.Errorf("larger than %d MiB (%d bytes): not a configuration file", MaxFile>>20, size)
}

// gone reports whether err says that what was there a moment ago is not.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESTALE)
}

// reason is err without the path, which those who report it know better.
func reason(err error) error {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return fmt.Errorf("cannot be read: %w", pe.Err)
	}
	return err
}
