package luks

import "fmt"

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
