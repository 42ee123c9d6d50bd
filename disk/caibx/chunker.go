package caibx

import (
	"fmt"
	"math"
	"math/bits"
)

// maxAvg is the greatest average size of content-defined chunks. For larger sizes the formula of
// casync is not useful any more.
const maxAvg = 4 << 20

// Chunker finds the chunks of a stream. The caller passes the bytes in pieces of any size, and the chunks do not
// depend on these pieces. The ends of the chunks are those of casync.
//
// desync never cuts a chunk at exactly the least size. Its index of the same file may therefore have
// a few other chunks.
type Chunker struct {
	first, max int64 // the lengths at which a chunk may first end, and must end
	cut        cutTest

	length int64  // of the current chunk, so far
	hash   uint32 // of its last windowSize bytes, if length >= first
}

// NewChunker returns a Chunker at the beginning of a stream.
func NewChunker(s Sizes) (*Chunker, error) {
	switch err := s.check(); {
	case err != nil:
		return nil, err
	case s.IsBlocks():
		return &Chunker{first: int64(s.Max), max: int64(s.Max)}, nil
	case s.Max < windowSize:
		return nil, fmt.Errorf("the greatest size %d of a chunk is less than %d", s.Max, windowSize)
	case s.Avg > maxAvg:
		return nil, fmt.Errorf("the average size %d of a chunk is greater than %d", s.Avg, maxAvg)
	}
	return &Chunker{first: int64(max(s.Min, windowSize)), max: int64(s.Max), cut: newCutTest(discriminator(s))}, nil
}

// discriminator returns the number d: a chunk ends where the hash is d-1 modulo d.
func discriminator(s Sizes) uint32 {
	d := uint64(float64(s.Avg) / (-1.42888852e-7*float64(s.Avg) + 1.33237515))
	return uint32(min(max(d, s.Min), s.Max))
}

// Next returns how many bytes of b[at:] belong to the current chunk, and whether the chunk ends with
// them. If it ends, the next call begins a new chunk. If not, all bytes of b[at:] belong to the chunk.
// Before b[at:], b must have the bytes of the current chunk that earlier calls consumed: all of them, or the
// last windowSize bytes. The last chunk of a stream ends with the stream.
func (c *Chunker) Next(b []byte, at int) (n int, end bool) {
	from := at + int(max(0, min(int64(len(b)-at), c.first-c.length)))
	if c.length < c.first {
		c.length += int64(from - at)
		switch {
		case c.length < c.first:
			return from - at, false
		case c.first == c.max:
			return from - at, c.restart()
		}
		if c.hash = buzhash((*[windowSize]byte)(b[from-windowSize:])); c.cut.at(c.hash) {
			return from - at, c.restart()
		}
	}
	to := from + int(min(int64(len(b)-from), c.max-c.length))
	n, end = c.scan(b[from:to], b[from-windowSize:to-windowSize])
	if c.length += int64(n); end || c.length == c.max {
		end = c.restart()
	}
	return from + n - at, end
}

// CutsZerosAtMax reports whether a chunk that begins in a long run of zeros has the greatest size. This
// is true for nearly all Sizes: the hash of a run of equal bytes does not change.
func (c *Chunker) CutsZerosAtMax() bool {
	return c.first == c.max || !c.cut.at(buzhash(new([windowSize]byte)))
}

func (c *Chunker) restart() bool {
	c.length = 0
	return true
}

// scan moves the window: for each byte of entering that enters it, a byte of leaving leaves it. scan returns
// how many bytes of entering belong to the chunk, and whether the chunk ends with them.
func (c *Chunker) scan(entering, leaving []byte) (n int, end bool) {
	h, cut := c.hash, c.cut
	leaving = leaving[:len(entering)]
	for i, b := range entering {
		change := leavingTable[leaving[i]] ^ buzhashTable[b] // does not wait for h
		h = bits.RotateLeft32(h, 1) ^ change
		if cut.maybe(h) && cut.at(h) {
			return i + 1, true
		}
	}
	c.hash = h
	return len(entering), false
}

// cutTest tests whether the hash is d-1 modulo d, without a division: h+1 is a multiple of d = odd·2^k
// if and only if h+1 times the inverse of odd, rotated by k, is at most (2^32-1)/d.
type cutTest struct {
	d, inverse, limit uint32
	shift             int
}

func newCutTest(d uint32) cutTest {
	t := cutTest{d: d, limit: math.MaxUint32 / d, shift: bits.TrailingZeros32(d)}
	odd := d >> t.shift
	t.inverse = odd
	for range 4 { // each step doubles the number of right bits, of which there are 3 at first
		t.inverse *= 2 - odd*t.inverse
	}
	return t
}

// maybe reports whether the hash may be d-1 modulo d. The result false is always right. The result true is wrong only for a
// hash of 2^32-1.
func (t cutTest) maybe(h uint32) bool { return bits.RotateLeft32((h+1)*t.inverse, -t.shift) <= t.limit }

// at reports whether the hash is d-1 modulo d.
func (t cutTest) at(h uint32) bool { return h%t.d == t.d-1 }
