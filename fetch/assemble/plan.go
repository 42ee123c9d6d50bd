package assemble

import (
	"context"
	"iter"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Segment is a part of an image.
type Segment struct {
	Offset, Length int64
	Hash           Hash // nil: not known, so the segment is not verified when it arrives
}

// End returns the offset after the segment.
func (s Segment) End() int64 { return s.Offset + s.Length }

// Hash is the hash of a segment.
type Hash interface {
	Matches(segment []byte) bool
}

// place is where the bytes of a segment come from.
type place uint8

const (
	zeros    place = iota
	fromSeed       // from an offset in a seed
	moved          // from seeds, in pieces that an index finds; the segment must then be verified
	repeated       // from an offset in the partial file
	missing        // from a provider
)

// location is the place of one segment.
type location struct {
	place place
	seed  *seed
	from  int64 // offset of the segment in the seed or in the partial file
}

// run is a part of the image whose bytes come from one place.
type run struct {
	location
	first, end    int64 // the segments [first, end)
	offset, limit int64 // the bytes [offset, limit)
}

const (
	// maxRun limits the segments of a run, and thus the time of nextRun. maxMissingRun limits the segments of a missing run, and
	// thus their memory.
	maxRun, maxMissingRun = 1 << 16, 1 << 10
)

// list has the segments of an image, and the places where this node has them. The segments leave no gaps.
type list interface {
	len() int64
	// at returns the number of the segment that contains an offset, or len at the end of the image.
	at(offset int64) int64
	// extent returns a segment without its hash.
	extent(n int64) Segment
	hash(n int64) (Hash, error)
	// locate returns the place of a segment. It is called for most segments in order, and for some again.
	locate(n int64, s Segment) (location, error)
}

// Plan finds out, in order, where the bytes of an image come from: first the places on this node, then the providers. It is
// for one goroutine.
type Plan struct {
	list
	next  int64   // the first segment without a run
	seeds []*seed // Close closes their indexes
}

// Close closes the indexes of the seeds, and the index of FindMoved.
func (p *Plan) Close() {
	closeSeeds(p.seeds)
	if c, ok := p.list.(*chunks); ok && c.moved != nil {
		_ = c.moved.Close() // it was only read
	}
}

// size returns the offset of the end of the image.
func (p *Plan) size() int64 {
	if p.len() == 0 {
		return 0
	}
	return p.extent(p.len() - 1).End()
}

// nextRun returns the next run, nil after the last one.
func (p *Plan) nextRun() (*run, error) {
	if p.next == p.len() {
		return nil, nil
	}
	s := p.extent(p.next)
	l, err := p.locate(p.next, s)
	if err != nil {
		return nil, err
	}
	r := &run{location: l, first: p.next, offset: s.Offset, limit: s.End()}
	most := int64(maxRun)
	if l.place == missing {
		most = maxMissingRun
	}
	for p.next++; p.next < p.len() && p.next < r.first+most; p.next++ {
		s = p.extent(p.next)
		if l, err = p.locate(p.next, s); err != nil {
			return nil, err
		}
		if !r.continues(l, s) {
			break
		}
		r.limit = s.End()
	}
	r.end = p.next
	return r, nil
}

// continues reports whether the next segment s, at the location l, belongs to the run r.
func (r *run) continues(l location, s Segment) bool {
	switch {
	case l.place != r.place || l.place == repeated:
		return false
	case l.place == fromSeed:
		return l.seed == r.seed && l.from-r.from == s.Offset-r.offset
	}
	return true
}

// Survey is what an image costs, in bytes.
type Survey struct {
	Index   int64 // of the index
	Size    int64 // of the image
	Data    int64 // of the segments that are not zeros
	Missing int64 // of the segments from the providers; a repeated item of an index counts once
}

// Survey counts the bytes of the image, and the bytes from an offset on that are missing.
func (p *Plan) Survey(ctx context.Context, offset int64) (Survey, error) {
	s := Survey{Size: p.size()}
	from := s.Size // the segment that contains offset is missing as a whole
	if n := p.at(offset); n < p.len() {
		from = p.extent(n).Offset
	}
	p.next = 0
	for {
		if ctx.Err() != nil {
			return s, context.Cause(ctx)
		}
		r, err := p.nextRun()
		if r == nil || err != nil {
			return s, err
		}
		if r.place != zeros {
			s.Data += r.limit - r.offset
		}
		if r.place == missing {
			s.Missing += max(0, r.limit-max(r.offset, from))
		}
	}
}

// Missing yields the numbers of the segments that are missing, in order, until there is an error.
func (p *Plan) Missing() iter.Seq[int64] {
	return func(yield func(int64) bool) {
		p.next = 0
		for r, err := p.nextRun(); r != nil && err == nil; r, err = p.nextRun() {
			for n := r.first; r.place == missing && n < r.end; n++ {
				if !yield(n) {
					return
				}
			}
		}
	}
}

// Single is the plan of one segment, which is missing.
func Single(s Segment) *Plan { return &Plan{list: single{s}} }

type single struct{ Segment }

func (s single) len() int64 { return 1 }

func (s single) at(offset int64) int64 {
	if offset < s.End() {
		return 0
	}
	return 1
}

func (s single) extent(int64) Segment { return Segment{Offset: s.Offset, Length: s.Length} }

func (s single) hash(int64) (Hash, error) { return s.Hash, nil }

func (s single) locate(int64, Segment) (location, error) { return location{place: missing}, nil }

// Blocks returns the plan of an image of size bytes in blocks of one length; the last block may be shorter. Block n is missing
// if isMissing(n) is true, and zeros if not. The blocks have no hashes, so the providers have to verify the bytes.
func Blocks(size, length int64, isMissing func(n int64) bool) *Plan {
	return &Plan{list: blocks{size, length, isMissing}}
}

type blocks struct {
	size, length int64
	isMissing    func(n int64) bool
}

func (b blocks) len() int64 { return (b.size + b.length - 1) / b.length }

func (b blocks) at(offset int64) int64 { return offset / b.length }

func (b blocks) extent(n int64) Segment {
	return Segment{Offset: n * b.length, Length: min(b.length, b.size-n*b.length)}
}

func (b blocks) hash(int64) (Hash, error) { return nil, nil }

func (b blocks) locate(n int64, _ Segment) (location, error) {
	if b.isMissing(n) {
		return location{place: missing}, nil
	}
	return location{place: zeros}, nil
}

// ByManifest returns the plan of the image with a chunk manifest. A chunk is zeros, in a seed at the same place, or missing.
// After FindMoved, it can also be moved. The caller closes the Plan and the manifest.
func ByManifest(m *disk.Manifest, seeds ...Seed) *Plan {
	opened := newSeeds(seeds)
	return &Plan{list: &chunks{manifest: m, seeds: opened}, seeds: opened}
}

// chunks is the list of the chunks of a manifest.
type chunks struct {
	manifest *disk.Manifest
	seeds    []*seed
	moved    *items // nil: it is not known what moved
}

func (c *chunks) len() int64 { return c.manifest.Chunks() }

func (c *chunks) at(offset int64) int64 { return (offset + disk.ChunkSize - 1) / disk.ChunkSize }

func (c *chunks) extent(n int64) Segment {
	return Segment{Offset: n * disk.ChunkSize, Length: c.manifest.ChunkLength(n)}
}

func (c *chunks) hash(n int64) (Hash, error) { return c.manifest.Hash(n) }

// locate compares the hashes in the manifests. A seed whose hashes are of another algorithm has no chunk of the image.
func (c *chunks) locate(n int64, s Segment) (location, error) {
	zero, err := c.manifest.IsZero(n)
	if err != nil || zero {
		return location{place: zeros}, err
	}
	want, err := c.manifest.Hash(n)
	if err != nil {
		return location{}, err
	}
	for _, seed := range c.seeds {
		if n >= seed.Manifest.Chunks() || seed.Manifest.ChunkLength(n) != s.Length { // a peer may claim any size with the same hashes
			continue
		}
		if hash, err := seed.Manifest.Hash(n); err == nil && hash == want {
			return location{fromSeed, seed, s.Offset}, nil
		}
	}
	if c.moved != nil && c.hasMoved(s) {
		return location{place: moved}, nil
	}
	return location{place: missing}, nil
}
