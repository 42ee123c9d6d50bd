package simulation

import (
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// always makes the liar answer every node in one way: with one claim about each image, and with these bytes.
func (l *liar) always(claim claimKind, bytes bytesKind) {
	l.steady = true
	for name := range l.node.c.nodes {
		m := &mood{claims: map[string]claimKind{}, uuids: map[string]string{}, bytes: bytes}
		for _, image := range plantest.ImageNames {
			m.claims[image] = claim
		}
		l.moods[name] = m
	}
}

// restoredImage returns an image with a checksum whose source is a backup.
func restoredImage(c *cluster, name string) schema.Image {
	url := "s3://store/?backingImage=" + name
	c.served[url] = "b"
	m := schema.Image{Copies: 1, Checksum: c.digest("b"), Source: schema.Source{Restore: &schema.Restore{BackupURL: url}}}
	m.ID = ident.ID{Name: name, UUID: schema.UUID(name, m.Checksum, m.Source)}
	return m
}

// A compromised node claims to have an image with a declared checksum, and sends no bytes of it. The image
// must become ready on the node that should have it, from its source.
func TestClusterUsesTheSourceWhenAClaimedCopyIsNeverSent(t *testing.T) {
	t.Parallel()
	c, _, _ := threeNodes(t, 0)
	m := restoredImage(c, "macaw")
	ranked := c.rankedDisks(c.latest(), m)
	c.compromise(c.nodes[ranked[1].Node])
	c.liar.always(claimReady, noBytes)
	c.declare(c.editedConfig(func(config *schema.Config) { config.Images[m.ID.Name] = m }))
	c.offline = true // until the claim has arrived
	c.runUntil(c.now + time.Minute)
	c.offline = false
	c.runUntil(c.now + 15*time.Minute)
	if !c.copyAt(ident.CopyRef{Disk: ranked[0], ID: m.ID}).Ready() {
		t.Errorf("%s is not ready on %s:\n%s\n%s", m.ID, ranked[0], c.trace, c.describe())
	}
}

// A compromised node claims to have the only desired copy of an image. When that node is evicted, or removed from
// the configuration, another node must create the copy.
func TestClusterCreatesTheCopyThatAnEvictedNodeClaims(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(c *schema.Config, node string)
	}{
		{"evicted", func(c *schema.Config, name string) {
			node := c.Nodes[name]
			node.EvictionRequested = true
			c.Nodes[name] = node
		}},
		{"removed", func(c *schema.Config, name string) { delete(c.Nodes, name) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, _, _ := threeNodes(t, 0)
			m := restoredImage(c, "macaw")
			ranked := c.rankedDisks(c.latest(), m)
			c.compromise(c.nodes[ranked[0].Node])
			c.liar.always(claimReady, noBytes)
			c.runUntil(c.now + time.Minute)
			c.declare(c.editedConfig(func(config *schema.Config) { config.Images[m.ID.Name] = m }))
			c.runUntil(c.now + 20*time.Minute)
			c.declare(c.editedConfig(func(config *schema.Config) { test.change(config, ranked[0].Node) }))
			c.runUntil(c.now + 20*time.Minute)
			if !c.isReadyAnywhere(m.ID) {
				t.Errorf("%s is not ready:\n%s\n%s", m.ID, c.trace, c.describe())
			}
		})
	}
}

// Only first copies are created, and the only copy of an image is on a disk that is not ranked any more. No
// other one is expected, whatever a compromised node claims.
func TestNoSecondCopyIsExpectedWhereOnlyFirstCopiesAreCreated(t *testing.T) {
	t.Parallel()
	c, _, _ := threeNodes(t, 0)
	m := restoredImage(c, "macaw")
	ranked := c.rankedDisks(c.latest(), m)
	c.declare(c.editedConfig(func(config *schema.Config) { config.Images[m.ID.Name] = m }))
	c.runUntil(c.now + 10*time.Minute)
	c.declare(c.editedConfig(func(config *schema.Config) {
		for _, ref := range ranked[1:] {
			node := config.Nodes[ref.Node]
			node.Tags = []string{"other"}
			config.Nodes[ref.Node] = node
		}
		m.NodeSelector = []string{"other"}
		config.Images[m.ID.Name], config.Settings.ConcurrentReplenishPerNodeLimit = m, 0
	}))
	c.compromise(c.nodes[ranked[2].Node])
	c.liar.always(claimFinal, noBytes)
	c.runUntil(c.now + 20*time.Minute)
	if !c.isReadyAnywhere(m.ID) || c.lackingImage() != "" {
		t.Errorf("%s is expected; %s is ready: %v", c.lackingImage(), m.ID, c.isReadyAnywhere(m.ID))
	}
}

// The second disk of an image has failed for the recovery interval, so that the next disk gets the copy. It belongs
// to a compromised node, which never creates the copy. That is within H3: the image is ready, and the compromised
// node could as well claim to have the copy. So no second copy is expected, also after the failed disk can be written
// again. When the compromised node is removed from the configuration, that disk must get the copy.
func TestCompromisedNodeHasThePlaceOfAFailedDisk(t *testing.T) {
	t.Parallel()
	c, _, _ := threeNodes(t, 0)
	m := restoredImage(c, "macaw")
	m.Copies = 2
	ranked := c.rankedDisks(c.latest(), m)
	first, second := ident.CopyRef{Disk: ranked[0], ID: m.ID}, ident.CopyRef{Disk: ranked[1], ID: m.ID}
	c.disks[second.Disk].FailsWrites = true
	c.compromise(c.nodes[ranked[2].Node])
	c.liar.always(claimFinal, noBytes)
	c.declare(c.editedConfig(func(config *schema.Config) { config.Images[m.ID.Name] = m }))
	c.runUntil(c.now + 10*time.Minute)
	if required, have := c.requiredReady(c.latest().config, m); required != 1 || have != 1 || !c.copyAt(first).Ready() {
		t.Fatalf("%d copies are ready and %d required, want 1 of each:\n%s\n%s", have, required, c.trace, c.describe())
	}
	c.disks[second.Disk].FailsWrites = false
	c.runUntil(c.now + 20*time.Minute)
	if required, have := c.requiredReady(c.latest().config, m); required != 1 || have != 1 {
		t.Fatalf("%d copies are ready and %d required, want 1 of each:\n%s\n%s", have, required, c.trace, c.describe())
	}
	c.declare(c.editedConfig(func(config *schema.Config) { delete(config.Nodes, ranked[2].Node) }))
	c.runUntil(c.now + 10*time.Minute)
	if !c.copyAt(second).Ready() {
		t.Errorf("%s is not ready on %s:\n%s\n%s", m.ID, second.Disk, c.trace, c.describe())
	}
}
