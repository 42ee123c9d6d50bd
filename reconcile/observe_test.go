package reconcile

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestObserveRejectsADiskAtTwoPaths has a disk that can be reached by two ways. It would
// be counted twice; and it is nobody else who holds it.
func TestObserveRejectsADiskAtTwoPaths(t *testing.T) {
	dir, link := newDisk(t), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	d := plantest.Load(t, `images: {}`, dir, link)
	for range 2 { // it stays so
		for ref, seen := range r.Observe(d).Disks {
			if !strings.Contains(seen.Problem, "same diskUUID") {
				t.Errorf("%s has the problem %q", ref, seen.Problem)
			}
		}
		if err := r.LockedElsewhere(); err != nil {
			t.Error(err)
		}
	}
}

// A process has a copy open that is to be evicted. While work reads the copy, which has it
// open too, nobody can tell whether the process still does: it counts as if. Else the work
// would be stopped for an eviction, which would be put off as soon as it has ended.
func TestCopyStaysInUseWhileAJobReadsIt(t *testing.T) {
	image := filepath.Join(t.TempDir(), "parrot.raw")
	must(t, os.WriteFile(image, randomImage(1<<20), 0o600))
	config := strings.NewReplacer("IMAGE", image, "DISK1", newDisk(t), "DISK2", newDisk(t)).Replace(`
nodes: {node1: {disks: {disk1: {path: "DISK1"}, disk2: {path: "DISK2"}}}}
images: {parrot: {minNumberOfCopies: 2, source: {download: {url: "file://IMAGE"}}}}
`)
	r := New(fetch.Client{AllowAnyFile: true}, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	d := plantest.Load(t, config)
	_, _, err := r.Converge(t.Context(), d)
	must(t, err)
	key := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: d.Config.Images["parrot"].ID}
	evicted := plantest.Load(t, strings.Replace(strings.Replace(config, "disk1: {", "disk1: {evictionRequested: true, ", 1), "Copies: 2", "Copies: 1", 1))
	f, err := os.Open(filepath.Join(d.Config.Nodes["node1"].Disks["disk1"].Path, "backing-images", key.ID.String(), "backing"))
	must(t, err)
	for range 2 {
		_, _, err := r.Converge(t.Context(), evicted)
		must(t, err)
	}
	drops := func(what string, want bool) {
		t.Helper()
		o := r.Observe(evicted)
		got := false
		for _, a := range evicted.Plan(o).Actions {
			got = got || a.Op.Deletes() && a.CopyRef() == key
		}
		if got != want {
			t.Errorf("%s: the copy is to go: %v; it is used: %q", what, got, o.Disks[key.Disk].Copies[key.ID].UsedBy)
		}
	}
	drops("a process has it open", false)
	r.running[key] = &activeJob{task: Task{Action: plan.NewAction(plan.Verify, key, plan.Reason{}, 0)}, stop: func() {}}
	drops("and it is verified", false)
	delete(r.running, key)
	drops("and it was verified", false)
	must(t, f.Close())
	r.running[key] = &activeJob{task: Task{Action: plan.NewAction(plan.Evict, key, plan.Reason{}, 0)}, stop: func() {}, deletion: &deletion{}}
	drops("it is closed, and withdrawn", true)
	f, err = os.Open(f.Name())
	must(t, err)
	drops("it is withdrawn, and opened again", false)
	must(t, f.Close())
	delete(r.running, key)
	_, _, err = r.Converge(t.Context(), evicted)
	must(t, err)
	if o := r.Observe(evicted); o.HasCopy(key) {
		t.Errorf("nothing has it open, and it is there: %+v", evicted.Plan(o).Actions)
	}
}
