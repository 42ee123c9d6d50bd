package luks

import (
	"crypto/aes"
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/cpu"
)

// groupSize is how many bytes are in the pipeline together. AES takes three or four
// cycles for a round of a block, and can begin one or two blocks in each cycle:
// crypto/aes, which is given one at a time, waits for most of them.
const groupSize = 8 * aes.BlockSize

type roundKey [4]uint32

// pipeline is AES by the processor's own instructions, eight blocks at a time.
type pipeline struct{ encryption, decryption []roundKey }

// newPipeline returns nil if this processor has no instructions for AES.
func newPipeline(key []byte) *pipeline {
	if !cpu.X86.HasAES {
		return nil
	}
	forward := expand(key)
	backward := make([]roundKey, len(forward))
	last := len(forward) - 1
	for i, k := range forward {
		if i > 0 && i < last {
			invert(&k)
		}
		backward[last-i] = k
	}
	return &pipeline{forward, backward}
}

// expand makes the keys of all rounds: FIPS 197, section 5.2, for 16 and 32 bytes.
func expand(key []byte) []roundKey {
	size := len(key) / 4
	words := make([]uint32, 4*(size+7))
	for i := range size {
		words[i] = binary.LittleEndian.Uint32(key[4*i:])
	}
	constant := uint32(1)
	for i := size; i < len(words); i++ {
		w := words[i-1]
		switch {
		case i%size == 0:
			w = bits.RotateLeft32(substitute(w), -8) ^ constant
			constant = constant<<1 ^ constant>>7*0x11b
		case size == 8 && i%size == 4:
			w = substitute(w)
		}
		words[i] = words[i-size] ^ w
	}
	keys := make([]roundKey, size+7)
	for i := range keys {
		keys[i] = roundKey(words[4*i:])
	}
	return keys
}

// encrypt encrypts whole groups of b, in place, and returns what is left of b.
func (p *pipeline) encrypt(b []byte, m *mask) []byte {
	groups := len(b) / groupSize
	if groups > 0 {
		encryptGroups(&p.encryption[0], len(p.encryption)-1, &b[0], groups, m)
	}
	return b[groups*groupSize:]
}

// decrypt undoes encrypt.
func (p *pipeline) decrypt(b []byte, m *mask) []byte {
	groups := len(b) / groupSize
	if groups > 0 {
		decryptGroups(&p.decryption[0], len(p.decryption)-1, &b[0], groups, m)
	}
	return b[groups*groupSize:]
}

// encryptGroups encrypts so many groups at b, at least one, with rounds+1 keys. It
// begins with m, and leaves the mask of what comes next there. Nothing interrupts it,
// and the garbage collector waits: it is for one sector at a time.
//
//go:noescape
func encryptGroups(keys *roundKey, rounds int, b *byte, groups int, m *mask)

// decryptGroups decrypts them with the keys of decryption.
//
//go:noescape
func decryptGroups(keys *roundKey, rounds int, b *byte, groups int, m *mask)

// substitute puts each byte of w through AES's S-box.
func substitute(w uint32) uint32

// invert makes a key of encryption one of decryption, for a round in the middle: FIPS
// 197, section 5.3.5.
//
//go:noescape
func invert(k *roundKey)
