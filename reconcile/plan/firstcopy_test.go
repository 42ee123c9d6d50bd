package plan_test

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A file of the image lies on a node that answers and that has yet to verify it (touched, or Longhorn's). Another node
// fetches anew meanwhile, other bytes perhaps: adoption comes before preparation.
func TestNoFirstCopyBesideAnUnverifiedFile(t *testing.T) {
	for _, running := range []bool{false, true} {
		for _, ranked := range []bool{true, false} {
			c, image, refs := plantest.TwoNodes(2)
			image.Checksum = disk.Digest{}
			if !ranked {
				n := c.Nodes[refs[1].Node]
				n.EvictionRequested = true
				c.Nodes[refs[1].Node] = n
			}
			c.Images["parrot"] = image
			o := plantest.EmptyDisks(c)
			one := plantest.ReadyCopy(image, plantest.Digest(disk.SHA512, "b"))
			one.State, one.Message = disk.Unknown, "changed since it was verified: ctime"
			o.Disks[refs[1]].Copies[image.ID] = one
			if running {
				o.Running[plan.CopyRef{Disk: refs[1], ID: image.ID}] = true
			}
			d, o := plantest.AsNode(refs[0].Node, c, o)
			for _, a := range d.Plan(o).Actions {
				if a.Op == plan.Download {
					t.Errorf("ranked %v, under way %v: %s %s: %s", ranked, running, a.Op, a.CopyRef(), a.Reason)
				}
			}
		}
	}
}

// Another process of this node looks after its other disk, and may have the image there.
func TestNoFirstCopyBesideAnotherManagerOfTheNode(t *testing.T) {
	for _, name := range []string{"a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8"} {
		c := plantest.NewConfig(2, 2)
		image := plantest.NewImage(name)
		image.Checksum = disk.Digest{}
		c.Images[name] = image
		c.Settings.RecoveryWaitInterval = 300e9
		o := plantest.EmptyDisks(c)
		d, o := plantest.AsNode("node1", c, o)
		d.OnlyDisks = map[string]bool{"disk2": true}
		delete(o.Disks, schema.DiskRef{Node: "node1", Disk: "disk1"})
		for _, a := range d.Plan(o).Actions {
			if a.Op == plan.Download {
				t.Errorf("%s: %s: %s", name, a.CopyRef(), a.Reason)
			}
		}
	}
}

// A disk is not mounted yet when its manager starts (or drops out for a moment). Its copy bore
// the digest a second ago; without a declared checksum another one is established at once.
func TestNoFirstCopyWhileADiskIsMissing(t *testing.T) {
	c, image, refs := plantest.TwoNodes(1)
	image.Checksum = disk.Digest{}
	c.Images["parrot"] = image
	o := plantest.EmptyDisks(c)
	o.Disks[refs[0]] = plan.Disk{Problem: "no disk here"}
	d, o := plantest.AsNode(refs[1].Node, c, o)
	for _, a := range d.Plan(o).Actions {
		if a.Op == plan.Download {
			t.Errorf("fetched anew at once: %s: %s", a.CopyRef(), a.Reason)
		}
	}
}
