package reconcile

import (
	"os"
	"path/filepath"
	"slices"

	"github.com/seed-26586806/backing-image-manager/internal/once"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// replicaWatch reports when replica folders appear on the disks of this node or vanish, so that a volume that
// needs an image does not wait for the next round. An event means only "look again". Some file systems give no
// events, and the kernel may refuse a watch. Therefore all rounds look at the replicas.
//
// It watches the folders with the replicas and not the replicas themselves, because each write of a volume
// would be an event. A replica may get its metadata after its folder, so several rounds follow an event:
// see triggers.lookAgain. The methods are for one goroutine.
type replicaWatch struct {
	watcher *configdir.Watcher // nil: a test has none
	changed <-chan struct{}    // has a value after an event
}

func newReplicaWatch(health *once.Log) *replicaWatch {
	w := configdir.NewWatcher(func(err error) { health.SetError(replicasNotWatched, "", err) })
	return &replicaWatch{w, w.Changed}
}

// update watches exactly the disks at these paths. It watches the disk itself while the disk has no folder
// with replicas. It reports whether a watch was added.
func (w *replicaWatch) update(paths []string) (added bool) {
	if w.watcher == nil {
		return false
	}
	want := map[string]configdir.Names{}
	for _, path := range paths {
		dir := filepath.Join(path, "replicas")
		if _, err := os.Stat(dir); err == nil {
			want[dir] = nil
		} else {
			want[path] = configdir.Names{filepath.Base(dir): true}
		}
	}
	return w.watcher.Update(want)
}

func (w *replicaWatch) close() { w.watcher.Close() }

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
