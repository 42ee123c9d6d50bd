package plan_test

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// An image without a checksum has a copy on a node that has been unreachable for a day and
// sorts first, and a copy with another digest on a node that responds. A sync must take the
// digest of the copy that it can read.
func TestSyncIgnoresTheDigestOfAnUnreachableNode(t *testing.T) {
	c := plantest.NewConfig(3, 1)
	image := plantest.NewImage("parrot")
	image.Checksum, image.Copies = ident.Digest{}, 3
	c.Images["parrot"] = image
	c.Settings.RecoveryWaitInterval = 5 * time.Minute
	c.Settings.ConcurrentReplenishPerNodeLimit = 5
	o := plantest.EmptyDisks(c)
	unreachable, readable := plantest.Digest(ident.SHA512, "b"), plantest.Digest(ident.SHA512, "c")
	o.Disks[ident.DiskRef{Node: "node1", Disk: "disk1"}].Copies[image.ID] = plantest.ReadyCopy(image, unreachable)
	o.Disks[ident.DiskRef{Node: "node2", Disk: "disk1"}].Copies[image.ID] = plantest.ReadyCopy(image, readable)
	o.Peers["node1"] = model.Peer{Queried: true, Problem: "connection refused", UnreachableSince: o.Now.Add(-24 * time.Hour)}
	d, o := plantest.AsNode("node3", c, o)
	syncs := 0
	for _, a := range plan.NewRound(d, o).Plan().Actions {
		if a.Op != model.Sync {
			continue
		}
		syncs++
		if got := d.DigestOf(o, a); got != readable {
			t.Errorf("the sync from %s wants digest %s, want %s", a.From, got.Short(), readable.Short())
		}
	}
	if syncs != 1 {
		t.Errorf("%d syncs are planned, want 1", syncs)
	}
}

// One repair failed because its peer was unreachable for a minute. The peer responds again,
// and the disk has no space for a second file: the copy must be repaired in place.
func TestFailedRepairIsRetried(t *testing.T) {
	c, image, refs := plantest.TwoNodes(2)
	o := plantest.EmptyDisks(c)
	ready := plantest.ReadyCopy(image, image.Checksum)
	ready.RealSize = 1 << 30
	o.Disks[refs[0]].Copies[image.ID] = ready
	failed := ready
	failed.State, failed.Message = model.Failed, "damaged"
	full := o.Disks[refs[1]]
	full.Copies[image.ID] = failed
	full.Space.Free = 1 << 20
	o.Disks[refs[1]] = full
	o.Failures[ident.CopyRef{Disk: refs[1], ID: image.ID}] = model.Failure{
		Op: model.Repair, Attempts: 1, Unrepairable: true, Fault: model.FaultNetwork, Message: "no source for 30s",
		Since: plantest.Now.Add(-time.Hour), RetryAt: plantest.Now.Add(-time.Minute),
	}
	d, o := plantest.AsNode(refs[1].Node, c, o)
	plantest.ExpectAction(t, plan.NewRound(d, o).Plan())
}
