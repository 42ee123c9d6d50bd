package configdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/fsnotify/fsnotify"
)

// Names are the names in a folder that matter. nil means all.
type Names map[string]bool

// Watcher tells when something in some folders may have changed. It misses changes on file systems without
// events, and while the kernel refuses a watch. Its methods are for one goroutine.
type Watcher struct {
	Changed <-chan struct{} // has a value after an event

	changed chan struct{}
	report  func(error)
	kernel  *fsnotify.Watcher // nil before the first Update, and while the kernel refuses it
	done    chan struct{}     // closed when no event is received any more
	watched map[string]fs.FileInfo
	// wanted has the folders of the last Update, for the goroutine that receives events.
	wanted     atomic.Pointer[map[string]Names]
	lastReport string // text of the last reported error
}

// NewWatcher returns a Watcher that watches nothing yet. Update calls report with the reason why a watch is incomplete, and
// with nil when it is complete again.
func NewWatcher(report func(error)) *Watcher {
	changed := make(chan struct{}, 1)
	w := &Watcher{Changed: changed, changed: changed, report: report, watched: map[string]fs.FileInfo{}}
	w.wanted.Store(&map[string]Names{})
	return w
}

// Update watches exactly these folders, and reports whether it added a watch. Earlier changes in an added folder caused no
// event. Adding an existing watch costs one system call, and repairs the watch of a folder that was replaced.
func (w *Watcher) Update(want map[string]Names) (added bool) {
	if w.kernel == nil {
		kernel, err := fsnotify.NewWatcher()
		if err != nil {
			w.reportChange(fmt.Errorf("watch folders: %w", err))
			return false
		}
		w.kernel, w.done = kernel, make(chan struct{})
		go w.receive()
	}
	w.wanted.Store(&want)
	for dir := range w.watched {
		if _, ok := want[dir]; !ok {
			w.drop(dir)
		}
	}
	var problem error
	for _, dir := range slices.Sorted(maps.Keys(want)) {
		id, err := os.Stat(dir)
		if err != nil {
			continue // removed meanwhile, which is an event of its parent
		}
		was, ok := w.watched[dir]
		if ok && !os.SameFile(was, id) {
			w.drop(dir)
			ok = false
		}
		switch err := w.kernel.Add(dir); {
		case err == nil:
			w.watched[dir] = id
			added = added || !ok
		case !errors.Is(err, fs.ErrNotExist):
			problem = fmt.Errorf("watch %s: %w", dir, err)
		}
	}
	w.reportChange(problem)
	return added
}

// drop removes a watch. It ignores the error: the kernel may have removed the watch
// before.
func (w *Watcher) drop(dir string) {
	w.kernel.Remove(dir)
	delete(w.watched, dir)
}

// reportChange reports err if it differs from the last report.
func (w *Watcher) reportChange(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != w.lastReport {
		w.lastReport = text
		w.report(err)
	}
}

// Close ends all watches.
func (w *Watcher) Close() {
	if w.kernel != nil {
		w.kernel.Close() // its descriptor is closed even if this fails
		<-w.done
	}
}

// receive turns events into values of changed, without delay, until the kernel's watcher is closed. It needs a goroutine of
// its own: fsnotify may hold its lock while it sends, so the goroutine that adds watches must not be the one that receives.
func (w *Watcher) receive() {
	defer close(w.done)
	events, errs := w.kernel.Events, w.kernel.Errors
	for events != nil || errs != nil {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
			} else if w.relevant(e.Name) {
				trySend(w.changed)
			}
		case _, ok := <-errs:
			if !ok {
				errs = nil
			} else {
				trySend(w.changed) // events were lost
			}
		}
	}
}

// relevant reports whether a change of a file or folder matters.
func (w *Watcher) relevant(name string) bool {
	wanted := *w.wanted.Load()
	if _, ok := wanted[name]; ok {
		return true
	}
	folder, name := filepath.Split(name)
	names, ok := wanted[filepath.Clean(folder)]
	switch {
	case !ok:
		return true // an event of a watch that is being replaced
	case names != nil:
		return names[name]
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

// trySend sends without blocking. A notification that waits in the buffer already covers
// this one.
func trySend(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
