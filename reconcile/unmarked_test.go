package reconcile

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Two nodes have the same two folders, on two file systems, and do not reach each other. On the first one no mark can be
// written. One node has decided to delete its copy there, and counts on its other copy. Before it goes on, the other node
// must not delete that one.
func TestStoppedDeletionWithoutMark(t *testing.T) {
	need.Root(t, "mount a file system")
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(3, 512)))
	full := t.TempDir()
	must(t, unix.Mount("tmpfs", full, "tmpfs", 0, "size=16m,nr_inodes=200"))
	t.Cleanup(func() { _ = unix.Unmount(full, unix.MNT_DETACH) })
	one, two := filepath.Join(full, "disk"), newDisk(t)
	must(t, os.Mkdir(one, 0o755))
	_, err := disk.Init(one)
	must(t, err)
	desired := func(a, b string, deleted string) plan.Desired {
		d := plantest.Load(t, testSettings+fmt.Sprintf("\nimages: {parrot: {uuid: \"00000001\", minNumberOfCopies: 2, source: {download: {url: %q}}}}", url), a, b)
		if deleted != "" {
			m := d.Config.Images["parrot"]
			m.DiskSelector, m.Copies = []string{"keep"}, 1
			d.Config.Images["parrot"] = m
			for name, disk := range d.Config.Nodes[d.Node].Disks {
				if disk.Path != deleted {
					disk.Tags = []string{"keep"}
				}
				d.Config.Nodes[d.Node].Disks[name] = disk
			}
		}
		return d
	}
	newNode := func() *Reconciler {
		r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
		t.Cleanup(func() { must(t, r.Close()) })
		return r
	}
	a, b := newNode(), newNode()
	_, _, err = a.Converge(t.Context(), desired(one, two, ""))
	must(t, err)
	bind := func(path string) string {
		at := newDisk(t)
		target := filepath.Join(at, "backing-images")
		must(t, os.Mkdir(target, 0o755))
		must(t, unix.Mount(filepath.Join(path, "backing-images"), target, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(target, unix.MNT_DETACH) })
		return at
	}
	alsoOne, alsoTwo := bind(one), bind(two)
	_, _, err = b.Converge(t.Context(), desired(alsoOne, alsoTwo, ""))
	must(t, err)
	if files := parrotsOn(t, one, two); len(files) != 2 {
		t.Fatalf("the files are %q", files)
	}
	for i := 0; os.WriteFile(filepath.Join(full, fmt.Sprint(i)), nil, 0o644) == nil; i++ {
	}
	stopped := false
	a.system.Jobs = &stoppedDeletion{a.system.Jobs, func() {
		stopped = true
		_, _, err := b.Converge(t.Context(), desired(alsoOne, alsoTwo, alsoTwo))
		must(t, err)
		upstream.ClearRequests()
	}}
	_, p, err := a.Converge(t.Context(), desired(one, two, one))
	must(t, err)
	if !stopped {
		t.Fatalf("nothing was deleted: %+v", p.Actions)
	}
	if requests := upstream.Requests(); len(requests) > 0 {
		t.Errorf("the last bytes were deleted, and then downloaded again: %+v", requests)
	}
}
