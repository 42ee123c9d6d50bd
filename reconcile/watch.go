package reconcile

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

// collectFor is how long events are collected before they become one poke.
const collectFor = 20 * time.Millisecond

// moves are the events that may change which folders are to be watched.
const moves = fsnotify.Create | fsnotify.Remove | fsnotify.Rename

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

	feed    *feed // nil while none could be made
	watched map[string]watched
	gaps    string // what was reported last
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
	w.arm()
	poke(w.poke)
	var collected <-chan time.Time
	rearm := false
	for {
		var events <-chan fsnotify.Event
		var lost <-chan struct{}
		if w.feed != nil {
			events, lost = w.feed.events, w.feed.lost
		}
		select {
		case <-ctx.Done():
			return
		case e := <-events:
			if !w.concerns(e) {
				continue
			}
			rearm = rearm || e.Op&moves != 0
		case <-lost:
			rearm = true
		case <-mend.C:
			if w.arm() {
				poke(w.poke)
			}
			continue
		case <-collected:
			if rearm {
				w.arm()
			}
			poke(w.poke) // after arming: what changes from here on is an event
			collected, rearm = nil, false
			continue
		}
		if collected == nil {
			collected = time.After(collectFor)
		}
	}
}

func (w *watcher) close() {
	if w.feed != nil {
		w.feed.close()
	}
}

// concerns reports whether an event is worth a look.
func (w *watcher) concerns(e fsnotify.Event) bool {
	if _, ok := w.watched[e.Name]; ok {
		return true
	}
	folder, name := filepath.Split(e.Name)
	f, ok := w.watched[filepath.Clean(folder)]
	switch {
	case !ok:
		return true // of a watch that is being replaced
	case f.names != nil:
		return f.names[name] && e.Op&moves != 0
	}
	return !passing(name)
}

// passing reports whether files of that name come and go without meaning:
// git's, a generation of a ConfigMap before it is swapped in, editors'.
func passing(name string) bool {
	if name == ".git" || name == "..data_tmp" || name == "4913" {
		return true
	}
	vim, _ := path.Match(".*.sw?", name)
	return vim || strings.HasPrefix(name, "..2") || strings.HasSuffix(name, "~")
}

// arm sees to it that all that matters is watched, and reports whether
// something was not. A folder is listed again after it was watched, since
// folders that were made before are no events.
func (w *watcher) arm() (news bool) {
	if w.feed == nil {
		f, err := newFeed()
		if err != nil {
			w.say(fmt.Errorf("watch config directory: %w", err))
			return false
		}
		w.feed, w.watched = f, map[string]watched{}
	}
	const rounds = 10 // someone who makes folders all the time makes events, too
	for range rounds {
		added, err := w.set(w.wanted())
		w.say(err)
		if !added {
			break
		}
		news = true
	}
	return news
}

// set makes the watches those that are wanted. Adding one that is there
// costs a system call and mends what a folder that was replaced broke.
func (w *watcher) set(want map[string]names) (added bool, err error) {
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
		addErr := w.feed.kernel.Add(dir)
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
	w.feed.kernel.Remove(dir)
	delete(w.watched, dir)
}

func (w *watcher) say(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != w.gaps {
		w.gaps = text
		w.report(err)
	}
}
