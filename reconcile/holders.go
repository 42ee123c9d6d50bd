package reconcile

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// wanted returns the folders to watch: those that hold the directory and
// the links on the way to it, those that are read, and git's for what tells of its work.
func (w *watcher) wanted() map[string]names {
	want := holders(w.dir)
	folders, git, err := schema.Folders(w.dir)
	if err != nil {
		// Missing: its holders tell when it comes. Changing: so will they, or
		// the folders that are watched already.
		for dir, f := range w.watched {
			if _, ok := want[dir]; !ok {
				want[dir] = f.names
			}
		}
		return want
	}
	for _, file := range git {
		hold(want, filepath.Dir(file), filepath.Base(file))
	}
	for _, dir := range folders {
		want[dir] = nil
	}
	return want
}

// holders returns the folders in which the directory, or a link on the way
// to it, can be replaced, each with the name that matters there. What does
// not exist is held by the nearest folder that does.
func holders(dir string) map[string]names {
	const maxLinks = 40 // as in Linux
	held := map[string]names{}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return held // the working directory is gone: nothing to go by
	}
	at, rest := "/", strings.Split(abs, "/")
	for links := 0; len(rest) > 0 && links < maxLinks; {
		name := rest[0]
		rest = rest[1:]
		next := filepath.Join(at, name)
		fi, err := os.Lstat(next)
		link := err == nil && fi.Mode()&fs.ModeSymlink != 0
		if err != nil || link || len(rest) == 0 {
			hold(held, at, name)
		}
		if err != nil {
			break
		}
		if !link {
			at = next
			continue
		}
		links++
		target, err := os.Readlink(next)
		if err != nil {
			break // replaced just now, which is an event of its holder
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(target, "/"), rest)
	}
	return held
}

func hold(held map[string]names, dir, name string) {
	if held[dir] == nil {
		held[dir] = names{}
	}
	held[dir][name] = true
}
