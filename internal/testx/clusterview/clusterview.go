// Package clusterview creates the views of a manager in small and large clusters, for tests of
// status, metrics and reports.
package clusterview

import (
	"fmt"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Now is the time of the views.
var Now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// newView returns the view of node01 in a cluster where each node has two disks and responds.
func newView(nodes int) status.View {
	v := status.View{Desired: plan.Desired{Node: "node01", Digest: "d1d1d1d1d1d1d1d1", Allowed: schema.Everything}}
	v.Config.Digest = v.Desired.Digest
	v.Desired.Config = schema.Config{
		Settings: schema.Settings{RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5},
		Nodes:    map[string]schema.Node{}, Images: map[string]schema.Image{},
	}
	v.Observed = plan.Observed{
		Now: Now, Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{},
		Failures: map[ident.CopyRef]model.Failure{}, Running: map[ident.CopyRef]bool{},
	}
	for n := range nodes {
		name := fmt.Sprintf("node%02d", n+1)
		node := schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{}}
		for _, one := range []string{"disk1", "disk2"} {
			path := "/mnt/" + one
			node.Disks[one] = schema.Disk{Path: path, AllowScheduling: true, StorageReserved: 10 << 30}
			v.Observed.Disks[ident.DiskRef{Node: name, Disk: one}] = model.Disk{
				Path: path, UUID: name + one, Space: model.Space{Total: 100 << 30, Free: 50 << 30}, Copies: map[ident.ID]model.Copy{},
			}
		}
		v.Desired.Config.Nodes[name] = node
		if n > 0 {
			v.Observed.Peers[name] = model.Peer{Queried: true, ConfigDigest: v.Desired.Digest, LastResponse: Now.Add(-3 * time.Second)}
		}
	}
	return v
}

func declare(v status.View, image schema.Image) schema.Image {
	image.ID.UUID = "0000000a"
	image.Source.Download = &schema.Download{URL: "https://example.com/" + image.ID.Name}
	v.Desired.Config.Images[image.ID.Name] = image
	return image
}

func put(v status.View, image schema.Image, on string, change func(*model.Copy)) {
	ref, err := ident.ParseDiskRef(on)
	if err != nil {
		panic(err)
	}
	sum, err := ident.ParseDigest(strings.Repeat("a", 128))
	if err != nil {
		panic(err)
	}
	c := model.Copy{ID: image.ID, State: model.Ready, Size: 1 << 30, RealSize: 1 << 30, Owned: true, HasCfg: true, SHA512: sum, ManifestDigest: sum}
	if change != nil {
		change(&c)
	}
	v.Observed.Disks[ref].Copies[image.ID] = c
}

// ThreeNodes returns a view with an unreachable node, a node with another configuration, and images
// in every state.
func ThreeNodes() status.View {
	v := newView(3)
	v.Observed.Peers["node02"] = model.Peer{Queried: true, ConfigDigest: "e2e2e2e2e2e2e2e2", LastResponse: Now.Add(-3 * time.Second)}
	v.Observed.Peers["node03"] = model.Peer{
		Queried: true, ConfigDigest: v.Desired.Digest, LastResponse: Now.Add(-12 * time.Second),
		UnreachableSince: Now.Add(-12 * time.Second), Problem: "dial tcp 10.0.0.3:8000: connection refused",
	}
	edge := v.Desired.Config.Nodes["node02"]
	edge.Tags = []string{"edge"}
	v.Desired.Config.Nodes["node02"] = edge
	delete(v.Observed.Disks, ident.DiskRef{Node: "node03", Disk: "disk2"})

	parrot := declare(v, schema.Image{ID: ident.ID{Name: "parrot"}, AllDisks: true})
	put(v, parrot, "node01/disk1", nil)
	put(v, parrot, "node01/disk2", func(c *model.Copy) { c.UsedBy = "used by replica vol-1" })
	put(v, parrot, "node02/disk1", nil)
	put(v, parrot, "node03/disk1", nil)
	put(v, parrot, "node02/disk2", func(c *model.Copy) {
		*c = model.Copy{ID: parrot.ID, State: model.Pending, PartBytes: 256 << 20, PartTotal: 1 << 30}
	})
	v.Observed.Running[ident.CopyRef{Disk: ident.DiskRef{Node: "node02", Disk: "disk2"}, ID: parrot.ID}] = true

	macaw := declare(v, schema.Image{ID: ident.ID{Name: "macaw"}, Copies: 3, NodeSelector: []string{"edge"}})
	put(v, macaw, "node02/disk1", nil)
	v.Observed.Failures[ident.CopyRef{Disk: ident.DiskRef{Node: "node02", Disk: "disk2"}, ID: macaw.ID}] = model.Failure{
		Op: model.Sync, Attempts: 2, Since: Now, RetryAt: Now.Add(time.Minute), Message: "input/output error",
	}
	old := schema.Image{ID: ident.ID{Name: "macaw", UUID: "00000001"}}
	put(v, old, "node02/disk1", func(c *model.Copy) { c.Leaving = true })
	return v
}

// HundredNodes returns a view of 100 nodes with images. Some nodes do not respond.
func HundredNodes() status.View {
	v := newView(100)
	parrot := declare(v, schema.Image{ID: ident.ID{Name: "parrot"}, AllDisks: true})
	lory := declare(v, schema.Image{ID: ident.ID{Name: "lory"}, Copies: 3, DiskSelector: []string{"ssd"}})
	put(v, lory, "node40/disk1", nil)
	put(v, lory, "node60/disk1", func(c *model.Copy) { // it is listed among the rejected disks
		*c = model.Copy{ID: lory.ID, State: model.Pending, Rejection: "not enough space"}
	})
	for n := range 100 {
		name := fmt.Sprintf("node%02d", n+1)
		for i, one := range []string{"disk1", "disk2"} {
			if n%9 != 8 {
				put(v, parrot, name+"/"+one, func(c *model.Copy) {
					if n%4 == 1 && i == 1 {
						*c = model.Copy{ID: parrot.ID, State: model.Pending, PartBytes: int64(n) << 20, PartTotal: 1 << 30}
						v.Observed.Running[ident.CopyRef{Disk: ident.DiskRef{Node: name, Disk: one}, ID: parrot.ID}] = true
					}
				})
			}
		}
		if n%7 == 6 {
			v.Observed.Peers[name] = model.Peer{Queried: true, Problem: "i/o timeout", UnreachableSince: Now.Add(-time.Minute), ConfigDigest: v.Desired.Digest, LastResponse: Now.Add(-time.Minute)}
		}
	}
	bad := ident.DiskRef{Node: "node50", Disk: "disk2"}
	v.Observed.Disks[bad] = model.Disk{Path: "/mnt/disk2", Problem: "no disk here: /mnt/disk2 is not mounted", ProblemSince: Now.Add(-time.Hour)}
	return v
}
