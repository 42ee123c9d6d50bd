package luks

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"fmt"
)

// pieceSize is how many bytes are worked on in one go: enough to make three passes
// cheap, and little enough to stay in the processor's cache.
const pieceSize = 4096

// xts is XTS-AES as in IEEE 1619, for whole blocks. It does what x/crypto/xts does,
// four times as fast: that xors each block with its tweak just before AES loads it,
// and the processor then waits for its own stores. Here a whole piece passes one
// step before the next.
type xts struct{ data, tweak cipher.Block }

// newXTS takes the key of the data and then that of the tweaks, in one.
func newXTS(key []byte) (xts, error) {
	if len(key) != 32 && len(key) != 64 {
		return xts{}, fmt.Errorf("a key for XTS has 32 or 64 bytes, not %d", len(key))
	}
	data, err := aes.NewCipher(key[:len(key)/2])
	if err != nil {
		return xts{}, err
	}
	tweak, err := aes.NewCipher(key[len(key)/2:])
	return xts{data, tweak}, err
}

// crypt does to each sector of b, in place, what step does to a block. The first one
// has the number n, and each next one a number that is stride higher.
func (x xts) crypt(b []byte, sectorSize int, n, stride uint64, step func(dst, src []byte)) {
	masks := make([]byte, max(pieceSize, sectorSize))
	var first [aes.BlockSize]byte
	mask := first[:]
	for len(b) > 0 {
		piece := b[:min(len(masks), len(b))]
		for at := 0; at < len(piece); at += sectorSize {
			binary.LittleEndian.PutUint64(mask, n)
			clear(mask[8:])
			x.tweak.Encrypt(mask, mask)
			fillMasks(masks[at:at+sectorSize], mask)
			n += stride
		}
		subtle.XORBytes(piece, piece, masks)
		for block := piece; len(block) > 0; block = block[aes.BlockSize:] {
			step(block[:aes.BlockSize], block[:aes.BlockSize])
		}
		subtle.XORBytes(piece, piece, masks)
		b = b[len(piece):]
	}
}

// fillMasks fills masks with first, times x, times x², … in GF(2¹²⁸).
func fillMasks(masks, first []byte) {
	low, high := binary.LittleEndian.Uint64(first), binary.LittleEndian.Uint64(first[8:])
	for ; len(masks) > 0; masks = masks[aes.BlockSize:] {
		binary.LittleEndian.PutUint64(masks, low)
		binary.LittleEndian.PutUint64(masks[8:], high)
		carry := uint64(int64(high)>>63) & 0x87 // no branch: tweaks are secret
		low, high = low<<1^carry, high<<1|low>>63
	}
}
