package luks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
)

// mask is what a block is xored with before and after AES.
type mask [aes.BlockSize]byte

// blocks is AES with masks, on all blocks of a sector. Its methods work in place on
// whole blocks. They take the mask of the first one, and the mask is used up.
type blocks struct {
	one  cipher.Block
	many *pipeline // nil where the processor has none
}

func newBlocks(key []byte) (blocks, error) {
	one, err := aes.NewCipher(key)
	if err != nil {
		return blocks{}, err
	}
	return blocks{one, newPipeline(key)}, nil
}

func (c blocks) encrypt(b []byte, m *mask) {
	if c.many != nil {
		b = c.many.encrypt(b, m)
	}
	oneByOne(b, m, c.one.Encrypt)
}

func (c blocks) decrypt(b []byte, m *mask) {
	if c.many != nil {
		b = c.many.decrypt(b, m)
	}
	oneByOne(b, m, c.one.Decrypt)
}

// oneByOne takes a whole piece through one step before the next. x/crypto/xts takes
// a block through all of them, and the processor waits for its own stores.
func oneByOne(b []byte, m *mask, step func(dst, src []byte)) {
	const pieceSize = 512
	for len(b) > 0 {
		var masks [pieceSize]byte
		piece := b[:min(pieceSize, len(b))]
		fillMasks(masks[:len(piece)], m)
		subtle.XORBytes(piece, piece, masks[:])
		for block := piece; len(block) > 0; block = block[aes.BlockSize:] {
			step(block[:aes.BlockSize], block[:aes.BlockSize])
		}
		subtle.XORBytes(piece, piece, masks[:])
		b = b[len(piece):]
	}
}

// fillMasks fills masks with m, m times x, m times x², … in GF(2¹²⁸), and leaves the
// next one in m.
func fillMasks(masks []byte, m *mask) {
	low, high := binary.LittleEndian.Uint64(m[:]), binary.LittleEndian.Uint64(m[8:])
	for ; len(masks) > 0; masks = masks[aes.BlockSize:] {
		binary.LittleEndian.PutUint64(masks, low)
		binary.LittleEndian.PutUint64(masks[8:], high)
		carry := uint64(int64(high)>>63) & 0x87 // no branch: masks are secret
		low, high = low<<1^carry, high<<1|low>>63
	}
	binary.LittleEndian.PutUint64(m[:], low)
	binary.LittleEndian.PutUint64(m[8:], high)
}
