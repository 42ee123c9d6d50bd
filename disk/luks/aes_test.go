package luks

import (
	"bytes"
	"crypto/aes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	peer "golang.org/x/crypto/xts"
	"golang.org/x/sys/unix"
)

// fenced returns a page of memory between two pages that cannot be accessed.
func fenced(t *testing.T) []byte {
	t.Helper()
	size := os.Getpagesize()
	m, err := unix.Mmap(-1, 0, 3*size, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	page := m[size : 2*size]
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatal(err)
	}
	return page
}

// TestBlocksAtAllPositions compares the ciphertext with x/crypto, with and without parallelAES, for
// many numbers of blocks and all positions of blocks and mask, also at the ends of a mapping.
func TestBlocksAtAllPositions(t *testing.T) {
	random := rand.NewChaCha8([32]byte{8})
	page, maskPage := fenced(t), fenced(t)
	for _, keySize := range []int{32, 64} {
		key := make([]byte, keySize)
		random.Read(key)
		x, err := newXTS(key)
		if err != nil {
			t.Fatal(err)
		}
		other, err := peer.NewCipher(aes.NewCipher, key)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []aesBlocks{x.data, {single: x.data.single}} {
			for count := range 34 { // up to four groups of eight blocks, or one piece of 32 blocks, and one more block
				size := count * aes.BlockSize
				for shift := range aes.BlockSize {
					for _, at := range []int{shift, len(page) - size - shift} {
						random.Read(page)
						plain, want := bytes.Clone(page), bytes.Clone(page)
						n := random.Uint64()
						other.Encrypt(want[at:at+size], want[at:at+size], n)
						m := (*mask)(maskPage[len(maskPage)-aes.BlockSize-shift:])
						begin := func() *mask {
							*m = mask{}
							binary.LittleEndian.PutUint64(m[:], n)
							x.tweak.Encrypt(m[:], m[:])
							return m
						}
						c.encrypt(page[at:at+size], begin())
						if !bytes.Equal(page, want) {
							t.Fatalf("%d blocks at %d, key of %d bytes, parallel %v: the ciphertext differs from x/crypto", count, at, keySize, c.parallel != nil)
						}
						c.decrypt(page[at:at+size], begin())
						if !bytes.Equal(page, plain) {
							t.Fatalf("%d blocks at %d, key of %d bytes, parallel %v: wrong plaintext", count, at, keySize, c.parallel != nil)
						}
					}
				}
			}
		}
	}
}
