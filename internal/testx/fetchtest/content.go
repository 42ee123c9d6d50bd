package fetchtest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/rand/v2"
)

// Bytes returns a Content with the bytes b.
func Bytes(b []byte) Content { return bytes.NewReader(b) }

// Random returns n random bytes. Equal seeds return equal bytes.
func Random(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return b
}

// Repeated returns a Content of size bytes that repeats period, so that a large content needs no
// memory. On a disk, its blocks of zeros are holes.
func Repeated(period []byte, size int64) Content { return repeated{period, size} }

type repeated struct {
	period []byte
	size   int64
}

func (r repeated) Size() int64 { return r.size }

func (r repeated) ReadAt(p []byte, offset int64) (int, error) {
	n := 0
	for n < len(p) && offset < r.size {
		from := r.period[offset%int64(len(r.period)):]
		c := copy(p[n:min(int64(len(p)), int64(n)+r.size-offset)], from)
		n, offset = n+c, offset+int64(c)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func certificatePEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
