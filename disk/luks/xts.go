package luks

import (
	"crypto/aes"
	"crypto/cipher"
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
