package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// stoppedDeletion is a process that is stopped when a deletion is confirmed. Meanwhile is what happens until it goes on.
type stoppedDeletion struct {
	system.Jobs
	meanwhile func()
}

func (s *stoppedDeletion) Start(ctx context.Context, o job.Order, on system.Disks, done func(error)) {
	if o.Action.Op.Deletes() {
		s.meanwhile()
	}
	s.Jobs.Start(ctx, o, on, done)
}

// Two nodes have one folder. One node has decided to delete its copy there, because the image is not declared any more, and
// is stopped. The image is declared again, and the other node need not keep a second copy: it must not count on the folder.
func TestStoppedDeletionOfAnOrphan(t *testing.T) {
	need.Root(t, "mount a folder at another path")
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(3, 512)))
	one, shared, other := newDisk(t), newDisk(t), newDisk(t)
	image := func(copies int) string {
		return fmt.Sprintf("\nimages: {parrot: {uuid: \"00000001\", minNumberOfCopies: %d, source: {download: {url: %q}}}}", copies, url)
	}
	newNode := func() *Reconciler {
		r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
		t.Cleanup(func() { must(t, r.Close()) })
		return r
	}
	a, b := newNode(), newNode()
	_, _, err := a.Converge(t.Context(), plantest.Load(t, testSettings+image(1), one))
	must(t, err)
	target := filepath.Join(shared, "backing-images")
	must(t, os.Mkdir(target, 0o755))
	must(t, unix.Mount(filepath.Join(one, "backing-images"), target, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
	_, _, err = b.Converge(t.Context(), plantest.Load(t, testSettings+image(2), shared, other))
	must(t, err)
	if files := parrotsOn(t, one, other); len(files) != 2 {
		t.Fatalf("the files are %q", files)
	}
	a.system.Jobs = &stoppedDeletion{a.system.Jobs, func() {
		d := plantest.Load(t, testSettings+image(1), shared, other)
		for name, disk := range d.Config.Nodes[d.Node].Disks {
			disk.EvictionRequested = disk.Path == other
			d.Config.Nodes[d.Node].Disks[name] = disk
		}
		_, _, err := b.Converge(t.Context(), d)
		must(t, err)
	}}
	_, _, err = a.Converge(t.Context(), plantest.Load(t, testSettings, one))
	must(t, err)
	if len(parrotsOn(t, one, other)) == 0 {
		t.Error("the last bytes of a declared image were deleted")
	}
}

// parrotsOn returns the files of the image parrot on disks.
func parrotsOn(t *testing.T, disks ...string) (files []string) {
	t.Helper()
	for _, path := range disks {
		found, err := filepath.Glob(filepath.Join(path, "backing-images", "parrot-00000001", "backing"))
		must(t, err)
		files = append(files, found...)
	}
	return files
}
