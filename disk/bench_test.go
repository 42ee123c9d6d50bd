package disk

import (
	"bytes"
	"crypto/sha512"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
)

// benchSize is the size of the images that benchmarks move, in bytes.
const benchSize = 1 << 30

// repeat gives size bytes of block again and again.
func repeat(block []byte, size int64) io.Reader {
	return io.LimitReader(&repeater{block: block}, size)
}

type repeater struct {
	block []byte
	at    int
}

func (r *repeater) Read(b []byte) (int, error) {
	n := copy(b, r.block[r.at:])
	r.at = (r.at + n) % len(r.block)
	return n, nil
}

func randomBlock() []byte {
	b := make([]byte, 4*ChunkSize)
	rand.NewChaCha8([32]byte{2}).Read(b)
	return b
}

// BenchmarkCommit makes 1 GiB of memory a durable image; compare it with
// BenchmarkSHA512, which is what no image can be faster than.
func BenchmarkCommit(b *testing.B) {
	for _, test := range []struct {
		name  string
		block []byte
	}{{"dense", randomBlock()}, {"zeros", make([]byte, 4*ChunkSize)}} {
		b.Run(test.name, func(b *testing.B) {
			d := newDisk(b)
			b.SetBytes(benchSize)
			for b.Loop() {
				p := openPart(b, d, PartOptions{})
				if err := p.Begin(Origin{Size: benchSize}); err != nil {
					b.Fatal(err)
				}
				if _, err := p.ReadFrom(repeat(test.block, benchSize)); err != nil {
					b.Fatal(err)
				}
				if _, err := p.Commit(Digest{}); err != nil {
					b.Fatal(err)
				}
				if err := d.Remove(testID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSHA512 hashes 1 GiB in memory.
func BenchmarkSHA512(b *testing.B) {
	block := bytes.Repeat([]byte{1}, ChunkSize)
	b.SetBytes(benchSize)
	for b.Loop() {
		h := sha512.New()
		for range benchSize / ChunkSize {
			h.Write(block)
		}
	}
}

// BenchmarkList looks at 1,000 images that did not change since the last look.
func BenchmarkList(b *testing.B) {
	d := newDisk(b)
	for i := range 1000 {
		id := ID{Name: fmt.Sprintf("image-%d", i), UUID: "6846a0b2"}
		p, err := d.OpenPart(b.Context(), id, PartOptions{})
		if err != nil {
			b.Fatal(err)
		}
		fill(b, p, make([]byte, 512))
		if _, err := p.Commit(Digest{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		l, err := d.List()
		if err != nil || len(l.Copies) != 1000 || l.Copies[0].State != Ready {
			b.Fatal(err, len(l.Copies))
		}
	}
}
