package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// ranking is the list of disks that match an image, best first (P1). It is a function of the
// configuration alone, so that every node has the same ranking. When a disk is added or
// removed, the order of the others does not change, so that few copies move. Each node's best disk
// ranks before any node's second disk.
//
// The disks are ordered by rendezvous hashing. The score of a disk for an image is
// mix64(H(image name) XOR H(node name, disk name)), and the smallest score is best. The
// input of H is, for each name, its length as 8 bytes, big-endian, and then the name. H is the
// first 8 bytes, big-endian, of the SHA-256 of this input.
//
// A ranking sorts only as far as it is read, since most images use few of many disks.
type ranking struct {
	list   diskList
	disks  []rankedDisk // the first sorted ones are the best in order
	sorted int
	shared bool // disks belongs to the cache and must not be written to
}

// rankedDisk is a disk that matches an image.
type rankedDisk struct {
	node, disk int32 // in the list of disks
	round      int32 // how many disks of the same node are better
	score      uint64
}

// diskList is the declared disks as a list, which is faster to walk than the maps.
type diskList []nodeDisks

type nodeDisks struct {
	name  string
	tags  []string
	disks []taggedDisk
}

type taggedDisk struct {
	name string
	tags []string
	hash uint64
}

// newDiskList returns the disks without those with evictionRequested, which have no rank (P2).
func newDiskList(nodes map[string]schema.Node) diskList {
	var list diskList
	for name, node := range nodes {
		if node.EvictionRequested {
			continue
		}
		one := nodeDisks{name: name, tags: node.Tags}
		for diskName, d := range node.Disks {
			if !d.EvictionRequested {
				one.disks = append(one.disks, taggedDisk{diskName, d.Tags, nameHash(name, diskName)})
			}
		}
		list = append(list, one)
	}
	return list
}

// rank ranks the disks for an image. It reuses the memory of scratch.
func (l diskList) rank(image schema.Image, scratch []rankedDisk) *ranking {
	r := &ranking{list: l, disks: scratch[:0]}
	imageHash := nameHash(image.ID.Name)
	for n, node := range l {
		if !hasAll(node.tags, image.NodeSelector) {
			continue
		}
		first := len(r.disks)
		for i, d := range node.disks {
			if hasAll(d.tags, image.DiskSelector) {
				r.disks = append(r.disks, rankedDisk{node: int32(n), disk: int32(i), score: mix64(imageHash ^ d.hash)})
			}
		}
		sameNode := r.disks[first:] // all in round 0 until now, so that the score decides
		slices.SortFunc(sameNode, r.compare)
		for i := range sameNode {
			sameNode[i].round = int32(i)
		}
	}
	return r
}

func (r *ranking) compare(p, q rankedDisk) int {
	switch {
	case p.round != q.round:
		return cmp.Compare(p.round, q.round)
	case p.score != q.score:
		return cmp.Compare(p.score, q.score)
	}
	return ident.DiskRef.Compare(r.ref(p), r.ref(q))
}

func (r *ranking) ref(p rankedDisk) ident.DiskRef {
	node := r.list[p.node]
	return ident.DiskRef{Node: node.name, Disk: node.disks[p.disk].name}
}

func (r *ranking) len() int { return len(r.disks) }

// sortedEagerly is how many ranks are searched one by one before the rest is sorted.
const sortedEagerly = 8

// at returns the disk with rank i, counted from 0.
func (r *ranking) at(i int) ident.DiskRef {
	for r.sorted <= i {
		if r.shared { // sorting further would change the cached ranking
			r.disks, r.shared = slices.Clone(r.disks), false
		}
		rest := r.disks[r.sorted:]
		if r.sorted == sortedEagerly {
			slices.SortFunc(rest, r.compare)
			r.sorted = len(r.disks)
			break
		}
		least := 0
		for j := range rest {
			if r.compare(rest[j], rest[least]) < 0 {
				least = j
			}
		}
		rest[0], rest[least] = rest[least], rest[0]
		r.sorted++
	}
	return r.ref(r.disks[i])
}

func (r *ranking) has(ref ident.DiskRef) bool { return r.find(ref) >= 0 }

func (r *ranking) find(ref ident.DiskRef) int {
	return slices.IndexFunc(r.disks, func(p rankedDisk) bool { return r.ref(p) == ref })
}

