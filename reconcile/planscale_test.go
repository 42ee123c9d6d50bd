package reconcile

import (
	"fmt"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// fleet is a cluster of 250 nodes with 4 disks each, and images of three copies of
// which two are ready where they should be: node1 has work where it is the third.
func fleet(images int) (Desired, Observed) {
	c := grid(250, 4)
	o := Observed{Now: goldenNow, Disks: map[schema.DiskRef]Disk{}, Peers: map[string]Peer{}, Tries: map[Key]Try{}}
	for node := range c.Nodes {
		if node != "node1" {
			o.Peers[node] = Peer{Asked: true, Config: "d1"}
		}
		for name := range c.Nodes[node].Disks {
			o.Disks[schema.DiskRef{Node: node, Disk: name}] = Disk{Space: disk.Space{Free: 1 << 50}, Copies: map[disk.ID]Copy{}}
		}
	}
	for i := range images {
		image := named(fmt.Sprintf("image%d", i))
		image.Checksum, image.Copies = digestOf(disk.SHA512, image.ID.Name), 3
		c.Images[image.ID.Name] = image
		places := ranked(c, image)
		for rank := range 2 {
			o.Disks[places.at(rank)].Copies[image.ID] = Copy{Copy: disk.Copy{
				ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, Size: 1 << 30, RealSize: 1 << 30,
				SHA512: image.Checksum, ManifestDigest: image.Checksum,
			}}
		}
	}
	return Desired{Node: "node1", Config: c, May: schema.Everything, Digest: "d1"}, o
}

// BenchmarkPlanFleet is what one node of 250 needs to plan for itself.
func BenchmarkPlanFleet(b *testing.B) {
	for _, images := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("%d-images-1000-disks", images), func(b *testing.B) {
			d, o := fleet(images)
			b.ReportAllocs()
			for b.Loop() {
				d.Plan(o)
			}
		})
		b.Run(fmt.Sprintf("%d-images-1000-disks-again", images), func(b *testing.B) {
			d, o := fleet(images)
			d.ranks = newRanks(d.Config.Nodes, mostKept)
			d.Plan(o)
			b.ReportAllocs()
			for b.Loop() {
				d.Plan(o)
			}
		})
	}
}
