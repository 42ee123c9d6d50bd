package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// Ranking is the disks that may hold an image, best first. It is a function of the
// configuration alone, so every node has the same one; when a disk comes or goes the
// order of the others stays, so little moves. Every node's best disk comes before any
// node's second.
//
// The score of a disk for an image (rendezvous hashing) is [mix] of the exclusive or of
// two numbers, those of their names; the smallest is best. The number of some names is
// the first 8 bytes, big-endian, of the SHA-256 of all of them, each preceded by its
// length as 8 bytes, big-endian. A disk has the names of its node and its own.
//
// It sorts no further than it is asked: with many disks few of them matter.
type Ranking struct {
	list   diskList
	disks  []rankedDisk // the first sorted ones are the best in order
	sorted int
	shared bool // with others who rank the same: places must not be written to
}

// rankedDisk is a disk that may hold an image.
type rankedDisk struct {
	node, disk int32 // in the list of disks
	round      int32 // how many disks of the same node are better
	score      uint64
}

// diskList is the declared disks as a list, which costs less to walk over for every image.
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

// NewDiskList leaves out what is evicted: it has no rank for any image.
func NewDiskList(nodes map[string]schema.Node) diskList {
	var g diskList
	for name, node := range nodes {
		if node.EvictionRequested {
			continue
		}
		one := nodeDisks{name: name, tags: node.Tags}
		for diskName, d := range node.Disks {
			if !d.EvictionRequested {
				one.disks = append(one.disks, taggedDisk{diskName, d.Tags, NameHash(name, diskName)})
			}
		}
		g = append(g, one)
	}
	return g
}

// Rank ranks the disks for an image. It takes the memory of places.
func (l diskList) Rank(image schema.Image, places []rankedDisk) *Ranking {
	r := &Ranking{list: l, disks: places[:0]}
	own := NameHash(image.ID.Name)
	for n, node := range l {
		if !hasAll(node.tags, image.NodeSelector) {
			continue
		}
		first := len(r.disks)
		for i, d := range node.disks {
			if hasAll(d.tags, image.DiskSelector) {
				r.disks = append(r.disks, rankedDisk{node: int32(n), disk: int32(i), score: Mix64(own ^ d.hash)})
			}
		}
		of := r.disks[first:]
		slices.SortFunc(of, r.compare)
		for i := range of {
			of[i].round = int32(i)
		}
	}
	return r
}

func (r *Ranking) compare(p, q rankedDisk) int {
	switch {
	case p.round != q.round:
		return cmp.Compare(p.round, q.round)
	case p.score != q.score:
		return cmp.Compare(p.score, q.score)
	}
	return CompareDisks(r.ref(p), r.ref(q))
}

func (r *Ranking) ref(p rankedDisk) schema.DiskRef {
	node := r.list[p.node]
	return schema.DiskRef{Node: node.name, Disk: node.disks[p.disk].name}
}

func (r *Ranking) Len() int { return len(r.disks) }

// sortedEagerly is how many ranks are looked for one by one before the rest is sorted.
const sortedEagerly = 8

