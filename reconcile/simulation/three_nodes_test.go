package simulation

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// threeNodes returns a cluster of three nodes with one disk each, without random faults. One image
// has three copies. From now on those on the second and the third ranked node, which it returns,
// are surplus. off is the offset of the wall clock of the third one.
func threeNodes(t *testing.T, off time.Duration) (c *cluster, second, third *node) {
	c = newCluster(1, 3, 3, true)
	t.Cleanup(func() {
		if len(c.violations) > 0 {
			t.Errorf("%s\n%s\n%s", strings.Join(c.violations, "\n"), c.trace, c.describe())
		}
	})
	c.healed, c.quick = true, true
	c.queue, c.declarations, c.disks = nil, nil, map[ident.DiskRef]*Disk{}
	config := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: 10 * time.Minute, RecoveryWaitInterval: 3 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	for i, name := range c.names {
		config.Nodes[name] = schema.Node{AllowScheduling: true, Address: urlOf(name), Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
		c.disks[ident.DiskRef{Node: name, Disk: "disk1"}] = NewDisk(newUUID(i), c.library, diskSize)
	}
	url := "https://example.com/parrot"
	c.served[url] = "a"
	m := schema.Image{Copies: 3, Source: schema.Source{Download: &schema.Download{URL: url, Unpack: schema.UnpackNone}}}
	m.ID = ident.ID{Name: "parrot", UUID: schema.UUID("parrot", m.Checksum, m.Source)}
	config.Images["parrot"] = m
	c.declare(config)
	ranked := c.rankedDisks(c.latest(), m)
	c.nodes[ranked[2].Node].clockOffset = off
	for _, name := range c.names {
		c.nodes[name].start()
	}
	c.runUntil(10 * time.Minute)
	for _, ref := range ranked {
		if !c.copyAt(ident.CopyRef{Disk: ref, ID: m.ID}).Ready() {
			t.Fatalf("%s has no copy:\n%s", ref, c.trace)
		}
	}
	c.setCopies(1)
	c.runUntil(c.now + time.Minute)
	return c, c.nodes[ranked[1].Node], c.nodes[ranked[2].Node]
}

// setCopies declares another number of copies.
func (c *cluster) setCopies(copies int) {
	c.declare(c.editedConfig(func(config *schema.Config) {
		m := config.Images["parrot"]
		m.Copies = copies
		config.Images["parrot"] = m
	}))
}

func (m *node) onlyDisk() ident.DiskRef { return ident.DiskRef{Node: m.name, Disk: "disk1"} }

func (m *node) parrotCopy() ident.CopyRef {
	return ident.CopyRef{Disk: m.onlyDisk(), ID: m.c.latest().config.Images["parrot"].ID}
}

// waitDeleted runs the cluster until the copy is deleted. It fails if this takes too long.
func (c *cluster) waitDeleted(t *testing.T, key ident.CopyRef, within time.Duration) {
	t.Helper()
	for end := c.now + within; c.copyAt(key) != nil && len(c.violations) == 0; c.runUntil(c.now + time.Minute) {
		if c.now > end {
			t.Fatalf("%s is not deleted:\n%s", key, c.trace)
		}
	}
}

// A surplus copy must be deleted even if its recorded times are from the clock of another node,
// which had the disk before.
func TestClusterDeletesSurplusAfterDiskSwap(t *testing.T) {
	t.Parallel()
	c, second, third := threeNodes(t, time.Hour)
	a, b := c.disks[second.onlyDisk()], c.disks[third.onlyDisk()]
	a.Attached, b.Attached = false, false
	c.runUntil(c.now + 2*time.Minute)
	c.disks[second.onlyDisk()], c.disks[third.onlyDisk()] = b, a
	a.Attached, b.Attached = true, true
	c.waitDeleted(t, third.parrotCopy(), 20*time.Minute)
}

// A surplus copy must be deleted even if the wall clock was set while its disk was detached.
func TestClusterDeletesSurplusAfterClockStepWhileDiskAbsent(t *testing.T) {
	t.Parallel()
	c, second, _ := threeNodes(t, 0)
	c.disks[second.onlyDisk()].Attached = false
	c.runUntil(c.now + 2*time.Minute)
	second.clockOffset += 1000 * time.Hour
	c.runUntil(c.now + 2*time.Minute)
	c.disks[second.onlyDisk()].Attached = true
	c.waitDeleted(t, second.parrotCopy(), 20*time.Minute)
}

// A surplus copy must be deleted even if a use of it began and ended while its node was not
// declared and therefore only observed.
func TestClusterDeletesSurplusAfterUseWhileNodeUndeclared(t *testing.T) {
	t.Parallel()
	c, second, _ := threeNodes(t, 0)
	before := c.latest().config
	c.declare(c.editedConfig(func(config *schema.Config) { delete(config.Nodes, second.name) }))
	c.runUntil(c.now + time.Minute)
	s := c.copyAt(second.parrotCopy())
	s.Users, c.history(s).usedFrom = 1, c.now
	c.runUntil(c.now + 12*time.Minute)
	s.Users = 0
	c.declare(before)
	c.waitDeleted(t, second.parrotCopy(), 20*time.Minute)
}

// A surplus copy must be deleted even if its node first observes a use after the withdrawal, and
// crashes before the use ends.
func TestClusterDeletesSurplusAfterCrashDuringUse(t *testing.T) {
	t.Parallel()
	c, second, third := threeNodes(t, 0)
	for name := range c.nodes { // slow responses: the copy stays withdrawn for a while
		if name != second.name && name != third.name {
			c.link(second.name, name).slow = 4 * time.Second
		}
	}
	for end := c.now + 20*time.Minute; c.deletionOf(second.parrotCopy()) == nil; c.runUntil(c.now + 50*time.Millisecond) {
		if c.now > end {
			t.Fatalf("the copy is not withdrawn:\n%s", c.trace)
		}
	}
	s := c.copyAt(second.parrotCopy())
	s.Users, c.history(s).usedFrom = 1, c.now
	second.requestRound()
	for !s.Usage.InUseRecorded && c.deletionOf(second.parrotCopy()) != nil {
		c.runUntil(c.now + 10*time.Millisecond)
	}
	second.crash()
	s.Users = 0
	c.runUntil(c.now + time.Minute)
	second.start()
	c.waitDeleted(t, second.parrotCopy(), 20*time.Minute)
}

// A copy that can be neither repaired nor replaced must not cause attempts without a pause.
func TestClusterRetriesHopelessCopyRarely(t *testing.T) {
	t.Parallel()
	c, second, third := threeNodes(t, 0)
	c.setCopies(3)
	c.offline = true
	for _, m := range c.nodes {
		c.copyAt(m.parrotCopy()).File = "rotten"
	}
	for _, m := range []*node{second, third} {
		s := c.copyAt(m.parrotCopy())
		s.Failure, s.DamagedAt = "damaged", m.wallNow()
	}
	c.runUntil(c.now + 5*time.Minute)
	before := c.begunJobs
	c.runUntil(c.now + time.Hour)
	if n := c.begunJobs - before; n > 60 {
		t.Errorf("%d jobs started in an hour:\n%s", n, c.trace)
	}
}
