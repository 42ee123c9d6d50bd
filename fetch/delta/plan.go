package delta

import (
	"context"
	"sort"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

// place is where the bytes of a chunk come from.
type place uint8

const (
	zeros    place = iota
	fromSeed       // from an offset in a seed
	repeated       // from an offset in the partial file
	missing        // from the upstream
)

// location is the place of one chunk.
type location struct {
	place place
	seed  *seed
	from  int64 // offset of the chunk in the seed or in the partial file
}

// run is a part of the image whose bytes come from one place.
type run struct {
	location
	first, end    int64 // the items from first to before end
	offset, limit int64 // the bytes from offset to before limit
	fetcher       *fetcher
}

const (
	// maxRunItems limits the time of one call of plan.
	maxRunItems = 1 << 16
	// maxZeroIDs is the number of lengths for which the id of zeros is computed. An index needs two or three.
	maxZeroIDs = 8
)

// planner finds the runs of an image, in order.
type planner struct {
	index *caibx.Table
	seeds []*seed
	// single is true if each missing chunk is a run of its own, because each is a file of a chunk store.
	single bool
	all    bool // every chunk is missing

	next     int64              // the first item without a run
	located  int64              // items before this one have been located; the last of them is before
	previous location           // of before
	zeroIDs  map[int64]caibx.ID // of the lengths that may be chunks of zeros
	before   caibx.Item         // the item before
}

func newPlanner(index *caibx.Table, seeds []*seed, single bool) planner {
	return planner{index: index, seeds: seeds, single: single, zeroIDs: map[int64]caibx.ID{}}
}

// rewind sets the first item to the one that contains an offset of the image.
func (p *planner) rewind(offset int64) {
	p.next = itemAt(p.index, offset)
	p.located, p.previous, p.before = 0, location{}, caibx.Item{}
	if p.next < p.index.Len() {
		for _, s := range p.seeds {
			s.rewind(p.index.Item(p.next).Offset)
		}
	}
}

// itemAt returns the number of the item that contains an offset of the image.
func itemAt(index *caibx.Table, offset int64) int64 {
	return int64(sort.Search(int(index.Len()), func(n int) bool { return index.Item(int64(n)).End() > offset }))
}

// plan returns the next run, nil after the last one.
func (p *planner) plan() *run {
	if p.next == p.index.Len() {
		return nil
	}
	i := p.index.Item(p.next)
	r := &run{location: p.locate(p.next, i), first: p.next, offset: i.Offset, limit: i.End()}
	for p.next++; p.next < p.index.Len() && p.next < r.first+maxRunItems; p.next++ {
		i = p.index.Item(p.next)
		if !p.continues(r, p.locate(p.next, i), i) {
			break
		}
		r.limit = i.End()
	}
	r.end = p.next
	return r
}

// continues reports whether a chunk at l is the next one of r.
func (p *planner) continues(r *run, l location, i caibx.Item) bool {
	if l.place != r.place {
		return false
	}
	switch l.place {
	case zeros:
		return true
	case fromSeed:
		return l.seed == r.seed && l.from-r.from == i.Offset-r.offset
	case missing:
		return !p.single
	}
	return false
}

// locate returns the place of an item. The best one is the same offset in a seed: its blocks can be shared. The next
// best is the chunk after the one before, which is read in order.
func (p *planner) locate(n int64, i caibx.Item) (l location) {
	if p.all {
		return location{place: missing}
	}
	if n == p.located-1 { // it did not continue the run before
		return p.previous
	}
	defer func() { p.located, p.previous, p.before = n+1, l, i }()
	if p.isZero(n, i) {
		return location{place: zeros}
	}
	for _, s := range p.seeds {
		if s.hasAt(i) {
			return location{fromSeed, s, i.Offset}
		}
	}
	var found location
	for _, s := range p.seeds {
		from, has := s.find(i)
		if !has {
			continue
		}
		if here := (location{fromSeed, s, from}); found.seed == nil || p.follows(here) {
			found = here
		}
	}
	if found.seed != nil {
		return found
	}
	if first, has := p.index.Find(i.ID); has && first < n && p.index.Item(first).Length == i.Length {
		return location{place: repeated, from: p.index.Item(first).Offset}
	}
	return location{place: missing}
}

// follows reports whether l is the chunk after the previous one in the same seed.
func (p *planner) follows(l location) bool {
	return p.previous.seed == l.seed && p.previous.from+p.before.Length == l.from
}

// isZero reports whether the item is a chunk of zeros. To compute the id of zeros costs as much as to hash them, so it is
// computed only for lengths that runs of zeros have: the greatest one, that of two equal chunks in a row, and the last one.
func (p *planner) isZero(n int64, i caibx.Item) bool {
	h := p.index.Header()
	id, known := p.zeroIDs[i.Length]
	switch {
	case known:
		return i.ID == id
	case uint64(i.Length) == h.Max, n == p.index.Len()-1, i.ID == p.before.ID && i.Length == p.before.Length && len(p.zeroIDs) < maxZeroIDs:
		id = h.Digest.ZeroID(i.Length)
		p.zeroIDs[i.Length] = id
	default:
		return false
	}
	return i.ID == id
}

// survey counts the bytes of the image, and those that are missing from an offset on. The planner must be rewound after it.
func (p *planner) survey(ctx context.Context, offset int64) (Survey, error) {
	s := Survey{Size: p.index.ImageSize(), Index: int64(len(p.index.Index()))}
	from := s.Size // the chunk that contains offset is fetched whole
	if n := itemAt(p.index, offset); n < p.index.Len() {
		from = p.index.Item(n).Offset
	}
	p.rewind(0)
	for {
		if err := ctx.Err(); err != nil {
			return s, context.Cause(ctx)
		}
		r := p.plan()
		if r == nil {
			return s, nil
		}
		if r.place != zeros {
			s.Data += r.limit - r.offset
		}
		if r.place == missing {
			s.Missing += max(0, r.limit-max(r.offset, from))
		}
	}
}
