package simulation

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// rankKey names an image in the declaration with a number.
type rankKey struct {
	number int
	image  string
}

// rankedDisks returns the ranked disks of an image. It is a second implementation of the product's
// ranking: disks in the order of a hash of image and disk, and each node's best disk before any
// node's second one.
func (c *cluster) rankedDisks(d *declaration, image schema.Image) []ident.DiskRef {
	key := rankKey{d.number, image.ID.String()}
	if known := c.rankings[key]; known != nil {
		return *known
	}
	round := map[ident.DiskRef]int{}
	refs := plantest.MatchingDisks(d.config, image)
	score := func(ref ident.DiskRef) uint64 { return c.score(image.ID.Name, ref) }
	slices.SortFunc(refs, func(a, b ident.DiskRef) int { return cmp.Compare(score(a), score(b)) })
	of := map[string]int{}
	for _, ref := range refs {
		round[ref] = of[ref.Node]
		of[ref.Node]++
	}
	slices.SortStableFunc(refs, func(a, b ident.DiskRef) int { return cmp.Compare(round[a], round[b]) })
	c.rankings[key] = &refs
	return refs
}

func (c *cluster) score(image string, ref ident.DiskRef) uint64 {
	return splitMix(c.hash(image) ^ c.hash(ref.Node, ref.Disk))
}

func (c *cluster) hash(names ...string) uint64 {
	var b []byte
	for _, name := range names {
		b = append(binary.BigEndian.AppendUint64(b, uint64(len(name))), name...)
	}
	known, ok := c.hashes[string(b)]
	if !ok {
		sum := sha256.Sum256(b)
		known = binary.BigEndian.Uint64(sum[:])
		c.hashes[string(b)] = known
	}
	return known
}

func splitMix(x uint64) uint64 {
	for _, step := range [...]struct{ shift, factor uint64 }{{30, 0xbf58476d1ce4e5b9}, {27, 0x94d049bb133111eb}, {31, 1}} {
		x ^= x >> step.shift
		x *= step.factor
	}
	return x
}

// copyCounts returns how many copies are desired, and how many ready ones are enough to delete a
// surplus copy.
func copyCounts(image schema.Image, ranked int) (copies, enough int) {
	if copies = image.Copies; image.AllDisks {
		copies = ranked
	}
	return copies, max(1, min(copies, ranked))
}

// isAlwaysDesired reports whether a ready copy on the disk is desired in any state of the other disks:
// the disk is one of the first ranked ones, or named by the image.
func (c *cluster) isAlwaysDesired(d *declaration, image schema.Image, ref ident.DiskRef) bool {
	ranked := c.rankedDisks(d, image)
	copies, _ := copyCounts(image, len(ranked))
	i := slices.Index(ranked, ref)
	return i >= 0 && i < copies || slices.Contains(image.Disks, ref) && !isEvicted(d.config, ref)
}

// isEvicted reports whether no copy may stay on a disk.
func isEvicted(config schema.Config, ref ident.DiskRef) bool {
	node, declared := config.Nodes[ref.Node]
	one, known := node.Disks[ref.Disk]
	return !declared || !known || node.EvictionRequested || one.EvictionRequested
}