// At returns the disk with rank i, counted from 0.
func (r *Ranking) At(i int) schema.DiskRef {
	for r.sorted <= i {
		if r.shared {
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

func (r *Ranking) has(ref schema.DiskRef) bool { return r.find(ref) >= 0 }

func (r *Ranking) find(ref schema.DiskRef) int {
	return slices.IndexFunc(r.disks, func(p rankedDisk) bool { return r.ref(p) == ref })
}

// order sorts copies by the rank of their disks, best first, and those that have none
// behind.
func (r *Ranking) order(keys []CopyRef) {
	if len(keys) < 2 {
		return
	}
	at := make(map[schema.DiskRef]int, len(keys))
	for _, key := range keys {
		at[key.Disk] = -1
	}
	for i, p := range r.disks {
		ref := r.ref(p)
		if _, asked := at[ref]; asked {
			at[ref] = i
		}
	}
	slices.SortStableFunc(keys, func(a, b CopyRef) int {
		i, j := at[a.Disk], at[b.Disk]
		switch {
		case i >= 0 && j >= 0 && r.sorted == len(r.disks):
			return cmp.Compare(i, j)
		case i >= 0 && j >= 0:
			return r.compare(r.disks[i], r.disks[j])
		case i < 0 && j < 0:
			return CompareDisks(a.Disk, b.Disk)
		}
		return cmp.Compare(j, i) // of the two, the one that has no rank is negative
	})
}

// NameHash is the number of some names. It is slow: once for each image and each disk, and
// not for each pair.
func NameHash(names ...string) uint64 {
	var b []byte
	for _, name := range names {
		b = binary.BigEndian.AppendUint64(b, uint64(len(name)))
		b = append(b, name...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// Mix64 makes each bit of the result depend on every bit of x, and no two x the same: the
// last step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014), with David Stafford's constants "Mix13".
func Mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hasAll reports whether tags hold every selector. No selector matches anything.
func hasAll(tags, selectors []string) bool {
	for _, s := range selectors {
		if !slices.Contains(tags, s) {
			return false
		}
	}
	return true
}

// DiskRank is what placement says of one declared disk about an image.
type DiskRank struct {
	Disk schema.DiskRef
	Rank int // 1 is the best; 0: none
	// Reason no copy is wanted there; "" where one is.
	Reason string
}

// RankDisks tells of every declared disk how it ranks for a declared image, and why it is
// passed over, if it is: those with a rank first.
func (d Desired) RankDisks(o Observed, image string) []DiskRank {
	v := d.NewIndex(o).NewImagePlanner(d.Config.Images[image])
	passed := v.passedOver()
	places := make([]DiskRank, 0, v.Placement.ranked.Len())
	for i := range v.Placement.ranked.Len() {
		ref := v.Placement.ranked.At(i)
		places = append(places, DiskRank{ref, i + 1, passed[ref]})
	}
	var others []DiskRank
	for node, declared := range d.Config.Nodes {
		for name := range declared.Disks {
			if ref := (schema.DiskRef{Node: node, Disk: name}); !v.Placement.ranked.has(ref) {
				others = append(others, DiskRank{ref, 0, passed[ref]})
			}
		}
	}
	slices.SortFunc(others, func(a, b DiskRank) int { return CompareDisks(a.Disk, b.Disk) })
	return append(places, others...)
}

// RankCache keep how the disks of one configuration are ranked, so that a round in which
// nothing changed need not rank them again. Any goroutine may ask.
type RankCache struct {
	mu      sync.Mutex
	list    diskList
	byImage map[string]Ranking // by name of the image
	room    int                // for places
}

// MaxCachedRanks is for how many places there is room: 48 MiB.
const MaxCachedRanks = 2 << 20

func NewRankCache(nodes map[string]schema.Node, room int) *RankCache {
	return &RankCache{list: NewDiskList(nodes), byImage: map[string]Ranking{}, room: room}
}

// rank ranks the disks for an image of the configuration. places is memory that may be
// used where the ranking is not kept.
func (k *RankCache) rank(image schema.Image, places []rankedDisk) (r *Ranking, kept bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.byImage[image.ID.Name]; ok {
		return &one, true
	}
	if k.room == 0 {
		return k.list.Rank(image, places), false
	}
	r = k.list.Rank(image, nil)
	r.disks = slices.Clip(r.disks)
	if most := r.Len() - 1; most >= 0 {
		if !image.AllDisks && image.Copies <= sortedEagerly {
			most = min(sortedEagerly-1, most) // more are not looked at, mostly
		}
		r.At(most)
	}
	r.shared = true
	k.room = max(0, k.room-r.Len())
	k.byImage[image.ID.Name] = *r
	one := *r
	return &one, true
}

// DesiredDisks are the disks that should have a copy of the image if all can, best first.
func (k *RankCache) DesiredDisks(image schema.Image) []schema.DiskRef {
	r, _ := k.rank(image, nil)
	copies := min(image.Copies, r.Len())
	if image.AllDisks {
		copies = r.Len()
	}
	var refs []schema.DiskRef
	for i := range copies {
		refs = append(refs, r.At(i))
	}
	for _, ref := range Subtract(image.Disks, refs) {
		if k.list.has(ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

// has reports whether a disk is declared, and not evicted.
func (l diskList) has(ref schema.DiskRef) bool {
	return slices.ContainsFunc(l, func(n nodeDisks) bool {
		return n.name == ref.Node && slices.ContainsFunc(n.disks, func(d taggedDisk) bool { return d.name == ref.Disk })
	})
}

// Subtract are those of refs that others has not.
func Subtract(refs, others []schema.DiskRef) []schema.DiskRef {
	other := map[schema.DiskRef]bool{}
	for _, ref := range others {
		other[ref] = true
	}
	var left []schema.DiskRef
	for _, ref := range refs {
		if !other[ref] {
			left = append(left, ref)
		}
	}
	return left
}
