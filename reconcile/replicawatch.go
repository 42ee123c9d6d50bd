package reconcile

import (
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"
)

// replicaWatch reports when replica folders appear on the disks of this node or vanish, so that a volume that
// needs an image does not wait for the next round. An event means only "look again": there are none from some
// file systems, and none while the kernel refuses a watch, because all rounds look.
//
// It watches the folders with the replicas and not the replicas themselves, because each write of a volume
// would be an event. A replica may get its metadata after its folder, so that its first rounds come one after
// the other: see triggers.lookAgain. The methods are for one goroutine.
type replicaWatch struct {
	log     *slog.Logger
	kernel  *fsnotify.Watcher // nil: the kernel refuses one, or a test has none
	changed chan struct{}     // has a value after an event
	done    chan struct{}     // closed when no event is received any more
	watched map[string]bool   // the watched folders
	problem string            // the last one that was logged
}

func newReplicaWatch(log *slog.Logger) *replicaWatch {
	w := &replicaWatch{log: log, changed: make(chan struct{}, 1), done: make(chan struct{}), watched: map[string]bool{}}
	kernel, err := fsnotify.NewWatcher()
	if err != nil {
		w.report(err)
		close(w.done)
		return w
	}
	w.kernel = kernel
	go w.receive()
	return w
}

// receive turns events into values of changed, without delay: fsnotify may hold a lock while it sends one.
func (w *replicaWatch) receive() {
	defer close(w.done)
	events, errs := w.kernel.Events, w.kernel.Errors
	for events != nil || errs != nil {
		select {
		case _, ok := <-events:
			if !ok {
				events = nil
				continue
			}
		case _, ok := <-errs: // events were lost
			if !ok {
				errs = nil
				continue
			}
		}
		notify(w.changed)
	}
}

// update watches the disks at these paths and no others. It watches the disk itself while it has no folder
// with replicas. Adding a watch again costs one system call, and repairs the watch of a folder that was
// replaced. It reports whether a watch was added.
func (w *replicaWatch) update(paths []string) (added bool) {
	if w.kernel == nil {
		return false
	}
	want := map[string]bool{}
	var problem error
	for _, path := range paths {
		dir := filepath.Join(path, "replicas")
		err := w.kernel.Add(dir)
		if err != nil {
			dir = path
			err = w.kernel.Add(dir)
		}
		if err != nil {
			problem = err
			continue
		}
		want[dir], added = true, added || !w.watched[dir]
	}
	for dir := range w.watched {
		if !want[dir] {
			_ = w.kernel.Remove(dir) // it fails if the folder is gone
		}
	}
	w.watched = want
	w.report(problem)
	return added
}

// report logs a problem unless it was the last one.
func (w *replicaWatch) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
		if text != w.problem {
			w.log.Warn("cannot watch the replicas: looking at them periodically", "error", err)
		}
	}
	w.problem = text
}

func (w *replicaWatch) close() {
	if w.kernel != nil {
		_ = w.kernel.Close() // its descriptor is closed even if this fails
	}
	<-w.done
}

// paths returns the paths of the usable disks.
func (s *disks) paths() []string {
	var paths []string
	for _, o := range s.open {
		if o.handle != nil && o.problem == "" {
			paths = append(paths, o.path)
		}
	}
	slices.Sort(paths)
	return paths
}
