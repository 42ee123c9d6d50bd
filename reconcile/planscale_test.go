package reconcile

import (
	"fmt"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// fleet is a cluster of 250 nodes with 4 disks each, and images of three copies of
// which two are ready where they should be: node1 has work where it is the third.
func fleet(images int) (plan.Desired, plan.Observed) {
	c := grid(250, 4)
	o := plan.Observed{Now: goldenNow, Disks: map[schema.DiskRef]plan.Disk{}, Peers: map[string]plan.Peer{}, Failures: map[plan.CopyRef]plan.Failure{}}
	for node := range c.Nodes {
		if node != "node1" {
			o.Peers[node] = plan.Peer{Queried: true, ConfigDigest: "d1"}
		}
		for name := range c.Nodes[node].Disks {
			o.Disks[schema.DiskRef{Node: node, Disk: name}] = plan.Disk{Space: disk.Space{Free: 1 << 50}, Copies: map[disk.ID]plan.Copy{}}
		}
	}
	for i := range images {
		image := named(fmt.Sprintf("image%d", i))
		image.Checksum, image.Copies = digestOf(disk.SHA512, image.ID.Name), 3
		c.Images[image.ID.Name] = image
		places := ranked(c, image)
		for rank := range 2 {
			o.Disks[places[rank]].Copies[image.ID] = plan.Copy{Copy: disk.Copy{
				ID: image.ID, State: disk.Ready, Owned: true, HasCfg: true, Size: 1 << 30, RealSize: 1 << 30,
				SHA512: image.Checksum, ManifestDigest: image.Checksum,
			}}
		}
	}
	return plan.Desired{Node: "node1", Config: c, Allowed: schema.Everything, Digest: "d1"}, o
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
			d.RankCache = plan.NewRankCache(d.Config.Nodes, plan.MaxCachedRanks)
			d.Plan(o)
			b.ReportAllocs()
			for b.Loop() {
				d.Plan(o)
			}
		})
	}
}
