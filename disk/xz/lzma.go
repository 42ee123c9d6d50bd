package xz

import "encoding/binary"

const (
	minMatch   = 2
	afterMatch = 7 // the states below this one follow a literal

	maxStates    = 16 // 12 are used
	maxPositions = 16
)

// lengths is the model of the length of a match.
type lengths struct {
	isLong, isLonger prob
	low, mid         [maxPositions][8]prob
	high             [256]prob
}

// model contains the probabilities of LZMA. The first entry of each tree is not used.
type model struct {
	isMatch, isLongRep0                 [maxStates][maxPositions]prob
	isRep, isNotRep0, isNotRep1, isRep3 [maxStates]prob
	slots                               [4][64]prob
	special                             [128]prob
	align                               [16]prob
	matchLength, repLength              lengths
	literals                            [16][0x300]prob // lc + lp is at most 4
}

// lzma decodes the compressed chunks of LZMA2.
type lzma struct {
	model
	lc         uint32
	lpMask     uint32
	pbMask     uint32
	state      uint32
	rep        [4]uint32 // latest distances, minus 1
	compressed [inputSize]byte
}

// setProperties sets the parameters of the model. It reports whether they are valid.
func (d *lzma) setProperties(b byte) bool {
	lc, lp, pb := uint32(b%9), uint32(b/9%5), uint32(b/45)
	if pb > 4 || lc+lp > 4 {
		return false
	}
	d.lc, d.lpMask, d.pbMask = lc, 1<<lp-1, 1<<pb-1
	return true
}

// reset sets the state and all probabilities to their initial values.
func (d *lzma) reset() {
	d.state, d.rep = 0, [4]uint32{}
	fill := func(t []prob) {
		for i := range t {
			t[i] = probHalf
		}
	}
	m := &d.model
	for i := range maxStates {
		fill(m.isMatch[i][:])
		fill(m.isLongRep0[i][:])
	}
	for _, t := range []*[maxStates]prob{&m.isRep, &m.isNotRep0, &m.isNotRep1, &m.isRep3} {
		fill(t[:])
	}
	for i := range m.slots {
		fill(m.slots[i][:])
	}
	fill(m.special[:])
	fill(m.align[:])
	for _, l := range []*lengths{&m.matchLength, &m.repLength} {
		l.isLong, l.isLonger = probHalf, probHalf
		for i := range l.low {
			fill(l.low[i][:])
			fill(l.mid[i][:])
		}
		fill(l.high[:])
	}
	for i := range m.literals {
		fill(m.literals[i][:])
	}
}

// decode decodes a chunk, the first size bytes of d.compressed, and appends exactly n bytes to the
// window, which has room for them. It reports whether the chunk is valid.
func (d *lzma) decode(w *window, size, n int) bool {
	c := coder{rng: 1<<32 - 1, code: binary.BigEndian.Uint32(d.compressed[1:]), pos: 5, in: &d.compressed}
	if size < 5 || d.compressed[0] != 0 {
		return false
	}
	out, pos, end := w.buf, w.pos, w.pos+n
	state, rep0, rep1, rep2, rep3 := d.state, d.rep[0], d.rep[1], d.rep[2], d.rep[3]
	var last byte
	if pos > w.start {
		last = out[pos-1]
	}
	for pos < end {
		if c.pos > uint32(size) {
			return false
		}
		position := uint32(pos - w.origin)
		phase := position & d.pbMask % maxPositions
		var one bool
		if c, one = c.normalize().isOne(&d.isMatch[state%maxStates][phase]); !one {
			literals := &d.literals[((position&d.lpMask)<<d.lc+uint32(last)>>(8-d.lc))%16]
			if state < afterMatch {
				c, last = c.literal(literals)
			} else {
				c, last = c.literalUnlike(literals, out[pos-int(rep0)-1])
			}
			out[pos] = last
			pos++
			state = afterLiteral[state%maxStates]
			continue
		}
		length := uint32(0)
		if c, one = c.normalize().isOne(&d.isRep[state%maxStates]); !one {
			rep1, rep2, rep3 = rep0, rep1, rep2
			c, length = d.matchLength.decode(c, phase)
			c, rep0 = d.distance(c, length)
			state = after(state, 7, 10)
		} else if c, one = c.normalize().isOne(&d.isNotRep0[state%maxStates]); !one {
			if c, one = c.normalize().isOne(&d.isLongRep0[state%maxStates][phase]); one {
				c, length = d.repLength.decode(c, phase)
				state = after(state, 8, 11)
			} else {
				length = 1
				state = after(state, 9, 11)
			}
		} else {
			if c, one = c.normalize().isOne(&d.isNotRep1[state%maxStates]); !one {
				rep0, rep1 = rep1, rep0
			} else if c, one = c.normalize().isOne(&d.isRep3[state%maxStates]); !one {
				rep0, rep1, rep2 = rep2, rep0, rep1
			} else {
				rep0, rep1, rep2, rep3 = rep3, rep0, rep1, rep2
			}
			c, length = d.repLength.decode(c, phase)
			state = after(state, 8, 11)
		}
		distance, n := int(rep0)+1, int(length)
		if distance > w.dictionary || distance > pos-w.start || n > end-pos {
			return false
		}
		copyMatch(out, pos, distance, n)
		pos += n
		last = out[pos-1]
	}
	c = c.normalize()
	w.pos = pos
	d.state, d.rep = state, [4]uint32{rep0, rep1, rep2, rep3}
	return c.pos == uint32(size) && c.code == 0
}

// afterLiteral contains the state after a literal.
var afterLiteral = [maxStates]uint32{0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 4, 5}

// after returns the state after a match, which depends on whether the state follows a literal.
func after(state, literal, match uint32) uint32 {
	if state < afterMatch {
		return literal
	}
	return match
}

// decode decodes the length of a match.
func (l *lengths) decode(c coder, phase uint32) (coder, uint32) {
	c, one := c.normalize().isOne(&l.isLong)
	if !one {
		c, n := c.tree(l.low[phase%maxPositions][:])
		return c, n + minMatch
	}
	if c, one = c.normalize().isOne(&l.isLonger); !one {
		c, n := c.tree(l.mid[phase%maxPositions][:])
		return c, n + minMatch + 8
	}
	c, n := c.tree(l.high[:])
	return c, n + minMatch + 16
}

// distance decodes the distance of a match, minus 1.
func (d *lzma) distance(c coder, length uint32) (coder, uint32) {
	c, slot := c.tree(d.slots[min(length-minMatch, 3)][:])
	if slot < 4 {
		return c, slot
	}
	bits := slot/2 - 1
	base := (2 | slot&1) << bits
	if slot < 14 {
		c, v := c.reverseTree(d.special[base-slot:], bits)
		return c, base + v
	}
	c, high := c.direct(bits - 4)
	c, low := c.reverseTree(d.align[:], 4)
	return c, base + high<<4 + low
}

// copyMatch copies n bytes to out[pos:] from distance bytes before. It may overwrite the bytes behind
// them, which are not decoded yet.
func copyMatch(out []byte, pos, distance, n int) {
	if distance >= n && n > 32 {
		copy(out[pos:pos+n], out[pos-distance:])
		return
	}
	if distance >= 8 && len(out)-pos >= n+8 {
		for from, end := pos-distance, pos+n; pos < end; from, pos = from+8, pos+8 {
			binary.LittleEndian.PutUint64(out[pos:], binary.LittleEndian.Uint64(out[from:]))
		}
		return
	}
	for from, end := pos-distance, pos+n; pos < end; from, pos = from+1, pos+1 {
		out[pos] = out[from]
	}
}
