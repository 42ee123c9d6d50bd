package reconcile

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/once"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// unwritable is a node with one ready copy whose record cannot be written after obstruct.
type unwritable struct {
	*Reconciler
	t                 *testing.T
	id                ident.ID
	obstacle          string       // a folder at this path prevents the write of the record
	declared, removed plan.Desired // with and without the image
}

func newUnwritable(t *testing.T) *unwritable {
	t.Helper()
	time.Sleep(time.Until(plantest.Now)) // the clock of synctest starts in 2000, before any valid record
	dir, image := newDisk(t), filepath.Join(t.TempDir(), "parrot.raw")
	if err := os.WriteFile(image, randomImage(1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	u := &unwritable{
		Reconciler: New(fetch.Client{AllowAnyFile: true}, nil, slog.New(slog.DiscardHandler), false), t: t,
		declared: plantest.Load(t, `images: {parrot: {source: {download: {url: "file://`+image+`"}}}}`, dir),
		removed:  plantest.Load(t, `images: {}`, dir),
	}
	u.id = u.declared.Config.Images["parrot"].ID
	u.obstacle = filepath.Join(dir, "backing-images", u.id.String(), "backing.record.tmp")
	u.converge(u.declared)
	return u
}

// converge converges the node, and returns the copy if it still exists.
func (u *unwritable) converge(d plan.Desired) (c model.Copy, exists bool) {
	u.t.Helper()
	o, _, err := u.Converge(u.t.Context(), d)
	if err != nil {
		u.t.Fatal(err)
	}
	for _, seen := range o.Disks {
		c, exists = seen.Copies[u.id]
	}
	return c, exists
}

func (u *unwritable) obstruct() {
	u.t.Helper()
	if err := os.Mkdir(u.obstacle, 0o755); err != nil {
		u.t.Fatal(err)
	}
}

// An image is removed, declared and removed again. The record cannot be written meanwhile and has
// the time of the first removal. The clean-up interval must begin with the second one.
func TestCleanupIntervalRestartsDespiteAStaleRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnwritable(t)
		defer u.Close()
		u.converge(u.removed)
		u.obstruct()
		time.Sleep(30 * time.Minute)
		u.converge(u.declared)
		if err := os.Remove(u.obstacle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if c, exists := u.converge(u.removed); !exists || time.Since(c.SurplusSince) > time.Minute {
			t.Errorf("the copy exists: %v, surplus since %v at %v", exists, c.SurplusSince, time.Now())
		}
	})
}

// On a full disk no record can be written. The clean-up must still happen after its interval, because
// only that makes space.
func TestCleanupWithoutAWritableRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnwritable(t)
		defer u.Close()
		u.obstruct()
		if _, exists := u.converge(u.removed); !exists {
			t.Fatal("the copy was deleted before the interval was over")
		}
		time.Sleep(2 * time.Hour)
		if c, exists := u.converge(u.removed); exists {
			t.Errorf("the copy still exists, surplus since %v at %v", c.SurplusSince, time.Now())
		}
	})
}

// The record on a disk could not be written, and the disk is replaced by another one with a copy of
// the same image. The pending usage must not apply to that copy.
func TestPendingUsageDoesNotApplyToAnotherDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnwritable(t)
		defer u.Close()
		u.obstruct()
		u.converge(u.removed)
		time.Sleep(2 * time.Hour)
		u.exchange()
		if c, exists := u.converge(u.removed); !exists || time.Since(c.SurplusSince) > time.Minute {
			t.Errorf("the copy exists: %v, surplus since %v at %v", exists, c.SurplusSince, time.Now())
		}
	})
}

// exchange gives the disk another identity, as if it were replaced.
func (u *unwritable) exchange() {
	u.t.Helper()
	must(u.t, os.Remove(u.obstacle))
	name := filepath.Join(u.obstacle, "../../../longhorn-disk.cfg")
	must(u.t, os.Remove(name))
	must(u.t, os.WriteFile(name, []byte(`{"diskUUID":"0a0a0a0a-0000-4000-8000-000000000000"}`), 0o600))
}

// A disk with a failure is replaced by another one. The failure must not apply to that disk.
func TestFailureDoesNotApplyToAnotherDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnwritable(t)
		defer u.Close()
		key := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: u.id}
		o := u.Observe(u.declared)
		for ref := range o.Disks {
			key.Disk = ref
		}
		a := plan.NewAction(model.Sync, key, model.Reason{}, 0)
		run := newRun(a, u.declared.Config.Images["parrot"])
		u.jobs.add(run)
		u.endJob(report{run: run, err: syscall.EIO})
		if o := u.Observe(u.declared); o.Failures[key].Fault != model.FaultDisk {
			t.Fatalf("the failures are %+v, want one of the disk", o.Failures)
		}
		u.obstruct()
		u.exchange()
		if o := u.Observe(u.declared); len(o.Failures) > 0 {
			t.Errorf("the new disk has the failures %+v", o.Failures)
		}
	})
}

// The use of a copy cannot be recorded for many rounds: only the first failure and the end are logged.
func TestFailedRecordOfUseIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUnwritable(t)
		defer u.Close()
		var logged bytes.Buffer
		u.health = once.New(slog.New(slog.NewTextHandler(&logged, nil)))
		u.obstruct()
		for range 20 {
			time.Sleep(10 * time.Second)
			u.converge(u.removed)
		}
		if err := os.Remove(u.obstacle); err != nil {
			t.Fatal(err)
		}
		u.converge(u.removed)
		for text, want := range map[string]int{"cannot record the use of": 1, "can be recorded again": 1} {
			if got := strings.Count(logged.String(), text); got != want {
				t.Errorf("%q is logged %d times, want %d:\n%s", text, got, want, logged.String())
			}
		}
	})
}
