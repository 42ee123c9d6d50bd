package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// ranking is the list of disks that match an image, best first (P1). It is a function of the
// configuration alone, so that every node has the same ranking. When a disk is added or
// removed, the order of the others does not change, so few copies move. Each node's best disk
// ranks before any node's second disk.
//
// The disks are ordered by rendezvous hashing. The score of a disk for an image is
// mix64(H(image name) XOR H(node name, disk name)), and the smallest score is best. The
// input of H is, for each name, its length as 8 bytes, big-endian, and then the name. H is the
// first 8 bytes, big-endian, of the SHA-256 of this input.
//
// A ranking sorts only as far as it is read, since most images use few of many disks.
type ranking struct {
	disks  []rankedDisk
	sorted int // how many of the first disks are the best ones, in order
}

// rankedDisk is a disk that matches an image.
type rankedDisk struct {
	ident.DiskRef
	round int // how many disks of the same node are better
	score uint64
}

func (p rankedDisk) compare(q rankedDisk) int {
	switch {
	case p.round != q.round:
		return cmp.Compare(p.round, q.round)
	case p.score != q.score:
		return cmp.Compare(p.score, q.score)
	}
	return p.DiskRef.Compare(q.DiskRef)
}

// DiskList has the declared disks without evictionRequested; other disks have no rank (P2). Disks of one node are adjacent.
type DiskList []taggedDisk

type taggedDisk struct {
	ident.DiskRef
	tags, nodeTags []string
	hash           uint64
}

// NewDiskList returns the disks of these nodes.
func NewDiskList(nodes map[string]schema.Node) DiskList {
	var all DiskList
	for name, node := range nodes {
		for diskName, d := range node.Disks {
			if !node.EvictionRequested && !d.EvictionRequested {
				all = append(all, taggedDisk{ident.DiskRef{Node: name, Disk: diskName}, d.Tags, node.Tags, nameHash(name, diskName)})
			}
		}
	}
	return all
}

// rank ranks the disks for an image. It reuses the memory of scratch.
func (l DiskList) rank(image schema.Image, scratch []rankedDisk) *ranking {
	disks, imageHash := scratch[:0], nameHash(image.ID.Name)
	for i, first := 0, 0; i < len(l); i++ {
		if d := &l[i]; hasAll(d.nodeTags, image.NodeSelector) && hasAll(d.tags, image.DiskSelector) {
			disks = append(disks, rankedDisk{DiskRef: d.DiskRef, score: mix64(imageHash ^ d.hash)})
		}
		if i+1 == len(l) || l[i+1].Node != l[i].Node {
			if sameNode := disks[first:]; len(sameNode) > 1 { // all in round 0 until now, so that the score decides
				slices.SortFunc(sameNode, rankedDisk.compare)
				for j := range sameNode {
					sameNode[j].round = j
				}
			}
			first = len(disks)
		}
	}
	return &ranking{disks: disks}
}

func (r *ranking) len() int { return len(r.disks) }

// sortedEagerly is how many ranks are searched one by one before the rest is sorted.
const sortedEagerly = 8

// at returns the disk with rank i, counted from 0.
func (r *ranking) at(i int) ident.DiskRef {
	for r.sorted <= i {
		rest := r.disks[r.sorted:]
		if r.sorted == sortedEagerly {
			slices.SortFunc(rest, rankedDisk.compare)
			r.sorted = len(r.disks)
			break
		}
		least := 0
		for j := 1; j < len(rest); j++ {
			if p, q := &rest[j], &rest[least]; p.round < q.round || p.round == q.round && (p.score < q.score || p.score == q.score && p.compare(*q) < 0) {
				least = j
			}
		}
		rest[0], rest[least] = rest[least], rest[0]
		r.sorted++
	}
	return r.disks[i].DiskRef
}

// order sorts copies by the rank of their disks, best first. Copies on disks without a rank
// are the last ones.
func (r *ranking) order(refs []ident.CopyRef) {
	if len(refs) < 2 {
		return
	}
	ranks := make(map[ident.DiskRef]rankedDisk, len(refs))
	for _, ref := range refs {
		ranks[ref.Disk] = rankedDisk{DiskRef: ref.Disk, round: math.MaxInt}
	}
	for _, p := range r.disks {
		if _, needed := ranks[p.DiskRef]; needed {
			ranks[p.DiskRef] = p
		}
	}
	slices.SortStableFunc(refs, func(a, b ident.CopyRef) int { return ranks[a.Disk].compare(ranks[b.Disk]) })
}

// nameHash returns the hash of some names. It is slow: call it once for each image and each
// disk, not for each pair.
func nameHash(names ...string) uint64 {
	var b []byte
	for _, name := range names {
		b = binary.BigEndian.AppendUint64(b, uint64(len(name)))
		b = append(b, name...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// mix64 is a bijection in which each bit of the result depends on every bit of x. It is the last
// step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators",
// 2014), with David Stafford's constants "Mix13".
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hasAll reports whether tags contain every selector. No selectors match everything.
func hasAll(tags, selectors []string) bool {
	return !slices.ContainsFunc(selectors, func(s string) bool { return !slices.Contains(tags, s) })
}

// Desired returns the desired disks of an image if every disk can take a copy, best first.
func (l DiskList) Desired(image schema.Image) []ident.DiskRef {
	r := l.rank(image, nil)
	copies := min(image.Copies, r.len())
	if image.AllDisks {
		copies = r.len()
	}
	var refs []ident.DiskRef
	for i := range copies {
		refs = append(refs, r.at(i))
	}
	for _, ref := range Subtract(image.Disks, refs) {
		if slices.ContainsFunc(l, func(d taggedDisk) bool { return d.DiskRef == ref }) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// Subtract returns the disks of refs that are not in others.
func Subtract(refs, others []ident.DiskRef) []ident.DiskRef {
	other := map[ident.DiskRef]bool{}
	for _, ref := range others {
		other[ref] = true
	}
	return keep(refs, func(ref ident.DiskRef) bool { return !other[ref] })
}
