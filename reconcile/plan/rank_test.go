package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestRankVectors fixes the order of ranked disks: the best disk of every node comes before the
// second disk of any node.
func TestRankVectors(t *testing.T) {
	c := plantest.NewConfig(3, 2)
	for image, want := range map[string][]string{
		"parrot": {"node3/disk2", "node1/disk1", "node2/disk1", "node3/disk1", "node2/disk2", "node1/disk2"},
		"macaw":  {"node3/disk2", "node1/disk1", "node2/disk2", "node2/disk1", "node1/disk2", "node3/disk1"},
		"debian": {"node2/disk2", "node3/disk2", "node1/disk1", "node3/disk1", "node2/disk1", "node1/disk2"},
	} {
		var got []string
		for _, ref := range plantest.RankedDisks(c, plantest.NewImage(image)) {
			got = append(got, ref.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("the ranked disks of %s are %q, want %q", image, got, want)
		}
	}
}

func TestRankBestDiskOfEachNodeFirst(t *testing.T) {
	c := plantest.NewConfig(5, 4)
	for i := range 200 {
		refs := plantest.RankedDisks(c, plantest.NewImage(fmt.Sprint("image", i)))
		if len(refs) != 20 {
			t.Fatalf("%d disks are ranked", len(refs))
		}
		for round := range slices.Chunk(refs, 5) {
			nodes := map[string]bool{}
			for _, ref := range round {
				nodes[ref.Node] = true
			}
			if len(nodes) != 5 {
				t.Errorf("a node has a second disk before another has its first: %v", refs)
			}
		}
	}
}

// TestRankMovesFewCopies removes or evicts each disk and each node. Only copies that were on it
// may move. The same holds in reverse, when a disk or node is added.
func TestRankMovesFewCopies(t *testing.T) {
	all := plantest.NewConfig(4, 3)
	for _, fewer := range withoutOne(all) {
		for i := range 50 {
			image := plantest.NewImage(fmt.Sprint("image", i))
			for copies := 1; copies <= 5; copies++ {
				before, after := plantest.RankedDisks(all, image)[:copies], plantest.RankedDisks(fewer, image)
				after = after[:min(copies, len(after))]
				for _, ref := range before {
					if isAvailable(fewer, ref) && !slices.Contains(after, ref) {
						t.Fatalf("%s moves from %s, which is still available: before %v, after %v", image.ID.Name, ref, before, after)
					}
				}
			}
		}
	}
}

func isAvailable(c schema.Config, ref ident.DiskRef) bool {
	d, declared := c.Nodes[ref.Node].Disks[ref.Disk]
	return declared && !d.EvictionRequested && !c.Nodes[ref.Node].EvictionRequested
}

// withoutOne returns configurations that lack one disk or one node of c, or evict it.
func withoutOne(c schema.Config) []schema.Config {
	var all []schema.Config
	for name, node := range c.Nodes {
		removed := c
		removed.Nodes = maps.Clone(c.Nodes)
		delete(removed.Nodes, name)
		all = append(all, removed, withNode(c, name, func(n *schema.Node) { n.EvictionRequested = true }))
		for diskName, d := range node.Disks {
			d.EvictionRequested = true
			all = append(all,
				withNode(c, name, func(n *schema.Node) { delete(n.Disks, diskName) }),
				withNode(c, name, func(n *schema.Node) { n.Disks[diskName] = d }))
		}
	}
	return all
}

// withNode returns c with a changed copy of one node.
func withNode(c schema.Config, name string, change func(*schema.Node)) schema.Config {
	node := c.Nodes[name]
	node.Disks = maps.Clone(node.Disks)
	change(&node)
	c.Nodes = maps.Clone(c.Nodes)
	c.Nodes[name] = node
	return c
}

// TestRankBalance checks that each disk is the first for about as many images as any other.
func TestRankBalance(t *testing.T) {
	const images = 6000
	c := plantest.NewConfig(3, 2)
	first := map[ident.DiskRef]int{}
	for i := range images {
		first[plantest.RankedDisks(c, plantest.NewImage(fmt.Sprint("image", i)))[0]]++
	}
	for ref, n := range first {
		if n < images/6*8/10 || n > images/6*12/10 {
			t.Errorf("%s is the best disk of %d of %d images, want about a sixth", ref, n, images)
		}
	}
}
