package luks

import (
	"crypto/aes"
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/cpu"
)

// groupSize is the number of bytes that are encrypted in parallel. The AES unit of a CPU needs three
// or four cycles for one round of a block, but can start one or two blocks in each cycle. crypto/aes
// processes one block at a time and waits most of the cycles.
const groupSize = 8 * aes.BlockSize

type roundKey [4]uint32

// parallelAES implements AES with the AES instructions of the CPU, eight blocks at a time.
type parallelAES struct{ encryption, decryption []roundKey }

// newParallelAES returns nil if the CPU has no AES instructions.
func newParallelAES(key []byte) *parallelAES {
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
	return &parallelAES{forward, backward}
}

// expand returns the keys of all rounds, as in FIPS 197, section 5.2, for keys of 16 and 32 bytes.
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

// encrypt encrypts all whole groups of b in place, and returns the rest of b.
func (p *parallelAES) encrypt(b []byte, m *mask) []byte {
	groups := len(b) / groupSize
	if groups > 0 {
		encryptGroups(&p.encryption[0], len(p.encryption)-1, &b[0], groups, m)
	}
	return b[groups*groupSize:]
}

// decrypt is the inverse of encrypt.
func (p *parallelAES) decrypt(b []byte, m *mask) []byte {
	groups := len(b) / groupSize
	if groups > 0 {
		decryptGroups(&p.decryption[0], len(p.decryption)-1, &b[0], groups, m)
	}
	return b[groups*groupSize:]
}

// encryptGroups encrypts the given number of groups at b, at least one, with rounds+1 keys. m is the
// first mask; encryptGroups sets it to the mask of the next block. The function cannot be preempted,
// and the garbage collector waits for it, so it must be called for one sector at a time.
//
//go:noescape
func encryptGroups(keys *roundKey, rounds int, b *byte, groups int, m *mask)

// decryptGroups is the inverse of encryptGroups, with the decryption keys.
//
//go:noescape
func decryptGroups(keys *roundKey, rounds int, b *byte, groups int, m *mask)

// substitute applies the S-box of AES to each byte of w.
func substitute(w uint32) uint32

// invert converts the encryption key of a middle round to a decryption key, as in FIPS 197, section
// 5.3.5.
//
//go:noescape
func invert(k *roundKey)
