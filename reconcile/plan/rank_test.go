package plan_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// TestScore freezes the ranking: with another one every image would move. The vectors were
// computed by another program. The number of some names is the start of
//
//	printf '\0\0\0\0\0\0\0\5node1\0\0\0\0\0\0\0\5disk1' | sha256sum
func TestScore(t *testing.T) {
	for _, v := range []struct {
		image, node, disk string
		want              uint64
	}{
		{"parrot", "node1", "disk1", 0x9a500ba6ebf78d1f},
		{"parrot", "node1", "disk2", 0xe1a76b03f4130729},
		{"parrot", "node2", "disk1", 0xb2097d59a58bed5b},
		{"parrotnode1", "", "disk1", 0xbd98510a0437fe2f},
		{"debian-13.qcow2", "rack-7.example", "nvme0", 0x5bb6635a4a064f31},
	} {
		if got := plan.Mix64(plan.NameHash(v.image) ^ plan.NameHash(v.node, v.disk)); got != v.want {
			t.Errorf("score of %s on %s/%s is %#x, want %#x", v.image, v.node, v.disk, got, v.want)
		}
	}
}

// TestMixIsSplitMix64 takes what every SplitMix64 gives first for the seed 0.
func TestMixIsSplitMix64(t *testing.T) {
	if got := plan.Mix64(0x9e3779b97f4a7c15); got != 0xe220a8397b1dcdaf {
		t.Errorf("mix gives %#x", got)
	}
}

// TestRankedVectors freezes the walk: every node's best disk before any node's
// second.
func TestRankedVectors(t *testing.T) {
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
			t.Errorf("%s is ranked %q, want %q", image, got, want)
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
				t.Errorf("a node comes again before another came at all: %v", refs)
			}
		}
	}
}

// TestRankMovesFewCopies takes each disk away, and each node, by eviction and for
// good: only copies that were on it may move, and the same when it comes back.
func TestRankMovesFewCopies(t *testing.T) {
	with := plantest.NewConfig(4, 3)
	for _, without := range smaller(with) {
		for i := range 50 {
			image := plantest.NewImage(fmt.Sprint("image", i))
			for copies := 1; copies <= 5; copies++ {
				before, after := plantest.RankedDisks(with, image)[:copies], plantest.RankedDisks(without, image)
				after = after[:min(copies, len(after))]
				for _, ref := range before {
					if stays(without, ref) && !slices.Contains(after, ref) {
						t.Fatalf("%s moves from %s, which is there: before %v, then %v", image.ID.Name, ref, before, after)
					}
				}
			}
		}
	}
}

func stays(c schema.Config, ref schema.DiskRef) bool {
	d, there := c.Nodes[ref.Node].Disks[ref.Disk]
	return there && !d.EvictionRequested && !c.Nodes[ref.Node].EvictionRequested
}

// smaller are configurations that lack one disk or one node of c.
func smaller(c schema.Config) []schema.Config {
	var all []schema.Config
	for name, node := range c.Nodes {
		fewer := c
		fewer.Nodes = maps.Clone(c.Nodes)
		delete(fewer.Nodes, name)
		evicted := c
		evicted.Nodes = maps.Clone(c.Nodes)
		drained := node
		drained.EvictionRequested = true
		evicted.Nodes[name] = drained
		all = append(all, fewer, evicted)
		for diskName, d := range node.Disks {
			fewer := c
			fewer.Nodes = maps.Clone(c.Nodes)
			one := node
			one.Disks = maps.Clone(node.Disks)
			delete(one.Disks, diskName)
			fewer.Nodes[name] = one
			evicted := c
			evicted.Nodes = maps.Clone(c.Nodes)
			two := node
			two.Disks = maps.Clone(node.Disks)
			d.EvictionRequested = true
			two.Disks[diskName] = d
			evicted.Nodes[name] = two
			all = append(all, fewer, evicted)
		}
	}
	return all
}

func TestRankedBalance(t *testing.T) {
	const images = 6000
	c := plantest.NewConfig(3, 2)
	first := map[schema.DiskRef]int{}
	for i := range images {
		first[plantest.RankedDisks(c, plantest.NewImage(fmt.Sprint("image", i)))[0]]++
	}
	for ref, n := range first {
		if n < images/6*8/10 || n > images/6*12/10 {
			t.Errorf("%s is the first for %d of %d images on 6 disks", ref, n, images)
		}
	}
}
