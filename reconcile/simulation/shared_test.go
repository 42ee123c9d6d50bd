package simulation

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Two disks of one node or of two show one folder. Whatever is evicted, selected or desired, the bytes stay, because
// no deletion counts a copy there as two. Nothing else prevents deletions: a cluster without a shared folder converges.
// -cluster.seeds=1000 runs 1,000 clusters.
func TestSharedFolder(t *testing.T) {
	t.Parallel()
	began := time.Now()
	seeds := []uint64{822, 48} // two deletions that counted on each other's folder; a node that starts removes a mark
	for seed := range uint64(max(10, *clusterSeeds)) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		c := newCluster(seed, 3, 3, true)
		c.healed, c.quick = true, true
		c.queue, c.declarations, c.disks = nil, nil, map[ident.DiskRef]*Disk{}
		r := rng{rand.New(rand.NewPCG(seed, 8))}
		config := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{RecoveryWaitInterval: time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50)}}
		for i, name := range c.names {
			config.Nodes[name] = schema.Node{AllowScheduling: true, Address: urlOf(name), Disks: map[string]schema.Disk{}}
			for j, on := range []string{"disk1", "disk2"} {
				config.Nodes[name].Disks[on] = schema.Disk{Path: "/" + on, AllowScheduling: true}
				c.disks[ident.DiskRef{Node: name, Disk: on}] = NewDisk(newUUID(2*i+j), c.library, diskSize)
			}
		}
		refs := c.diskRefs()
		first := r.IntN(len(refs))
		second := (first + 1 + r.IntN(len(refs)-1)) % len(refs)
		shared := seed%10 != 0
		if shared {
			c.disks[refs[second]].Copies = c.disks[refs[first]].Copies
			if seed%4 == 0 {
				c.sharing = map[ident.DiskRef]string{refs[first]: refs[second].Node, refs[second]: refs[first].Node}
			}
		}
		url := "https://example.com/parrot"
		c.served[url] = "a"
		m := schema.Image{Copies: 1 + r.IntN(3), Checksum: c.digest("a"), Source: schema.Source{Download: &schema.Download{URL: url, Unpack: schema.UnpackNone}}}
		m.ID = ident.ID{Name: "parrot", UUID: schema.UUID("parrot", m.Checksum, m.Source)}
		config.Images["parrot"] = m
		c.declare(config)
		for _, name := range c.names {
			c.nodes[name].start()
		}
		had := false
		for step := range 12 {
			if step > 0 {
				c.declare(c.editedConfig(func(config *schema.Config) {
					m := config.Images["parrot"]
					m.Copies = 1 + r.IntN(3)
					config.Images["parrot"] = m
					for _, ref := range refs {
						d := config.Nodes[ref.Node].Disks[ref.Disk]
						d.EvictionRequested = r.oneIn(3)
						config.Nodes[ref.Node].Disks[ref.Disk] = d
					}
				}))
			}
			for range 30 {
				c.runUntil(c.now + 10*time.Second)
				ready := 0
				for _, ref := range refs {
					if s := c.disks[ref].Copies[m.ID]; s != nil && s.File == "a" && s.Ready() {
						ready++
					}
				}
				if had = had || ready > 0; had && ready == 0 {
					t.Fatalf("%d clusters in %s: seed %d broke a rule:\nU5: the bytes were lost, because %s and %s are one folder\n%s", seed, time.Since(began), seed, refs[first], refs[second], c.trace)
				}
			}
		}
		if !had {
			t.Fatalf("%d clusters in %s: seed %d broke a rule:\nU5: no copy ever stayed for ten seconds, because %s and %s are one folder\n%s", seed, time.Since(began), seed, refs[first], refs[second], c.trace)
		}
		if shared {
			c.close()
			continue
		}
		for _, ref := range refs {
			if _, there := c.disks[ref].Copies[m.ID]; there && isEvicted(c.latest().config, ref) && c.done[model.Evict] == 0 {
				t.Errorf("seed %d: %s is not evicted\n%s", seed, ref, c.trace)
			}
		}
		c.close()
	}
}

// restartSharing sometimes stops a node between its decision to delete a copy on a disk and the rename of the folder, and
// returns for how long. Meanwhile the node that shares the disk starts again, which removes the mark.
func (c *cluster) restartSharing(on ident.DiskRef) (stop time.Duration) {
	other := c.nodes[c.sharing[on]]
	if other == nil || other.name == on.Node || c.oneIn(2) {
		return 0
	}
	stop = c.between(0, time.Minute)
	c.after(c.between(0, stop), func() {
		other.crash()
		other.start()
	})
	return stop
}