// order sorts copies by the rank of their disks, best first. Copies on disks without a rank
// are the last ones.
func (r *ranking) order(refs []ident.CopyRef) {
	if len(refs) < 2 {
		return
	}
	at := make(map[ident.DiskRef]int, len(refs)) // index in r.disks; -1: no rank
	for _, ref := range refs {
		at[ref.Disk] = -1
	}
	for i, p := range r.disks {
		on := r.ref(p)
		if _, needed := at[on]; needed {
			at[on] = i
		}
	}
	slices.SortStableFunc(refs, func(a, b ident.CopyRef) int {
		i, j := at[a.Disk], at[b.Disk]
		switch {
		case i >= 0 && j >= 0 && r.sorted == len(r.disks):
			return cmp.Compare(i, j)
		case i >= 0 && j >= 0:
			return r.compare(r.disks[i], r.disks[j])
		case i < 0 && j < 0:
			return ident.DiskRef.Compare(a.Disk, b.Disk)
		}
		return cmp.Compare(j, i) // one of them is -1 and sorts last
	})
}

// nameHash returns the hash of some names. It is slow, so that it is computed once for each
// image and each disk, not for each pair.
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
	for _, s := range selectors {
		if !slices.Contains(tags, s) {
			return false
		}
	}
	return true
}

// RankCache keeps the rankings of one configuration, so that a round in which nothing changed
// need not rank again. It keeps a ranking that is needed for the second time: a process that plans once
// needs no memory for it. It is safe for concurrent use.
type RankCache struct {
	mu      sync.Mutex
	list    diskList
	byImage map[string]ranking // by name of the image
	once    map[string]bool    // images that were ranked and are not in byImage
	room    int                // ranks that may still be cached
}

// maxCachedRanks limits a cache to 48 MiB: 24 bytes for each rank.
const maxCachedRanks = 2 << 20

// NewRankCache returns a cache for the disks of these nodes. It stores at most room ranks; 0: it
// caches nothing.
func NewRankCache(nodes map[string]schema.Node, room int) *RankCache {
	return &RankCache{list: newDiskList(nodes), byImage: map[string]ranking{}, once: map[string]bool{}, room: room}
}

// rank ranks the disks for an image of the configuration. It uses the memory scratch for a
// ranking that is not cached.
func (k *RankCache) rank(image schema.Image, scratch []rankedDisk) (r *ranking, cached bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	name := image.ID.Name
	if one, ok := k.byImage[name]; ok {
		return &one, true
	}
	r = k.list.rank(image, scratch)
	if k.room == 0 {
		return r, false
	}
	if !k.once[name] {
		k.once[name] = true
		return r, false
	}
	delete(k.once, name)
	r.disks = append(make([]rankedDisk, 0, r.len()), r.disks...) // scratch has room for the largest ranking
	if most := r.len() - 1; most >= 0 {
		if !image.AllDisks && image.Copies <= sortedEagerly {
			most = min(sortedEagerly-1, most) // most plans read no more
		}
		r.at(most)
	}
	r.shared = true
	k.room = max(0, k.room-r.len())
	k.byImage[name] = *r
	one := *r
	return &one, true
}

// DesiredDisks returns the desired disks of the image if every disk can take a copy, best first.
func (k *RankCache) DesiredDisks(image schema.Image) []ident.DiskRef {
	r, _ := k.rank(image, nil)
	copies := min(image.Copies, r.len())
	if image.AllDisks {
		copies = r.len()
	}
	var refs []ident.DiskRef
	for i := range copies {
		refs = append(refs, r.at(i))
	}
	for _, ref := range Subtract(image.Disks, refs) {
		if k.list.has(ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// has reports whether a disk is declared and not to be evicted.
func (l diskList) has(ref ident.DiskRef) bool {
	return slices.ContainsFunc(l, func(n nodeDisks) bool {
		return n.name == ref.Node && slices.ContainsFunc(n.disks, func(d taggedDisk) bool { return d.name == ref.Disk })
	})
}

// Subtract returns the disks of refs that are not in others.
func Subtract(refs, others []ident.DiskRef) []ident.DiskRef {
	other := map[ident.DiskRef]bool{}
	for _, ref := range others {
		other[ref] = true
	}
	var left []ident.DiskRef
	for _, ref := range refs {
		if !other[ref] {
			left = append(left, ref)
		}
	}
	return left
}
