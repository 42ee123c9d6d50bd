package plan_test

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// One repair failed because the peer was away for a minute. The peer is back; the disk has no room
// for a second file. The copy is never repaired again.
func TestFailedRepairIsRetried(t *testing.T) {
	c, image, refs := plantest.TwoNodes(2)
	o := plantest.EmptyDisks(c)
	there := plantest.ReadyCopy(image, image.Checksum)
	there.RealSize = 1 << 30
	o.Disks[refs[0]].Copies[image.ID] = there
	failed := there
	failed.State, failed.Message = disk.Failed, "damaged"
	key := plan.CopyRef{Disk: refs[1], ID: image.ID}
	own := o.Disks[refs[1]]
	own.Copies[image.ID] = failed
	own.Space.Free = 1 << 20
	o.Disks[refs[1]] = own
	o.Failures[key] = plan.Failure{Op: plan.Repair, Attempts: 1, Unrepairable: true, Link: true, Message: "no source for 30s", Since: plantest.Now.Add(-time.Hour), RetryAt: plantest.Now.Add(-time.Minute)}
	d, o := plantest.AsNode(refs[1].Node, c, o)
	plantest.ExpectAction(t, d.Plan(o))
}
