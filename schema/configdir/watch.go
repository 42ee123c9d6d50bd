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

// coalesceFor is how long events are collected before they become one poke.
const coalesceFor = 20 * time.Millisecond

// structureOps are the events that may change which folders are to be watched.
const structureOps = fsnotify.Create | fsnotify.Remove | fsnotify.Rename

// Watch pokes (a send that does not wait; poke should hold one) when
// something may have changed in what schema.ReadDir reads of dir, once when
// the watch stands, and returns when ctx is done. dir need not exist.
//
// A poke only means "look again". None comes from file systems without
// events, nor while no watch can be had (the kernel allows few per user),
// so look periodically as well. Watch tries to mend itself every so often:
// report is called, by Watch's goroutine, with why the watch has gaps, and
// with nil when it has none any more.
func Watch(ctx context.Context, dir string, every time.Duration, poke chan<- struct{}, report func(error)) {
	w := watcher{dir: dir, poke: poke, report: report}
	defer w.close()
	w.run(ctx, every)
}

// watcher is what Watch has, all of it in its one goroutine.
type watcher struct {
	dir    string
	poke   chan<- struct{}
	report func(error)

	pump       *eventPump // nil while none could be made
	watched    map[string]watched
	lastReport string // what was reported last
}

// watched is a folder with a watch.
type watched struct {
	id    fs.FileInfo
	names names
}

// names are those in a folder that matter; nil: all.
type names map[string]bool

func (w *watcher) run(ctx context.Context, every time.Duration) {
	mend := time.NewTicker(every)
	defer mend.Stop()
	w.rewatch()
	poke(w.poke)
	var collected <-chan time.Time
	rearm := false
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
			rearm = rearm || e.Op&structureOps != 0
		case <-lost:
			rearm = true
		case <-mend.C:
			if w.rewatch() {
				poke(w.poke)
			}
			continue
		case <-collected:
			if rearm {
				w.rewatch()
			}
			poke(w.poke) // after arming: what changes from here on is an event
			collected, rearm = nil, false
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

// relevant reports whether an event is worth a look.
func (w *watcher) relevant(e fsnotify.Event) bool {
	if _, ok := w.watched[e.Name]; ok {
		return true
	}
	folder, name := filepath.Split(e.Name)
	f, ok := w.watched[filepath.Clean(folder)]
	switch {
	case !ok:
		return true // of a watch that is being replaced
	case f.names != nil:
		return f.names[name] && e.Op&structureOps != 0
	}
	return !isTemporary(name)
}

// isTemporary reports whether files of that name come and go without meaning:
// git's, a generation of a ConfigMap before it is swapped in, editors'.
func isTemporary(name string) bool {
	if name == ".git" || name == "..data_tmp" || name == "4913" {
		return true
	}
	vim, _ := path.Match(".*.sw?", name)
	return vim || strings.HasPrefix(name, "..2") || strings.HasSuffix(name, "~")
}

// rewatch sees to it that all that matters is watched, and reports whether
// something was not. A folder is listed again after it was watched, since
// folders that were made before are no events.
func (w *watcher) rewatch() (news bool) {
	if w.pump == nil {
		f, err := newEventPump()
		if err != nil {
			w.reportChange(fmt.Errorf("watch config directory: %w", err))
			return false
		}
		w.pump, w.watched = f, map[string]watched{}
	}
	const rounds = 10 // someone who makes folders all the time makes events, too
	for range rounds {
		added, err := w.update(w.wantedFolders())
		w.reportChange(err)
		if !added {
			break
		}
		news = true
	}
	return news
}

// update makes the watches those that are wanted. Adding one that is there
// costs a system call and mends what a folder that was replaced broke.
func (w *watcher) update(want map[string]names) (added bool, err error) {
	for dir := range w.watched {
		if _, ok := want[dir]; !ok {
			w.drop(dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(want)) {
		id, statErr := os.Stat(dir)
		if statErr != nil {
			continue // gone again, which is an event of its parent
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

// drop ends a watch that the kernel may have ended before, hence no error.
func (w *watcher) drop(dir string) {
	w.pump.kernel.Remove(dir)
	delete(w.watched, dir)
}

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

// eventPump takes events from the kernel as they come, whatever its owner does
// meanwhile: fsnotify may hold its lock while it sends an error, so an owner
// that is adding a watch at that moment would wait for ever.
type eventPump struct {
	kernel *fsnotify.Watcher
	events chan fsnotify.Event
	lost   chan struct{} // holds one: events were lost, here or by the kernel
	done   chan struct{}
}

func newEventPump() (*eventPump, error) {
	kernel, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	f := &eventPump{
		kernel: kernel,
		events: make(chan fsnotify.Event, 1024),
		lost:   make(chan struct{}, 1),
		done:   make(chan struct{}),
	}
	go f.run()
	return f, nil
}

// run ends when kernel is closed, which closes both its channels.
func (f *eventPump) run() {
	defer close(f.done)
	errs := f.kernel.Errors
	for {
		select {
		case e, ok := <-f.kernel.Events:
			if !ok {
				return
			}
			select {
			case f.events <- e:
			default:
				poke(f.lost)
			}
		case _, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			poke(f.lost)
		}
	}
}

func (f *eventPump) close() {
	f.kernel.Close() // the descriptor is gone either way
	<-f.done
}

// poke sends without waiting: where one poke waits, another says nothing new.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wantedFolders returns the folders to watch: those that hold the directory and
// the links on the way to it, those that are read, and git's for what tells of its work.
func (w *watcher) wantedFolders() map[string]names {
	want := parentFolders(w.dir)
	folders, git, err := Folders(w.dir)
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
		addName(want, filepath.Dir(file), filepath.Base(file))
	}
	for _, dir := range folders {
		want[dir] = nil
	}
	return want
}

// parentFolders returns the folders in which the directory, or a link on the way
// to it, can be replaced, each with the name that matters there. What does
// not exist is held by the nearest folder that does.
func parentFolders(dir string) map[string]names {
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
			addName(held, at, name)
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

func addName(held map[string]names, dir, name string) {
	if held[dir] == nil {
		held[dir] = names{}
	}
	held[dir][name] = true
}
