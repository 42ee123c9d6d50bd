package simulation

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
)

var idleSeeds = flag.Int("idle.seeds", 60, "number of clusters with a node that does not follow the configuration")

// idleFaults are the ways in which a node responds and does not follow the configuration.
var idleFaults = map[string]func(*node){
	"stale":  func(m *node) { m.dirStale = true },
	"broken": func(m *node) { m.dirStale = true; m.breakDir() },
	"broken at its start": func(m *node) {
		m.dirStale, m.dirBroken = true, true
		m.crash()
		m.start()
	},
}

// A node responds, but its configuration is stale or broken. New images with a checksum must be ready on
// the other nodes within the recovery interval and the time of the transfers, and each rule about first
// copies and deletions holds. When the node follows again, the cluster must converge.
func TestIdleNodeDelaysImagesByTheRecoveryInterval(t *testing.T) {
	t.Parallel()
	for name, fault := range idleFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*idleSeeds / len(idleFaults)) {
				if !runIdle(t, seed, fault) {
					return
				}
			}
		})
	}
}

// runIdle runs one cluster of four nodes. It reports whether all rules held.
func runIdle(t *testing.T, seed uint64, fault func(*node)) (held bool) {
	t.Helper()
	c := newCluster(seed, 4, 4, true)
	defer c.close()
	c.healed, c.quick = true, true
	c.queue, c.declarations, c.disks = nil, nil, map[ident.DiskRef]*Disk{}
	config := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: 10 * time.Minute, RecoveryWaitInterval: 3 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	for i, name := range c.names {
		config.Nodes[name] = schema.Node{AllowScheduling: true, Address: urlOf(name), Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
		c.disks[ident.DiskRef{Node: name, Disk: "disk1"}] = NewDisk(newUUID(i), c.library, 100*gib)
	}
	c.declare(config)
	for _, name := range c.names {
		c.nodes[name].start()
	}
	c.runUntil(5 * time.Minute)
	idle := c.nodes[pick(c.rng, c.names...)]
	fault(idle)
	c.runUntil(c.now + c.between(0, 5*time.Minute))
	c.declare(c.editedConfig(func(config *schema.Config) {
		for i := range 12 {
			name, content := fmt.Sprintf("image%d", i), pick(c.rng, "a", "b", "c")
			m := schema.Image{Copies: 1 + i%2, Source: schema.Source{Download: &schema.Download{URL: "https://example.com/" + name, Unpack: schema.UnpackNone}}}
			c.served[m.Source.Download.URL] = content
			if i%3 > 0 {
				m.Checksum = c.digest(content)
			}
			m.ID = ident.ID{Name: name, UUID: schema.UUID(name, m.Checksum, m.Source)}
			config.Images[name] = m
		}
	}))
	const transfers = 10 * time.Minute
	c.runUntil(c.now + 3*time.Minute + transfers)
	fail := func(format string, args ...any) bool {
		t.Errorf("seed %d: %s\n%s\n%s\n%s", seed, fmt.Sprintf(format, args...), strings.Join(c.violations, "\n"), c.trace, c.describe())
		return false
	}
	for _, image := range c.latest().config.Images {
		ready := 0
		for _, name := range c.names {
			if s := c.copyAt(ident.CopyRef{Disk: c.nodes[name].onlyDisk(), ID: image.ID}); name != idle.name && s.Ready() {
				ready++
			}
		}
		if ready < image.Copies {
			return fail("%s has %d of %d copies on the nodes that follow", image.ID, ready, image.Copies)
		}
	}
	idle.dirStale = false
	idle.repairDir()
	idle.receive(c.latest())
	c.converge()
	if len(c.violations) > 0 {
		return fail("a rule is broken")
	}
	return true
}
