package reconcile

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// The bytes that a failed copy had are in another image on its node, but by now the image
// has others: it is not to have both.
func TestFailedCopyIsNotRepairedBesideOthers(t *testing.T) {
	theirs, ours := plantest.Digest(disk.SHA512, "a"), plantest.Digest(disk.SHA512, "b")
	c, image, refs := plantest.TwoNodes(2)
	image.Checksum = disk.Digest{}
	twin := plantest.NewImage("twin")
	twin.Checksum, twin.Disks = ours, []schema.DiskRef{refs[1]}
	c.Images["parrot"], c.Images["twin"] = image, twin
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]].Copies[image.ID] = plantest.ReadyCopy(image, theirs)
	o.Disks[refs[1]].Copies[image.ID] = plantest.FailedCopy(image, ours)
	o.Disks[refs[1]].Copies[twin.ID] = plantest.ReadyCopy(twin, ours)
	d, o := plantest.AsNode(refs[1].Node, c, o)
	for _, a := range d.Plan(o).Actions {
		if a.Image == "parrot" && (a.Op != plan.Sync || d.DigestOf(o, a) != theirs) {
			t.Errorf("%s (%s) from %s", a.Op, a.Reason, a.From)
		}
	}
	repair := plan.NewAction(plan.Repair, plan.CopyRef{Disk: refs[1], ID: image.ID}, "", 0)
	repair.SourceDigest = ours
	if on, now := goesOn(d, o, repair, image); on {
		t.Errorf("the repair goes on beside %+v", now.Actions)
	}
}
