package luks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// xts is XTS-AES as in IEEE 1619, for whole blocks. It does what x/crypto/xts does,
// many times as fast.
type xts struct {
	data  blocks
	tweak cipher.Block
}

// newXTS takes the key of the data and then that of the tweaks, in one.
func newXTS(key []byte) (xts, error) {
	if len(key) != 32 && len(key) != 64 {
		return xts{}, fmt.Errorf("a key for XTS has 32 or 64 bytes, not %d", len(key))
	}
	data, err := newBlocks(key[:len(key)/2])
	if err != nil {
		return xts{}, err
	}
	tweak, err := aes.NewCipher(key[len(key)/2:])
	return xts{data, tweak}, err
}

// crypt has step work on each sector of b. The first one has the number n, and each
// next one a number that is stride higher.
func (x xts) crypt(b []byte, sectorSize int, n, stride uint64, step func(sector []byte, m *mask)) {
	var m mask
	for ; len(b) > 0; b = b[sectorSize:] {
		m = mask{}
		binary.LittleEndian.PutUint64(m[:], n)
		x.tweak.Encrypt(m[:], m[:])
		step(b[:sectorSize], &m)
		n += stride
	}
}

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

// Payload is the disk behind a header, with its key. Any number of goroutines may
// use it at once.
type Payload struct {
	xts        xts
	sectorSize int
	ivTweak    uint64
}

// ivUnit is what sector numbers count, whatever a sector's size is.
const ivUnit = 512

// Encrypt encrypts b in place, which lies at offset in the payload. It panics where
// either is not whole sectors.
func (p *Payload) Encrypt(b []byte, offset int64) { p.crypt(b, offset, p.xts.data.encrypt) }

// Decrypt undoes Encrypt.
func (p *Payload) Decrypt(b []byte, offset int64) { p.crypt(b, offset, p.xts.data.decrypt) }

func (p *Payload) crypt(b []byte, offset int64, step func(sector []byte, m *mask)) {
	if offset < 0 || len(b)%p.sectorSize != 0 || offset%int64(p.sectorSize) != 0 {
		panic(fmt.Sprintf("luks: %d bytes at %d are not whole sectors of %d", len(b), offset, p.sectorSize))
	}
	p.xts.crypt(b, p.sectorSize, p.ivTweak+uint64(offset)/ivUnit, uint64(p.sectorSize/ivUnit), step)
}
