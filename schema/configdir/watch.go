package configdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// coalesceFor is how long events are collected before one notification is sent.
const coalesceFor = 20 * time.Millisecond

// structureOps are the events that may change which folders must be watched.
const structureOps = fsnotify.Create | fsnotify.Remove | fsnotify.Rename

// Watch sends to notify when something may have changed in the content that Read
// returns for dir, once when the watch is complete, and returns when ctx is done. A
// send does not block, so notify needs a buffer of one. dir need not exist.
//
// A notification means only "read again". None comes from file systems without
// events, and none while the kernel refuses a watch (it allows few per user),
// so the caller must also read periodically. Watch tries to repair itself at the interval
// repairEvery: it calls report, from its own goroutine, with the reason why the watch is
// incomplete, and with nil when it is complete again.
func Watch(ctx context.Context, dir string, repairEvery time.Duration, notify chan<- struct{}, report func(error)) {
	w := watcher{dir: dir, notify: notify, report: report}
	defer w.close()
	w.run(ctx, repairEvery)
}

// watcher is the state of Watch. Only the goroutine of Watch uses it.
type watcher struct {
	dir    string
	notify chan<- struct{}
	report func(error)

	pump       *eventPump // nil while the kernel refuses one
	watched    map[string]watched
	lastReport string // text of the last reported error
}

// watched is a folder with a watch.
type watched struct {
	id    fs.FileInfo
	names names
}

func (w *watcher) run(ctx context.Context, repairEvery time.Duration) {
	repair := time.NewTicker(repairEvery)
	defer repair.Stop()
	w.rewatch()
	trySend(w.notify)
	var collected <-chan time.Time
	structureChanged := false
	for {
		var events <-chan fsnotify.Event
		var lost <-chan struct{}
		if w.pump != nil {
			events, lost = w.pump.events, w.pump.lost
		}
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if !w.relevant(e) {
				continue
			}
			structureChanged = structureChanged || e.Op&structureOps != 0
		case <-lost:
			structureChanged = true
		case <-repair.C:
			if w.rewatch() {
				trySend(w.notify)
			}
			continue
		case <-collected:
			if structureChanged {
				w.rewatch()
			}
			// Notify after rewatch: a later change is an event of the new watches.
			trySend(w.notify)
			collected, structureChanged = nil, false
			continue
		}
		if collected == nil {
			collected = time.After(coalesceFor)
		}
	}
}

func (w *watcher) close() {
	if w.pump != nil {
		w.pump.close()
	}
}

// relevant reports whether an event may change the content.
func (w *watcher) relevant(e fsnotify.Event) bool {
	if _, ok := w.watched[e.Name]; ok {
		return true
	}
	folder, name := filepath.Split(e.Name)
	f, ok := w.watched[filepath.Clean(folder)]
	switch {
	case !ok:
		return true // the event of a watch that is being replaced
	case f.names != nil:
		return f.names[name] && e.Op&structureOps != 0
	}
	return !isTemporary(name)
}

// isTemporary reports whether a file with that name is never content: it belongs to git,
// to a ConfigMap generation that is not yet swapped in, or to an editor.
func isTemporary(name string) bool {
	if name == ".git" || name == "..data_tmp" || name == "4913" {
		return true
	}
	vim, _ := path.Match(".*.sw?", name)
	return vim || strings.HasPrefix(name, "..2") || strings.HasSuffix(name, "~")
}

// rewatch adds the watches that are missing, and reports whether there were any.
func (w *watcher) rewatch() (added bool) {
	if w.pump == nil {
		p, err := newEventPump()
		if err != nil {
			w.reportChange(fmt.Errorf("watch config directory: %w", err))
			return false
		}
		w.pump, w.watched = p, map[string]watched{}
	}
	// List again after each change: a folder that was created before its parent was
	// watched is no event. A writer that creates folders all the time also causes
	// events, so a limit of rounds loses nothing.
	const rounds = 10
	for range rounds {
		more, err := w.update(w.wantedFolders())
		w.reportChange(err)
		if !more {
			break
		}
		added = true
	}
	return added
}

// update changes the watches to the wanted ones. Adding an existing watch
// costs one system call, and repairs the watch of a folder that was replaced.
func (w *watcher) update(want map[string]names) (added bool, err error) {
	for dir := range w.watched {
		if _, ok := want[dir]; !ok {
			w.drop(dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(want)) {
		id, statErr := os.Stat(dir)
		if statErr != nil {
			continue // removed meanwhile, which is an event of its parent
		}
		was, ok := w.watched[dir]
		if ok && !os.SameFile(was.id, id) {
			w.drop(dir)
			ok = false
		}
		addErr := w.pump.kernel.Add(dir)
		switch {
		case addErr == nil:
			w.watched[dir] = watched{id, want[dir]}
			added = added || !ok
		case !errors.Is(addErr, fs.ErrNotExist):
			err = fmt.Errorf("watch %s: %w", dir, addErr)
		}
	}
	return added, err
}

// drop removes a watch. It ignores the error: the kernel may have removed the watch
// before.
func (w *watcher) drop(dir string) {
	w.pump.kernel.Remove(dir)
	delete(w.watched, dir)
}

// reportChange reports err if it differs from the last report.
func (w *watcher) reportChange(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != w.lastReport {
		w.lastReport = text
		w.report(err)
	}
}

// wantedFolders returns the folders to watch: those in which the directory or a symlink
// on the way to it can be replaced, those with configuration files, and those with the
// files that show the progress of git.
func (w *watcher) wantedFolders() map[string]names {
	want := parentFolders(w.dir)
	folders, git, err := readFolders(w.dir)
	if err != nil {
		// The directory is missing or changing. Its parents, or the folders that are
		// watched already, send an event when that ends.
		for dir, f := range w.watched {
			if _, ok := want[dir]; !ok {
				want[dir] = f.names
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

func addName(folders map[string]names, folder, name string) {
	if folders[folder] == nil {
		folders[folder] = names{}
	}
	folders[folder][name] = true
}

// eventPump receives the events of the kernel without delay, whatever the watcher does
// meanwhile. fsnotify may hold its lock while it sends an error, so a watcher
// that adds a watch at that moment and does not receive would wait forever.
type eventPump struct {
	kernel *fsnotify.Watcher
	events chan fsnotify.Event
	lost   chan struct{} // buffer of one: events were lost, here or by the kernel
	done   chan struct{}
}

func newEventPump() (*eventPump, error) {
	kernel, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	p := &eventPump{
		kernel: kernel,
		events: make(chan fsnotify.Event, 1024),
		lost:   make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	go p.run()
	return p, nil
}

// run ends when kernel is closed, which closes both its channels.
func (p *eventPump) run() {
	defer close(p.done)
	errs := p.kernel.Errors
	for {
		select {
		case e, ok := <-p.kernel.Events:
			if !ok {
				return
			}
			select {
			case p.events <- e:
			default:
				trySend(p.lost)
			}
		case _, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			trySend(p.lost)
		}
	}
}

func (p *eventPump) close() {
	p.kernel.Close() // its descriptor is closed even if this fails
	<-p.done
}

// trySend sends without blocking. A notification that waits in the buffer already covers
// this one.
func trySend(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
