package scenario

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// BenchmarkFleet brings images to the disks of a cluster.
func BenchmarkFleet(b *testing.B) {
	for _, size := range []struct{ nodes, images int }{{50, 100}, {200, 500}} {
		b.Run(fmt.Sprintf("%d-nodes-%d-images", size.nodes, size.images), func(b *testing.B) { benchmarkFleet(b, size.nodes, size.images) })
	}
}

func benchmarkFleet(b *testing.B, nodes, images int) {
	c := fleetConfig(nodes, images)
	for b.Loop() {
		w, err := newWorld(c)
		if err != nil {
			b.Fatal(err)
		}
		if done, err := w.converge(b.Context(), 0); err != nil || len(done) != 3*images {
			b.Fatalf("%d actions, error %v", len(done), err)
		}
	}
}

func fleetConfig(nodes, images int) load.Result {
	c := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: time.Hour, RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	for n := range nodes {
		c.Nodes[fmt.Sprintf("node%d", n)] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{
			"disk1": {Path: "/disk1", AllowScheduling: true}, "disk2": {Path: "/disk2", AllowScheduling: true},
		}}
	}
	for n := range images {
		name := fmt.Sprintf("image%d", n)
		c.Images[name] = schema.Image{ID: ident.ID{Name: name, UUID: "0000000a"}, Copies: 3, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}}
	}
	return load.Result{Loaded: schema.Loaded{Config: c, Digest: "d1", Allowed: schema.Everything}}
}
