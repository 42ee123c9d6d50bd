package reconcile

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// A disk is declared twice, by its path and by a link. Both must be rejected, or its copies would
// count twice. Its lock is not reported as that of another process.
func TestObserveRejectsADiskAtTwoPaths(t *testing.T) {
	dir, link := newDisk(t), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	r := New(fetch.Client{}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	d := plantest.Load(t, `images: {}`, dir, link)
	for range 2 { // the second time the disk is open already
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

// A process has a copy open whose disk is evicted. A job that reads the copy has it open too.
// Meanwhile it cannot be determined whether the process still has it open: the copy must stay in
// use. Otherwise the job would be stopped for an eviction, which would be postponed as soon as the
// job ended.
func TestCopyStaysInUseWhileAJobReadsIt(t *testing.T) {
	image := filepath.Join(t.TempDir(), "parrot.raw")
	must(t, os.WriteFile(image, randomImage(1<<20), 0o600))
	config := strings.NewReplacer("IMAGE", image, "DISK1", newDisk(t), "DISK2", newDisk(t)).Replace(`
nodes: {node1: {disks: {disk1: {path: "DISK1"}, disk2: {path: "DISK2"}}}}
images: {parrot: {minNumberOfCopies: 2, source: {download: {url: "file://IMAGE"}}}}
`)
	r := New(fetch.Client{AllowAnyFile: true}, nil, slog.New(slog.DiscardHandler), false)
	defer r.Close()
	d := plantest.Load(t, config)
	_, _, err := r.Converge(t.Context(), d)
	must(t, err)
	key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: d.Config.Images["parrot"].ID}
	evicted := plantest.Load(t, strings.Replace(strings.Replace(config, "disk1: {", "disk1: {evictionRequested: true, ", 1), "Copies: 2", "Copies: 1", 1))
	f, err := os.Open(filepath.Join(d.Config.Nodes["node1"].Disks["disk1"].Path, "backing-images", key.ID.String(), "backing"))
	must(t, err)
	for range 2 {
		_, _, err := r.Converge(t.Context(), evicted)
		must(t, err)
	}
	expectDeletion := func(when string, want bool) {
		t.Helper()
		o := r.Observe(evicted)
		got := false
		for _, a := range plan.NewRound(evicted, o).Plan().Actions {
			got = got || a.Op.Deletes() && a.CopyRef() == key
		}
		if got != want {
			t.Errorf("%s: a deletion is planned: %v; in use: %q", when, got, o.Disks[key.Disk].Copies[key.ID].UsedBy)
		}
	}
	other := ident.DiskRef{Node: "node1", Disk: "disk2"}
	must(t, r.disks.open[other].handle.Update(key.ID, func(r *disk.Record) { r.ReadBackAt = time.Now() }))
	expectDeletion("a process has the copy open", false)
	r.jobs.running[key] = &activeJob{order: job.Order{Action: plan.NewAction(model.Verify, key, model.Reason{}, 0)}, stop: func() {}}
	expectDeletion("a job verifies it, too", false)
	delete(r.jobs.running, key)
	expectDeletion("the job has ended", false)
	must(t, f.Close())
	r.jobs.running[key] = &activeJob{order: job.Order{Action: plan.NewAction(model.Evict, key, model.Reason{}, 0)}, stop: func() {}, deletion: &deletion{}}
	expectDeletion("the process has closed it, and it is withdrawn", true)
	f, err = os.Open(f.Name())
	must(t, err)
	expectDeletion("it is withdrawn, and open again", false)
	must(t, f.Close())
	delete(r.jobs.running, key)
	_, _, err = r.Converge(t.Context(), evicted)
	must(t, err)
	if o := r.Observe(evicted); o.HasCopy(key) {
		t.Errorf("the copy is not open, and was not evicted: %+v", plan.NewRound(evicted, o).Plan().Actions)
	}
}
