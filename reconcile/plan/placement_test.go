package plan_test

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Both have failed for long, the better ranked one for good: the other one is never
// tried again, although its next attempt was due an hour ago.
func TestFailingDiskWithDueRetryActs(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	o.Failures[plan.CopyRef{Disk: refs[0], ID: image.ID}] = plan.Failure{Op: plan.Download, Attempts: 30, Message: "no route", Link: true, Since: plantest.Now.Add(-3 * time.Hour), RetryAt: plantest.Now.Add(4 * time.Minute)}
	o.Failures[plan.CopyRef{Disk: refs[1], ID: image.ID}] = plan.Failure{Op: plan.Download, Attempts: 5, Message: "refused", Link: true, Since: plantest.Now.Add(-2 * time.Hour), RetryAt: plantest.Now.Add(-time.Hour)}
	d, o := plantest.AsNode(refs[1].Node, c, o)
	plantest.ExpectAction(t, d.Plan(o))
}

// Whoever had no way to the source for long gets its copy from the one who had, as it
// would have without that: only the first copy moves on.
func TestFailoverMovesOnlyTheFirstCopy(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	o := plantest.EmptyDisks(c)
	o.Failures[plan.CopyRef{Disk: refs[0], ID: image.ID}] = plan.Failure{Op: plan.Download, Attempts: 30, Message: "no route", Link: true, Since: plantest.Now.Add(-3 * time.Hour), RetryAt: plantest.Now.Add(time.Minute)}
	wants := func(want schema.DiskRef) {
		t.Helper()
		if got := (plan.Desired{Config: c}).NewIndex(o).NewImagePlanner(image).Placement.Targets; len(got) != 1 || got[0] != want {
			t.Errorf("it is wanted on %v, not on %v", got, want)
		}
	}
	wants(refs[1])
	o.Disks[refs[1]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: image.Checksum}}
	wants(refs[0])
}

// A disk that was too small for all that the source promised, holes and all, takes the data
// once another one has it.
func TestSyncNeedsLessSpaceThanTheSource(t *testing.T) {
	c, image, refs := plantest.TwoNodes(2)
	o := plantest.EmptyDisks(c)
	small := o.Disks[refs[0]]
	small.Space.Free = 5 << 30
	o.Disks[refs[0]] = small
	refused := func(try plan.Op) string {
		o.Failures[plan.CopyRef{Disk: refs[0], ID: image.ID}] = plan.Failure{Op: try, Attempts: 1, Disk: true, NeedsSpace: 10 << 30, Since: plantest.Now, RetryAt: plantest.Now}
		return (plan.Desired{Node: refs[0].Node, Config: c, Digest: "d", Allowed: schema.Everything}).NewIndex(o).NewImagePlanner(image).Placement.Rejected[refs[0]].Reason
	}
	const why = "not enough space: 5.0 GiB are free and 0 B reserved, 10 GiB are needed"
	if got := refused(plan.Download); got != why {
		t.Errorf("before the first copy it is refused for %q", got)
	}
	o.Disks[refs[1]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, SHA512: image.Checksum, RealSize: 1 << 30}}
	if got := refused(plan.Download); got != "" {
		t.Errorf("beside a copy with 1 GiB of data it is refused for %q", got)
	}
	if got := refused(plan.Sync); got != why {
		t.Errorf("what the data itself found no room for is refused for %q", got)
	}
}

// A node that answers and has the same configuration does not tell of its best ranked
// disk (its daemon was started with --disk for the other one).
func TestDiskWithoutAManagerIsPassedOver(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	_ = image
	o1, o2 := plantest.EmptyDisks(c), plantest.EmptyDisks(c)
	d1, o1 := plantest.AsNode(refs[0].Node, c, o1)
	d2, o2 := plantest.AsNode(refs[1].Node, c, o2)
	d1.OnlyDisks = map[string]bool{"other": true}
	delete(o1.Disks, refs[0])
	delete(o2.Disks, refs[0])
	plantest.ExpectAction(t, d1.Plan(o1), d2.Plan(o2))
}
