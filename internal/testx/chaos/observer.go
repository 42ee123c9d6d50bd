package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// observer knows what is on the disks, and compares it with the truth. The lock of the cluster guards it.
type observer struct {
	*cluster
	copies map[copyKey]*copyOnDisk // that have a file, at the last look
	gone   map[copyKey]time.Time   // since when a look has found no file, of those that had or should have one
	back   map[*disk]time.Time     // when a disk was last attached
	// everywhere is since when all nodes have declared a generation, and named since when all have declared
	// the name of an image.
	everywhere map[*generation]time.Time
	named      map[string]time.Time
	least      map[string]leastCopies
	torn       map[copyKey]bool          // the suite tore the record, so that the program may not know it as its own any more
	hurt       map[*generation]time.Time // when the suite last damaged or lost a copy
	looks      int
}

// copyKey identifies a copy. A disk that was replaced is another disk.
type copyKey struct {
	disk   *disk
	life   int
	folder string // NAME-UUID
}

// copyOnDisk is a file with a final name, as the observer last read it.
type copyOnDisk struct {
	copyKey
	generation *generation
	evidence   evidence
	unsettled  bool // it may change again without a change of the evidence
	size       int64
	same       bool // its bytes are those of the generation
	rotten     bool // the suite flipped a bit, and the bytes are still wrong
	garbled    bool // the suite tore a small file beside it
}

// evidence changes whenever somebody changes the file.
type evidence struct {
	inode        uint64
	size         int64
	mtime, ctime int64
}

func (k *copyOnDisk) String() string { return k.folder + " on " + k.disk.ref() }

// sound reports whether the suite has not damaged the copy, and its bytes are true.
func (k *copyOnDisk) sound() bool { return k.same && !k.rotten && !k.garbled }

// leastCopies is the least number of copies that a node declared, with the time of the last change.
type leastCopies struct {
	copies  int
	changed time.Time
	before  int // until changed
}

// graceTime is for how long a declaration must have been the same everywhere until the program has to
// keep copies because of it: it reads the directory every second, confirms removals after 5 s, and
// decides about deletions in rounds.
const graceTime = 10 * time.Second

func newObserver(c *cluster) *observer {
	return &observer{
		cluster: c, copies: map[copyKey]*copyOnDisk{}, gone: map[copyKey]time.Time{}, back: map[*disk]time.Time{},
		everywhere: map[*generation]time.Time{}, named: map[string]time.Time{}, torn: map[copyKey]bool{}, hurt: map[*generation]time.Time{}, least: map[string]leastCopies{},
	}
}

// noteDeclared records which generations all nodes declare, after a change of a config directory.
func (o *observer) noteDeclared() {
	now := time.Now()
	for _, m := range o.images {
		named, copies := true, 0
		for _, n := range o.nodes {
			d, ok := n.applied.images[m.name]
			named = named && ok
			if d.copies == 0 && ok {
				d.copies = 1 << 10 // all
			}
			if copies == 0 || d.copies < copies {
				copies = d.copies
			}
		}
		note(o.named, m.name, named, now)
		for _, g := range m.generations {
			declared := !slices.ContainsFunc(o.nodes, func(n *node) bool { return !n.applied.declares(g) })
			note(o.everywhere, g, declared, now)
		}
		if l := o.least[m.name]; l.copies != copies {
			o.least[m.name] = leastCopies{copies, now, l.copies}
		}
	}
}

// note sets since when something has been true, or removes it.
func note[K comparable](since map[K]time.Time, key K, holds bool, now time.Time) {
	if _, known := since[key]; holds && !known {
		since[key] = now
	} else if !holds {
		delete(since, key)
	}
}

// required returns how many copies of a generation the program has to keep: 0 unless all nodes have
// declared it for long enough.
func (o *observer) required(g *generation, now time.Time) int {
	since, ok := o.everywhere[g]
	if !ok || now.Sub(since) < graceTime {
		return 0
	}
	l := o.least[g.image.name]
	copies := l.copies
	if now.Sub(l.changed) < graceTime {
		copies = min(copies, l.before)
	}
	if copies >= 1<<10 { // all: every disk that matches
		return 1
	}
	return copies
}

