package luks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// Payload is the encrypted disk behind a header, with its key. It is safe for concurrent use.
type Payload struct {
	xts        xts
	sectorSize int
	ivTweak    uint64
}

// ivUnit is the unit of sector numbers, for every sector size.
const ivUnit = 512

// Encrypt encrypts b in place. offset is the position of b in the payload. It panics unless offset
// and the length of b are whole sectors.
func (p *Payload) Encrypt(b []byte, offset int64) { p.crypt(b, offset, p.xts.data.encrypt) }

// Decrypt decrypts b in place, under the same conditions as Encrypt.
func (p *Payload) Decrypt(b []byte, offset int64) { p.crypt(b, offset, p.xts.data.decrypt) }

func (p *Payload) crypt(b []byte, offset int64, step func(sector []byte, m *mask)) {
	if offset < 0 || len(b)%p.sectorSize != 0 || offset%int64(p.sectorSize) != 0 {
		panic(fmt.Sprintf("luks: %d bytes at %d are not whole sectors of %d", len(b), offset, p.sectorSize))
	}
	p.xts.crypt(b, p.sectorSize, p.ivTweak+uint64(offset)/ivUnit, uint64(p.sectorSize/ivUnit), step)
}

// xts implements XTS-AES of IEEE 1619 for whole blocks. It has the same results as x/crypto/xts, but
// is many times faster.
type xts struct {
	data  aesBlocks
	tweak cipher.Block
}

// newXTS uses the first half of key for the data and the second half for the tweaks.
func newXTS(key []byte) (xts, error) {
	if len(key) != 32 && len(key) != 64 {
		return xts{}, fmt.Errorf("a key for XTS has 32 or 64 bytes, not %d", len(key))
	}
	data, err := newAESBlocks(key[:len(key)/2])
	if err != nil {
		return xts{}, err
	}
	tweak, err := aes.NewCipher(key[len(key)/2:])
	return xts{data, tweak}, err
}

// crypt calls step for each sector of b. The first sector has the number n, and stride is added for
// each following sector.
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

// mask is XORed with a block before and after AES: the tweak value T of IEEE 1619.
type mask [aes.BlockSize]byte

// aesBlocks applies AES with masks to all blocks of a sector. Its methods work in place on whole
// blocks. Their argument m is the mask of the first block, and they overwrite it.
type aesBlocks struct {
	single   cipher.Block
	parallel *parallelAES // nil if the CPU does not support it
}

func newAESBlocks(key []byte) (aesBlocks, error) {
	single, err := aes.NewCipher(key)
	if err != nil {
		return aesBlocks{}, err
	}
	return aesBlocks{single, newParallelAES(key)}, nil
}

func (c aesBlocks) encrypt(b []byte, m *mask) {
	if c.parallel != nil {
		b = c.parallel.encrypt(b, m)
	}
	cryptPieces(b, m, c.single.Encrypt)
}

func (c aesBlocks) decrypt(b []byte, m *mask) {
	if c.parallel != nil {
		b = c.parallel.decrypt(b, m)
	}
	cryptPieces(b, m, c.single.Decrypt)
}

// cryptPieces XORs, encrypts and again XORs a piece of many blocks in three passes. x/crypto/xts does
// all three steps for one block before the next block, so that the CPU waits for its own stores.
func cryptPieces(b []byte, m *mask, step func(dst, src []byte)) {
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

// fillMasks writes m, m·x, m·x², … in GF(2¹²⁸) to masks, and sets m to the mask that follows.
func fillMasks(masks []byte, m *mask) {
	low, high := binary.LittleEndian.Uint64(m[:]), binary.LittleEndian.Uint64(m[8:])
	for ; len(masks) > 0; masks = masks[aes.BlockSize:] {
		binary.LittleEndian.PutUint64(masks, low)
		binary.LittleEndian.PutUint64(masks[8:], high)
		carry := uint64(int64(high)>>63) & 0x87 // without a branch, because masks are secret
		low, high = low<<1^carry, high<<1|low>>63
	}
	binary.LittleEndian.PutUint64(m[:], low)
	binary.LittleEndian.PutUint64(m[8:], high)
}
