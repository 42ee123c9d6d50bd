package xz

// prob is the probability of the bit 0, in units of 1/2048.
type prob = uint16

const probHalf = 1 << 10

// inputSize is a power of two, so that an index modulo inputSize needs no check of bounds. It is
// larger than a chunk of LZMA2 and the bytes that the decoder may read behind it.
const inputSize = 1 << 17

// coder is the state of the range decoder. Its methods return the next state, instead of changing it,
// because the compiler then keeps it in registers.
type coder struct {
	rng, code uint32
	pos       uint32
	in        *[inputSize]byte
}

// normalize must precede each bit. It may read behind the end of a damaged chunk.
func (c coder) normalize() coder {
	if c.rng < 1<<24 {
		c.rng <<= 8
		c.code = c.code<<8 | uint32(c.in[c.pos%inputSize])
		c.pos++
	}
	return c
}

// isOne decodes a bit that a branch depends on.
func (c coder) isOne(p *prob) (coder, bool) {
	bound := c.rng >> 11 * uint32(*p)
	if c.code < bound {
		c.rng = bound
		*p += (1<<11 - *p) >> 5
		return c, false
	}
	c.rng -= bound
	c.code -= bound
	*p -= *p >> 5
	return c, true
}

// bit decodes a bit without a branch, which the processor could not predict. zero is 0 for the bit 1,
// and has all bits set for the bit 0.
func (c coder) bit(p *prob) (next coder, zero uint32) {
	v := uint32(*p)
	bound := c.rng >> 11 * v
	zero = uint32(int64(uint64(c.code)-uint64(bound)) >> 32)
	c.rng = bound&zero | (c.rng-bound)&^zero
	c.code -= bound &^ zero
	*p = prob(v - uint32(int32(v-2017&zero)>>5)) // v-v>>5, or v+(2048-v)>>5
	return c, zero
}

// tree decodes a number below the length of t, which is a power of two, from the highest bit on.
func (c coder) tree(t []prob) (coder, uint32) {
	m := uint32(1)
	for m < uint32(len(t)) {
		var zero uint32
		c, zero = c.normalize().bit(&t[m])
		m += m + 1 + zero
	}
	return c, m - uint32(len(t))
}

// reverseTree decodes a number of so many bits, from the lowest bit on.
func (c coder) reverseTree(t []prob, bits uint32) (coder, uint32) {
	m, v := uint32(1), uint32(0)
	for i := range bits {
		var zero uint32
		c, zero = c.normalize().bit(&t[m])
		m += m + 1 + zero
		v |= (1 + zero) << i
	}
	return c, v
}

// direct decodes a number of so many bits that have no probabilities.
func (c coder) direct(bits uint32) (coder, uint32) {
	v := uint32(0)
	for range bits {
		c = c.normalize()
		c.rng >>= 1
		c.code -= c.rng
		zero := uint32(int32(c.code) >> 31)
		c.code += c.rng & zero
		v += v + 1 + zero
	}
	return c, v
}

// literal decodes a byte.
func (c coder) literal(t *[0x300]prob) (coder, byte) {
	m := uint32(1)
	for m < 0x100 {
		var zero uint32
		c, zero = c.normalize().bit(&t[m])
		m += m + 1 + zero
	}
	return c, byte(m)
}

// literalUnlike decodes a byte after a match. It probably differs from the byte that would continue
// the match.
func (c coder) literalUnlike(t *[0x300]prob, match byte) (coder, byte) {
	m, unlike, like := uint32(1), uint32(match), uint32(0x100)
	for m < 0x100 {
		unlike <<= 1
		matchBit := unlike & like
		var zero uint32
		c, zero = c.normalize().bit(&t[like+matchBit+m])
		like &= matchBit ^ zero
		m += m + 1 + zero
	}
	return c, byte(m)
}
