package scenario

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// BenchmarkFleet brings 500 images to 200 nodes.
func BenchmarkFleet(b *testing.B) {
	c := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: time.Hour, RecoveryWaitInterval: 5 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	for n := range 200 {
		c.Nodes[fmt.Sprintf("node%d", n)] = schema.Node{AllowScheduling: true, Disks: map[string]schema.Disk{
			"disk1": {Path: "/disk1", AllowScheduling: true}, "disk2": {Path: "/disk2", AllowScheduling: true},
		}}
	}
	for n := range 500 {
		name := fmt.Sprintf("image%d", n)
		c.Images[name] = schema.Image{ID: disk.ID{Name: name, UUID: "0000000a"}, Copies: 3, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/x"}}}
	}
	for b.Loop() {
		w, err := newWorld(schema.Result{Config: c, Digest: "d1", Allowed: schema.Everything})
		if err != nil {
			b.Fatal(err)
		}
		if done, err := w.converge(b.Context(), 0); err != nil || len(done) != 1500 {
			b.Fatalf("%d actions, error %v", len(done), err)
		}
	}
}
