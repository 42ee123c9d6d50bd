package simulation

import (
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// threeNodes is a cluster of three nodes with a disk each, where nothing happens by chance but
// delays. One image has three copies, of which two are surplus from now on: those of
// the nodes that are second and third in rank, which are returned. The wall clock of
// the third is off.
func threeNodes(t *testing.T, off time.Duration) (c *cluster, second, third *node) {
	c = newCluster(1, 3, 3, true)
	t.Cleanup(func() {
		if len(c.violations) > 0 {
			t.Errorf("%s\n%s\n%s", strings.Join(c.violations, "\n"), c.trace, c.describe())
		}
	})
	c.healed, c.quick = true, true
	c.queue, c.declarations, c.disks = nil, nil, map[schema.DiskRef]*Disk{}
	config := schema.Config{Nodes: map[string]schema.Node{}, Images: map[string]schema.Image{}, Settings: schema.Settings{
		CleanupWaitInterval: 10 * time.Minute, RecoveryWaitInterval: 3 * time.Minute, ConcurrentReplenishPerNodeLimit: 5, PruneLimit: schema.PrunePercent(50),
	}}
	for i, name := range c.names {
		config.Nodes[name] = schema.Node{AllowScheduling: true, Address: urlOf(name), Disks: map[string]schema.Disk{"disk1": {Path: "/disk1", AllowScheduling: true}}}
		c.disks[schema.DiskRef{Node: name, Disk: "disk1"}] = NewDisk(newUUID(i), c.library, diskSize)
	}
	url := "https://example.com/parrot"
	c.served[url] = "a"
	m := schema.Image{Copies: 3, Source: schema.Source{Download: &schema.Download{URL: url, Unpack: schema.UnpackNone}}}
	m.ID = disk.ID{Name: "parrot", UUID: schema.UUID("parrot", m.Checksum, m.Source)}
	config.Images["parrot"] = m
	c.declare(config)
	ranked := c.rankedDisks(c.latest(), m)
	c.nodes[ranked[2].Node].clockOffset = off
	for _, name := range c.names {
		c.nodes[name].start()
	}
	c.runUntil(10 * time.Minute)
	for _, ref := range ranked {
		if !c.copyAt(plan.CopyRef{Disk: ref, ID: m.ID}).Ready() {
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

func (m *node) onlyDisk() schema.DiskRef { return schema.DiskRef{Node: m.name, Disk: "disk1"} }

func (m *node) parrotCopy() plan.CopyRef {
	return plan.CopyRef{Disk: m.onlyDisk(), ID: m.c.latest().config.Images["parrot"].ID}
}

// waitDeleted runs the cluster until the copy is gone, which has to happen in some time.
func (c *cluster) waitDeleted(t *testing.T, key plan.CopyRef, within time.Duration) {
	t.Helper()
	for end := c.now + within; c.copyAt(key) != nil && len(c.violations) == 0; c.runUntil(c.now + time.Minute) {
		if c.now > end {
			t.Fatalf("%s does not go:\n%s", key, c.trace)
		}
	}
}

// TestClusterMovedDisk: the times beside a copy are by the clock of the node that had the
// disk before.
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

// TestClusterClockOfAnAbsentDisk: the clock is set while a disk is away.
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

// TestClusterUseSeenByABystander: a copy is used, and that ends, while its node is not
// declared.
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

// TestClusterUseOfAWithdrawnCopy: a use is first seen when the copy is withdrawn, and the
// manager dies before the use ends.
func TestClusterDeletesSurplusAfterCrashDuringUse(t *testing.T) {
	t.Parallel()
	c, second, third := threeNodes(t, 0)
	for name := range c.nodes { // nobody answers, so that it stays withdrawn for a while
		if name != second.name && name != third.name {
			c.link(second.name, name).slow = 4 * time.Second
		}
	}
	for end := c.now + 20*time.Minute; c.deletionOf(second.parrotCopy()) == nil; c.runUntil(c.now + 50*time.Millisecond) {
		if c.now > end {
			t.Fatalf("it is not withdrawn:\n%s", c.trace)
		}
	}
	s := c.copyAt(second.parrotCopy())
	s.Users, c.history(s).usedFrom = 1, c.now
	second.requestRound()
	for !s.Usage.InUse && c.deletionOf(second.parrotCopy()) != nil {
		c.runUntil(c.now + 10*time.Millisecond)
	}
	second.crash()
	s.Users = 0
	c.runUntil(c.now + time.Minute)
	second.start()
	c.waitDeleted(t, second.parrotCopy(), 20*time.Minute)
}

// TestClusterHopelessCopy: what cannot be repaired nor replaced is not tried all the time.
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
		t.Errorf("%d actions were begun in an hour:\n%s", n, c.trace)
	}
}