// counted returns the copies of a generation that the program may count on: the true ones, and those
// whose bytes the suite flipped.
func (o *observer) counted(among map[copyKey]*copyOnDisk, g *generation) []*copyOnDisk {
	var l []*copyOnDisk
	for _, k := range among {
		if k.generation == g && (k.same || k.rotten) {
			l = append(l, k)
		}
	}
	return l
}

// copiesOn returns the copies on a disk, in the order of their names.
func (o *observer) copiesOn(d *disk) []*copyOnDisk {
	var l []*copyOnDisk
	for _, k := range o.copies {
		if k.disk == d {
			l = append(l, k)
		}
	}
	slices.SortFunc(l, func(a, b *copyOnDisk) int { return cmp.Compare(a.folder, b.folder) })
	return l
}

// mayLose reports whether the suite may damage a copy. The program may delete down to the declared
// number at any moment, and one copy may be on a disk that is not there. So as many sound copies as
// are declared, and two at least, must be on other disks that are there.
//
// An old generation may be lost.
func (o *observer) mayLose(k *copyOnDisk) bool {
	g := k.generation
	declared := false
	for _, n := range o.nodes {
		declared = declared || n.applied.declares(g)
	}
	if !declared && !o.truth.declares(g) {
		return o.anyOther(g)
	}
	copies := o.truth.images[g.image.name].copies
	if copies == 0 {
		copies = 1
	}
	others := 0
	for _, other := range o.counted(o.copies, g) {
		if other.disk != k.disk && other.sound() && other.disk.attached && !o.busy[diskOf(other.disk)] {
			others++
		}
	}
	return others >= max(copies, 2)
}

// anyOther reports whether there are sound copies of another generation of the image that all nodes
// declare: then nobody needs this one.
func (o *observer) anyOther(g *generation) bool {
	for other := range o.everywhere {
		if other != g && other.image == g.image && len(o.counted(o.copies, other)) > 1 {
			return true
		}
	}
	return false
}

// forget forgets the copies on a disk that the suite removes.
func (o *observer) forget(d *disk) {
	for _, k := range o.copiesOn(d) {
		o.hurt[k.generation] = time.Now()
	}
	maps.DeleteFunc(o.copies, func(key copyKey, _ *copyOnDisk) bool { return key.disk == d })
}

// forgetCopy forgets a copy that the suite removes.
func (o *observer) forgetCopy(key copyKey) { delete(o.copies, key) }

// noteRot records that the suite changed a byte of a copy.
func (o *observer) noteRot(k *copyOnDisk) {
	o.hurt[k.generation] = time.Now()
	e, err := evidenceOf(k.disk, k.folder)
	if err != nil {
		return // the next look finds that it is gone
	}
	k.evidence, k.same, k.rotten = e, false, true
}

func (o *observer) noteBack(d *disk) { o.back[d] = time.Now() }

// damagedCopies returns the copies that the suite damaged and that the program has not repaired.
func (o *observer) damagedCopies() []*copyOnDisk {
	var l []*copyOnDisk
	for _, k := range o.copies {
		if k.rotten {
			l = append(l, k)
		}
	}
	slices.SortFunc(l, func(a, b *copyOnDisk) int { return cmp.Compare(a.String(), b.String()) })
	return l
}

// established reports whether a use has existed for so long that the daemon of the copy, which was running
// all the time, must have seen it.
func (o *observer) established(u *use, now time.Time) bool {
	n := u.copy.disk.node
	since := u.since
	for _, t := range []time.Time{n.resumed, o.back[u.copy.disk]} {
		if t.After(since) {
			since = t
		}
	}
	return now.Sub(since) > 5*time.Second
}

func (k copyKey) String() string { return fmt.Sprintf("%s on %s", k.folder, k.disk.ref()) }
