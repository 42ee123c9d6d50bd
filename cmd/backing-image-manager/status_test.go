package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var statusNow = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// cluster is a view of node01 of a cluster whose nodes have two disks each and answer.
func cluster(nodes int) reconcile.View {
	v := reconcile.View{Desired: reconcile.Desired{Node: "node01", Digest: "d1d1d1d1d1d1d1d1", May: schema.Everything}}
	v.Config.Digest = v.Desired.Digest
	v.Desired.Config = schema.Config{
		Settings: schema.Settings{RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5},
		Nodes:    map[string]schema.Node{}, Images: map[string]schema.Image{},
	}
	v.Observed = reconcile.Observed{
		Now: statusNow, Disks: map[schema.DiskRef]reconcile.Disk{}, Peers: map[string]reconcile.Peer{},
		Tries: map[reconcile.Key]reconcile.Try{}, Running: map[reconcile.Key]bool{},
	}
	for n := range nodes {
		name := fmt.Sprintf("node%02d", n+1)
		node := schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{}}
		for _, one := range []string{"disk1", "disk2"} {
			path := "/mnt/" + one
			node.Disks[one] = schema.Disk{Path: path, AllowScheduling: true, StorageReserved: 10 << 30}
			v.Observed.Disks[schema.DiskRef{Node: name, Disk: one}] = reconcile.Disk{
				Path: path, UUID: name + one, Space: disk.Space{Total: 100 << 30, Free: 50 << 30}, Copies: map[disk.ID]reconcile.Copy{},
			}
		}
		v.Desired.Config.Nodes[name] = node
		if n > 0 {
			v.Observed.Peers[name] = reconcile.Peer{Asked: true, Config: v.Desired.Digest, Last: statusNow.Add(-3 * time.Second)}
		}
	}
	return v
}

func declare(v reconcile.View, image schema.Image) schema.Image {
	image.ID.UUID = "0000000a"
	image.Source.Download = &schema.Download{URL: "https://example.com/" + image.ID.Name}
	v.Desired.Config.Images[image.ID.Name] = image
	return image
}

func put1(v reconcile.View, image schema.Image, on string, change func(*reconcile.Copy)) {
	node, name, _ := strings.Cut(on, "/")
	sum, err := disk.ParseDigest(strings.Repeat("a", 128))
	if err != nil {
		panic(err)
	}
	c := reconcile.Copy{Copy: disk.Copy{
		ID: image.ID, State: disk.Ready, Size: 1 << 30, RealSize: 1 << 30, Owned: true, HasCfg: true, SHA512: sum, ManifestDigest: sum,
	}}
	if change != nil {
		change(&c)
	}
	v.Observed.Disks[schema.DiskRef{Node: node, Disk: name}].Copies[image.ID] = c
}

// threeNodes has one node silent and one with another configuration, and images in
// every condition.
func threeNodes() reconcile.View {
	v := cluster(3)
	v.Observed.Peers["node02"] = reconcile.Peer{Asked: true, Config: "e2e2e2e2e2e2e2e2", Last: statusNow.Add(-3 * time.Second)}
	v.Observed.Peers["node03"] = reconcile.Peer{
		Asked: true, Config: v.Desired.Digest, Last: statusNow.Add(-12 * time.Second),
		Silent: 12 * time.Second, Problem: "dial tcp 10.0.0.3:8000: connection refused",
	}
	edge := v.Desired.Config.Nodes["node02"]
	edge.Tags = []string{"edge"}
	v.Desired.Config.Nodes["node02"] = edge
	delete(v.Observed.Disks, schema.DiskRef{Node: "node03", Disk: "disk2"})

	parrot := declare(v, schema.Image{ID: disk.ID{Name: "parrot"}, AllDisks: true})
	put1(v, parrot, "node01/disk1", nil)
	put1(v, parrot, "node01/disk2", func(c *reconcile.Copy) { c.Using = "used by replica vol-1" })
	put1(v, parrot, "node02/disk1", nil)
	put1(v, parrot, "node03/disk1", nil)
	put1(v, parrot, "node02/disk2", func(c *reconcile.Copy) {
		c.Copy = disk.Copy{ID: parrot.ID, State: disk.Pending, PartBytes: 256 << 20, PartTotal: 1 << 30}
	})
	v.Observed.Running[reconcile.Key{Disk: schema.DiskRef{Node: "node02", Disk: "disk2"}, ID: parrot.ID}] = true

	macaw := declare(v, schema.Image{ID: disk.ID{Name: "macaw"}, Copies: 3, NodeSelector: []string{"edge"}})
	put1(v, macaw, "node02/disk1", nil)
	v.Observed.Tries[reconcile.Key{Disk: schema.DiskRef{Node: "node02", Disk: "disk2"}, ID: macaw.ID}] = reconcile.Try{
		Kind: reconcile.Sync, Attempts: 2, Since: statusNow, Until: statusNow.Add(time.Minute), Message: "input/output error",
	}
	old := schema.Image{ID: disk.ID{Name: "macaw", UUID: "00000001"}}
	put1(v, old, "node02/disk1", func(c *reconcile.Copy) { c.Leaving = true })
	return v
}

// manyNodes has a hundred nodes, some of which do not answer, with images on all of
// them.
func manyNodes() reconcile.View {
	v := cluster(100)
	parrot := declare(v, schema.Image{ID: disk.ID{Name: "parrot"}, AllDisks: true})
	lory := declare(v, schema.Image{ID: disk.ID{Name: "lory"}, Copies: 3, DiskSelector: []string{"ssd"}})
	put1(v, lory, "node40/disk1", nil)
	put1(v, lory, "node60/disk1", func(c *reconcile.Copy) { // a line among those that were passed over is enough
		c.Copy, c.Refuses = disk.Copy{ID: lory.ID, State: disk.Pending}, "not enough space"
	})
	for n := range 100 {
		name := fmt.Sprintf("node%02d", n+1)
		for i, one := range []string{"disk1", "disk2"} {
			if n%9 != 8 {
				put1(v, parrot, name+"/"+one, func(c *reconcile.Copy) {
					if n%4 == 1 && i == 1 {
						c.Copy = disk.Copy{ID: parrot.ID, State: disk.Pending, PartBytes: int64(n) << 20, PartTotal: 1 << 30}
						v.Observed.Running[reconcile.Key{Disk: schema.DiskRef{Node: name, Disk: one}, ID: parrot.ID}] = true
					}
				})
			}
		}
		if n%7 == 6 {
			v.Observed.Peers[name] = reconcile.Peer{Asked: true, Problem: "i/o timeout", Silent: time.Minute, Config: v.Desired.Digest, Last: statusNow.Add(-time.Minute)}
		}
	}
	bad := schema.DiskRef{Node: "node50", Disk: "disk2"}
	v.Observed.Disks[bad] = reconcile.Disk{Path: "/mnt/disk2", Problem: "no disk here: /mnt/disk2 is not mounted"}
	return v
}

func TestStatusForPeople(t *testing.T) {
	for name, v := range map[string]reconcile.View{"three": threeNodes(), "hundred": manyNodes()} {
		v.Plan = v.Desired.Plan(v.Observed)
		var got strings.Builder
		if err := writeStatus(&got, v.Status(nil)); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "status_"+name+".txt")
		if *update {
			if err := os.WriteFile(file, []byte(got.String()), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("the status of %s nodes is\n%s\nwant\n%s", name, &got, want)
		}
		if lines := strings.Count(got.String(), "\n"); lines > 70 {
			t.Errorf("the status of %s nodes has %d lines", name, lines)
		}
	}
}
