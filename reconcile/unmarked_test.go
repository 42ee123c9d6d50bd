package reconcile

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/job"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// unmarkable is a ready copy whose record cannot be written, on a node of its own.
type unmarkable struct {
	*Reconciler
	t                 *testing.T
	id                disk.ID
	obstacle          string
	declared, without plan.Desired
}

func newUnmarkable(t *testing.T) *unmarkable {
	t.Helper()
	time.Sleep(time.Until(plantest.Now)) // the clock of synctest begins before the program existed
	dir, image := newDisk(t), filepath.Join(t.TempDir(), "parrot.raw")
	if err := os.WriteFile(image, randomImage(1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	u := &unmarkable{
		Reconciler: New(fetch.Client{AllowAnyFile: true}, slog.New(slog.DiscardHandler), false), t: t,
		declared: plantest.Load(t, `images: {parrot: {source: {download: {url: "file://`+image+`"}}}}`, dir),
		without:  plantest.Load(t, `images: {}`, dir),
	}
	u.id = u.declared.Config.Images["parrot"].ID
	u.obstacle = filepath.Join(dir, "backing-images", u.id.String(), "backing.record.tmp")
	u.converge(u.declared)
	return u
}

// converge returns the copy, if it is there then.
func (u *unmarkable) converge(d plan.Desired) (c plan.Copy, there bool) {
	u.t.Helper()
	o, _, err := u.Converge(u.t.Context(), d)
	if err != nil {
		u.t.Fatal(err)
	}
	for _, seen := range o.Disks {
		c, there = seen.Copies[u.id]
	}
	return c, there
}

func (u *unmarkable) obstruct() {
	u.t.Helper()
	if err := os.Mkdir(u.obstacle, 0o755); err != nil {
		u.t.Fatal(err)
	}
}

// TestIntervalBeginsAgainThoughItCannotBeWritten declares an image again and takes it
// away again. What stands in its record is of the first time.
func TestIntervalBeginsAgainThoughItCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnmarkable(t)
		defer u.Close()
		u.converge(u.without)
		u.obstruct()
		time.Sleep(30 * time.Minute)
		u.converge(u.declared)
		if err := os.Remove(u.obstacle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if c, there := u.converge(u.without); !there || time.Since(c.SurplusSince) > time.Minute {
			t.Errorf("the copy is there: %v, unwanted since %v at %v", there, c.SurplusSince, time.Now())
		}
	})
}

// TestCleanupOfAFullDisk is where nothing can be written before something is deleted.
func TestCleanupOfAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnmarkable(t)
		defer u.Close()
		u.obstruct()
		if _, there := u.converge(u.without); !there {
			t.Fatal("the copy went before the interval was over")
		}
		time.Sleep(2 * time.Hour)
		if c, there := u.converge(u.without); there {
			t.Errorf("the copy is there, unwanted since %v at %v", c.SurplusSince, time.Now())
		}
	})
}

// TestMarksOfAnotherDisk puts a disk in the place of one that a mark could not be written to.
// It has a copy of the same image.
func TestMarksOfAnotherDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnmarkable(t)
		defer u.Close()
		u.obstruct()
		u.converge(u.without)
		time.Sleep(2 * time.Hour)
		u.exchange()
		if c, there := u.converge(u.without); !there || time.Since(c.SurplusSince) > time.Minute {
			t.Errorf("the copy is there: %v, unwanted since %v at %v", there, c.SurplusSince, time.Now())
		}
	})
}

// exchange makes the disk another one.
func (u *unmarkable) exchange() {
	u.t.Helper()
	must(u.t, os.Remove(u.obstacle))
	name := filepath.Join(u.obstacle, "../../../longhorn-disk.cfg")
	must(u.t, os.Remove(name))
	must(u.t, os.WriteFile(name, []byte(`{"diskUUID":"0a0a0a0a-0000-4000-8000-000000000000"}`), 0o600))
}

// TestFailuresOfAnotherDisk puts a disk in the place of one that had trouble.
func TestFailuresOfAnotherDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnmarkable(t)
		defer u.Close()
		key := plan.CopyRef{Disk: schema.DiskRef{Node: "node1", Disk: "disk1"}, ID: u.id}
		o := u.Observe(u.declared)
		for ref := range o.Disks {
			key.Disk = ref
		}
		a := plan.NewAction(plan.Sync, key, plan.Reason{}, 0)
		u.jobs.running[key] = &activeJob{task: Task{Action: a, Image: u.declared.Config.Images["parrot"]}, stop: func() {}}
		u.jobs.transfers.add(key, job.Transfer{Action: a, Progress: &fetch.Progress{}})
		u.endJob(jobEnd{key: key, err: syscall.EIO})
		if o := u.Observe(u.declared); o.Failures[key].Fault != plan.FaultDisk {
			t.Fatalf("nothing is remembered: %+v", o.Failures)
		}
		u.obstruct()
		u.exchange()
		if o := u.Observe(u.declared); len(o.Failures) > 0 {
			t.Errorf("remembered of another disk: %+v", o.Failures)
		}
	})
}
