package luks

import (
	"fmt"

	"golang.org/x/crypto/xts"
)

// Payload is the encrypted disk behind a header, with its key. It is safe for concurrent use.
type Payload struct {
	cipher     *xts.Cipher
	sectorSize int
	ivTweak    uint64
}

// ivUnit is the unit of sector numbers, for every sector size.
const ivUnit = 512

// Encrypt encrypts b in place. offset is the position of b in the payload. It panics unless offset
// and the length of b are whole sectors.
func (p *Payload) Encrypt(b []byte, offset int64) { p.crypt(b, offset, p.cipher.Encrypt) }

// Decrypt decrypts b in place, under the same conditions as Encrypt.
func (p *Payload) Decrypt(b []byte, offset int64) { p.crypt(b, offset, p.cipher.Decrypt) }

func (p *Payload) crypt(b []byte, offset int64, step func(dst, src []byte, number uint64)) {
	if offset < 0 || len(b)%p.sectorSize != 0 || offset%int64(p.sectorSize) != 0 {
		panic(fmt.Sprintf("luks: %d bytes at %d are not whole sectors of %d", len(b), offset, p.sectorSize))
	}
	number := p.ivTweak + uint64(offset)/ivUnit
	for ; len(b) > 0; b = b[p.sectorSize:] {
		step(b[:p.sectorSize], b[:p.sectorSize], number)
		number += uint64(p.sectorSize / ivUnit)
	}
}
