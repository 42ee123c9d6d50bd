package reconcile

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// ranking is the disks that may hold an image, best first. It is a function of the
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
type ranking struct {
	list   diskList
	places []place // the first sorted ones are the best in order
	sorted int
	shared bool // with others who rank the same: places must not be written to
}

// place is a disk that may hold an image.
type place struct {
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
	name   string
	tags   []string
	number uint64
}

// newDiskList leaves out what is evicted: it has no rank for any image.
func newDiskList(nodes map[string]schema.Node) diskList {
	var g diskList
	for name, node := range nodes {
		if node.EvictionRequested {
			continue
		}
		one := nodeDisks{name: name, tags: node.Tags}
		for diskName, d := range node.Disks {
			if !d.EvictionRequested {
				one.disks = append(one.disks, taggedDisk{diskName, d.Tags, number(name, diskName)})
			}
		}
		g = append(g, one)
	}
	return g
}

// rank ranks the disks for an image. It takes the memory of places.
func (l diskList) rank(image schema.Image, places []place) *ranking {
	r := &ranking{list: l, places: places[:0]}
	own := number(image.ID.Name)
	for n, node := range l {
		if !hasAll(node.tags, image.NodeSelector) {
			continue
		}
		first := len(r.places)
		for i, d := range node.disks {
			if hasAll(d.tags, image.DiskSelector) {
				r.places = append(r.places, place{node: int32(n), disk: int32(i), score: mix(own ^ d.number)})
			}
		}
		of := r.places[first:]
		slices.SortFunc(of, r.compare)
		for i := range of {
			of[i].round = int32(i)
		}
	}
	return r
}

func (r *ranking) compare(p, q place) int {
	switch {
	case p.round != q.round:
		return cmp.Compare(p.round, q.round)
	case p.score != q.score:
		return cmp.Compare(p.score, q.score)
	}
	return compareRefs(r.ref(p), r.ref(q))
}

func (r *ranking) ref(p place) schema.DiskRef {
	node := r.list[p.node]
	return schema.DiskRef{Node: node.name, Disk: node.disks[p.disk].name}
}

func (r *ranking) len() int { return len(r.places) }

// few is how many ranks are looked for one by one before the rest is sorted.
const few = 8

// at returns the disk with rank i, counted from 0.
func (r *ranking) at(i int) schema.DiskRef {
	for r.sorted <= i {
		if r.shared {
			r.places, r.shared = slices.Clone(r.places), false
		}
		rest := r.places[r.sorted:]
		if r.sorted == few {
			slices.SortFunc(rest, r.compare)
			r.sorted = len(r.places)
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
	return r.ref(r.places[i])
}

func (r *ranking) has(ref schema.DiskRef) bool { return r.find(ref) >= 0 }

func (r *ranking) find(ref schema.DiskRef) int {
	return slices.IndexFunc(r.places, func(p place) bool { return r.ref(p) == ref })
}

// order sorts copies by the rank of their disks, best first, and those that have none
// behind.
func (r *ranking) order(keys []Key) {
	if len(keys) < 2 {
		return
	}
	at := make(map[schema.DiskRef]int, len(keys))
	for _, key := range keys {
		at[key.Disk] = -1
	}
	for i, p := range r.places {
		ref := r.ref(p)
		if _, asked := at[ref]; asked {
			at[ref] = i
		}
	}
	slices.SortStableFunc(keys, func(a, b Key) int {
		i, j := at[a.Disk], at[b.Disk]
		switch {
		case i >= 0 && j >= 0 && r.sorted == len(r.places):
			return cmp.Compare(i, j)
		case i >= 0 && j >= 0:
			return r.compare(r.places[i], r.places[j])
		case i < 0 && j < 0:
			return compareRefs(a.Disk, b.Disk)
		}
		return cmp.Compare(j, i) // of the two, the one that has no rank is negative
	})
}

// number is the number of some names. It is slow: once for each image and each disk, and
// not for each pair.
func number(names ...string) uint64 {
	var b []byte
	for _, name := range names {
		b = binary.BigEndian.AppendUint64(b, uint64(len(name)))
		b = append(b, name...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

// mix makes each bit of the result depend on every bit of x, and no two x the same: the
// last step of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators", 2014), with David Stafford's constants "Mix13".
func mix(x uint64) uint64 {
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

// Place is what placement says of one declared disk about an image.
type Place struct {
	Disk schema.DiskRef
	Rank int // 1 is the best; 0: none
	// Why no copy is wanted there; "" where one is.
	Why string
}

// Places tells of every declared disk how it ranks for a declared image, and why it is
// passed over, if it is: those with a rank first.
func (d Desired) Places(o Observed, image string) []Place {
	v := d.scene(o).look(d.Config.Images[image])
	passed := v.passedOver()
	places := make([]Place, 0, v.places.ranked.len())
	for i := range v.places.ranked.len() {
		ref := v.places.ranked.at(i)
		places = append(places, Place{ref, i + 1, passed[ref]})
	}
	var others []Place
	for node, declared := range d.Config.Nodes {
		for name := range declared.Disks {
			if ref := (schema.DiskRef{Node: node, Disk: name}); !v.places.ranked.has(ref) {
				others = append(others, Place{ref, 0, passed[ref]})
			}
		}
	}
	slices.SortFunc(others, func(a, b Place) int { return compareRefs(a.Disk, b.Disk) })
	return append(places, others...)
}
