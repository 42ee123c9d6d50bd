package configdir

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// coalesceFor is how long events are collected before one notification is sent.
const coalesceFor = 20 * time.Millisecond

// Watch sends to notify when the content that Read returns for dir may have changed, and
// once when the watch is complete. It returns when ctx is done. A send does not block, so
// notify needs a buffer of one. The directory dir need not exist.
//
// A notification means only "read again". A file system without events causes no
// notification, and the kernel may refuse a watch (it allows few per user). So the caller
// must also read periodically. At the interval repairEvery, Watch adds missing watches. It
// calls report, from its own goroutine, with the reason why the watch is incomplete, and
// with nil when it is complete again.
func Watch(ctx context.Context, dir string, repairEvery time.Duration, notify chan<- struct{}, report func(error)) {
	w := configWatch{NewWatcher(report), dir}
	defer w.Close()
	repair := time.NewTicker(repairEvery)
	defer repair.Stop()
	w.rewatch()
	for {
		// Notify after rewatch: a later change is an event of the new watches.
		trySend(notify)
		if !w.await(ctx, repair.C) {
			return
		}
	}
}

// configWatch watches a config directory.
type configWatch struct {
	*Watcher
	dir string
}

// await waits until the directory may have changed, and watches it again. It returns false if ctx is done.
func (w configWatch) await(ctx context.Context, repair <-chan time.Time) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-repair:
			if w.rewatch() {
				return true
			}
		case <-w.Changed:
			select {
			case <-ctx.Done():
				return false
			case <-time.After(coalesceFor):
			}
			select {
			case <-w.Changed:
			default:
			}
			w.rewatch()
			return true
		}
	}
}

// rewatch adds the missing watches, and reports whether it added any.
func (w configWatch) rewatch() (added bool) {
	// List again after each change: a folder that was created before the watch of its
	// parent caused no event. A writer that creates folders all the time also causes
	// events, so the limit of rounds loses nothing.
	const rounds = 10
	for range rounds {
		if !w.Update(w.folders()) {
			break
		}
		added = true
	}
	return added
}

// folders returns the folders to watch: the folders in which the directory or a symlink
// on the way to it can be replaced, the folders with configuration files, and the folders
// with the files that show the progress of git.
func (w configWatch) folders() map[string]Names {
	want := parentFolders(w.dir)
	folders, git, err := readFolders(w.dir)
	if err != nil {
		// The directory is missing or changing. Its parents, or the folders that are
		// watched already, send an event when it is complete.
		for dir, names := range *w.wanted.Load() {
			if _, ok := want[dir]; !ok {
				want[dir] = names
			}
		}
		return want
	}
	for _, file := range git {
		addName(want, filepath.Dir(file), filepath.Base(file))
	}
	for _, dir := range folders {
		want[dir] = nil
	}
	return want
}

// readFolders returns the folders that Read reads from, as absolute paths without
// symlinks, and the files of the git checkout that show the progress of git.
func readFolders(dir string) (folders, git []string, err error) {
	t, err := openTree(dir)
	if err != nil {
		return nil, nil, err
	}
	defer t.root.Close() // only read from: no error matters
	return t.absoluteFolders(), t.git.watchFiles(), nil
}

// parentFolders returns the folders in which the directory, or a symlink on the way
// to it, can be replaced, each with the name that matters there. If a folder on the way
// does not exist, it returns the nearest folder that does.
func parentFolders(dir string) map[string]Names {
	folders := map[string]Names{}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return folders // the working directory was removed: there is nothing to watch
	}
	const maxLinks = 40 // as in Linux
	at, rest := "/", strings.Split(abs, "/")
	for links := 0; len(rest) > 0 && links <= maxLinks; {
		next := filepath.Join(at, rest[0])
		rest = rest[1:]
		fi, err := os.Lstat(next)
		isLink := err == nil && fi.Mode()&fs.ModeSymlink != 0
		if err != nil || isLink || len(rest) == 0 {
			addName(folders, filepath.Dir(next), filepath.Base(next))
		}
		if err != nil {
			break
		}
		if !isLink {
			at = next
			continue
		}
		target, err := os.Readlink(next)
		if err != nil {
			break // it was replaced meanwhile, which is an event
		}
		if links++; filepath.IsAbs(target) {
			at = "/"
		}
		rest = slices.Concat(strings.Split(target, "/"), rest)
	}
	return folders
}

func addName(folders map[string]Names, folder, name string) {
	if folders[folder] == nil {
		folders[folder] = Names{}
	}
	folders[folder][name] = true
}
