package plantest

import (
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// LargeNodeStates are states of one node with two disks and a given number of images. Each state
// exercises a different expensive path of the planner.
var LargeNodeStates = map[string]func(images int) (plan.Desired, plan.Observed){
	"ready": func(n int) (plan.Desired, plan.Observed) { return largeNode(n, model.Ready, true) },
	// No image has a copy, so the planner searches for each digest among the other images.
	"missing": func(n int) (plan.Desired, plan.Observed) { return largeNode(n, model.Pending, true) },
	// No image is declared any more.
	"orphans": func(n int) (plan.Desired, plan.Observed) { return largeNode(n, model.Ready, false) },
}

// largeNode returns the state of a node with a copy of each image on both disks.
func largeNode(images int, state model.State, declared bool) (plan.Desired, plan.Observed) {
	c := NewConfig(1, 2)
	c.Settings.CleanupWaitInterval = time.Hour
	c.Settings.PruneLimit = schema.PrunePercent(50)
	o := plan.Observed{Now: Now, Disks: map[ident.DiskRef]model.Disk{}, Failures: map[ident.CopyRef]model.Failure{}}
	refs := []ident.DiskRef{{Node: "node1", Disk: "disk1"}, {Node: "node1", Disk: "disk2"}}
	for _, ref := range refs {
		o.Disks[ref] = model.Disk{Space: model.Space{Free: 1 << 50}, Copies: map[ident.ID]model.Copy{}}
	}
	for i := range images {
		name := fmt.Sprintf("image%d", i)
		image := NewImage(name)
		image.Checksum = Digest(ident.SHA512, name)
		if declared {
			c.Images[name] = image
		}
		for _, ref := range refs {
			o.Disks[ref].Copies[image.ID] = model.Copy{ID: image.ID, State: state, Owned: true, HasCfg: true, Size: 1 << 30, RealSize: 1 << 30, SHA512: image.Checksum}
		}
	}
	return plan.Desired{Node: "node1", Config: c, Allowed: schema.Everything, Removed: plan.AlwaysConfirmed}, o
}

// LargeCluster returns the state of a cluster of 250 nodes with 4 disks each, as node1 observes it.
// Each image has two of its three copies, on the best two disks. node1 must add the third copy if it
// has the third-best disk.
func LargeCluster(images int) (plan.Desired, plan.Observed) {
	c := NewConfig(250, 4)
	o := plan.Observed{Now: Now, Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}, Failures: map[ident.CopyRef]model.Failure{}}
	for node := range c.Nodes {
		if node != "node1" {
			o.Peers[node] = model.Peer{Queried: true, ConfigDigest: "d1"}
		}
		for name := range c.Nodes[node].Disks {
			o.Disks[ident.DiskRef{Node: node, Disk: name}] = model.Disk{Space: model.Space{Free: 1 << 50}, Copies: map[ident.ID]model.Copy{}}
		}
	}
	for i := range images {
		image := NewImage(fmt.Sprintf("image%d", i))
		image.Checksum, image.Copies = Digest(ident.SHA512, image.ID.Name), 3
		c.Images[image.ID.Name] = image
		places := RankedDisks(c, image)
		for rank := range 2 {
			o.Disks[places[rank]].Copies[image.ID] = model.Copy{ID: image.ID, State: model.Ready, Owned: true, HasCfg: true, Size: 1 << 30, RealSize: 1 << 30,
				SHA512: image.Checksum, ManifestDigest: image.Checksum}
		}
	}
	return plan.Desired{Node: "node1", Config: c, Allowed: schema.Everything, Removed: plan.AlwaysConfirmed, Digest: "d1"}, o
}
