package plan_test

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A part of an upload has got to a disk that takes none: its client cannot go on there, and
// nobody else waits for that.
func TestUploadIgnoresAPartialFileOnARejectedDisk(t *testing.T) {
	c, image := plantest.NewConfig(1, 2), plantest.NewImage("parrot")
	ranked, wants := schema.DiskRef{Node: "node1", Disk: "disk1"}, schema.DiskRef{Node: "node1", Disk: "disk2"}
	disks := c.Nodes["node1"].Disks
	one := disks[ranked.Disk]
	one.Tags = []string{"ssd"}
	disks[ranked.Disk] = one
	image.Source, image.DiskSelector, image.Disks = schema.Source{Upload: &schema.Upload{}}, []string{"ssd"}, []schema.DiskRef{wants}
	c.Images["parrot"] = image
	d, o := plantest.AsNode("node1", c, plantest.EmptyDisks(c))
	part := plan.Copy{Copy: disk.Copy{ID: image.ID, State: disk.Pending, Owned: true, PartBytes: 1 << 20, PartTotal: 1 << 30, PartSourceID: disk.PartFromUpload}}
	o.Disks[wants].Copies[image.ID] = part
	if to, err := d.UploadTo(o, image, disk.Digest{}); err != nil || to.Disk != ranked {
		t.Errorf("an upload goes to %s, error %v", to, err)
	}
	delete(o.Disks[wants].Copies, image.ID)
	o.Disks[ranked].Copies[image.ID] = part
	if _, err := d.UploadTo(o, image, disk.Digest{}); err == nil {
		t.Error("another upload takes the place of one that may go on")
	}
}
