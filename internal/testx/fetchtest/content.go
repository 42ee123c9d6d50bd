package fetchtest

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/rand/v2"
)

// Bytes returns a content with the bytes b.
func Bytes(b []byte) Content { return bytes.NewReader(b) }

// Random returns n random bytes. Equal seeds give equal bytes.
func Random(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	rand.NewChaCha8(key).Read(b)
	return b
}

// Repeated is a content of size bytes that repeats period, so that a large content needs no
// memory. Its blocks of zeros are holes on a disk.
func Repeated(period []byte, size int64) Content { return repeated{period, size} }

type repeated struct {
	period []byte
	size   int64
}

func (r repeated) Size() int64 { return r.size }

func (r repeated) ReadAt(p []byte, at int64) (int, error) {
	n := 0
	for n < len(p) && at < r.size {
		from := r.period[at%int64(len(r.period)):]
		c := copy(p[n:min(int64(len(p)), int64(n)+r.size-at)], from)
		n, at = n+c, at+int64(c)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func certificatePEM(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}
