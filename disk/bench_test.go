package disk

import (
	"bytes"
	"context"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// benchSize is the size of the images of the benchmarks, in bytes.
const benchSize = 1 << 30

// repeat returns a reader of size bytes, which repeats block.
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

// BenchmarkCommit creates a durable image from 1 GiB of memory. It cannot be faster than
// BenchmarkSHA512.
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
				if err := p.Begin(PartSource{Size: benchSize}); err != nil {
					b.Fatal(err)
				}
				if _, err := p.ReadFrom(repeat(test.block, benchSize)); err != nil {
					b.Fatal(err)
				}
				if _, err := p.Commit(ident.Digest{}); err != nil {
					b.Fatal(err)
				}
				if err := d.Remove(testID, Mark{}); err != nil {
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

// BenchmarkChunkHash hashes whole chunks in memory.
func BenchmarkChunkHash(b *testing.B) {
	chunk := bytes.Repeat([]byte{1}, ChunkSize)
	for name, a := range map[string]ChunkAlgorithm{"SHA-256": ChunkSHA256, "BLAKE3": ChunkBLAKE3} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(ChunkSize)
			for b.Loop() {
				a.Hash(chunk)
			}
		})
	}
}

// BenchmarkList lists 1,000 images that did not change since the last call.
func BenchmarkList(b *testing.B) {
	d := newDisk(b)
	for i := range 1000 {
		id := ident.ID{Name: fmt.Sprintf("image-%d", i), UUID: "6846a0b2"}
		p, err := d.OpenPart(b.Context(), id, PartOptions{})
		if err != nil {
			b.Fatal(err)
		}
		fill(b, p, make([]byte, 512))
		if _, err := p.Commit(ident.Digest{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		l, err := d.List()
		if err != nil || len(l.Copies) != 1000 || l.Copies[0].State != model.Ready {
			b.Fatal(err, len(l.Copies))
		}
	}
}

// processorTime runs a function and reports the number of CPUs that it kept busy.
func processorTime(b *testing.B, run func()) {
	b.Helper()
	busy := func() int64 {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := busy()
	run()
	b.ReportMetric(float64(busy()-before)/float64(b.Elapsed().Nanoseconds()), "processors")
}

// BenchmarkAppendChunk creates a durable image from 1 GiB of chunks with known hashes. Compare it
// with BenchmarkSHA512.
func BenchmarkAppendChunk(b *testing.B) {
	block := randomBlock()[:ChunkSize]
	hash := NewChunks.Hash(block)
	for name, put := range map[string]func(*Part, []byte) ([]byte, error){
		"dense": func(p *Part, buf []byte) ([]byte, error) {
			copy(buf, block)
			return p.AppendChunk(buf, ChunkSize, hash)
		},
		"zeros": func(p *Part, buf []byte) ([]byte, error) { return buf, p.AppendZeros(ChunkSize) },
	} {
		b.Run(name, func(b *testing.B) {
			d := newDisk(b)
			b.SetBytes(benchSize)
			processorTime(b, func() {
				for b.Loop() {
					p := openPart(b, d, PartOptions{})
					err := p.Begin(PartSource{Size: benchSize})
					for buf := NewChunkBuffer(); err == nil && p.Offset() < benchSize; {
						buf, err = put(p, buf)
					}
					if err == nil {
						_, err = p.Commit(ident.Digest{})
					}
					if err == nil {
						err = d.Remove(testID, Mark{})
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// benchImage creates a ready image of 1 GiB of random bytes.
func benchImage(b *testing.B) (*Disk, model.Copy) {
	b.Helper()
	d := newDisk(b)
	p := openPart(b, d, PartOptions{})
	if err := p.Begin(PartSource{Size: benchSize}); err != nil {
		b.Fatal(err)
	}
	if _, err := p.ReadFrom(repeat(randomBlock(), benchSize)); err != nil {
		b.Fatal(err)
	}
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		b.Fatal(err)
	}
	return d, c
}

// BenchmarkRepair repairs one chunk of an image of 1 GiB. Compare it with BenchmarkSHA512.
func BenchmarkRepair(b *testing.B) {
	d, _ := benchImage(b)
	block := randomBlock()
	b.SetBytes(benchSize)
	for b.Loop() {
		b.StopTimer()
		f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteAt([]byte("damage"), 77*ChunkSize)
			f.Close()
		}
		if err == nil {
			_, err = d.Verify(b.Context(), testID, Expected{}, func(int64) {})
		}
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		_, err = d.Repair(b.Context(), testID, ident.Digest{}, func(_ context.Context, n int64, _ ChunkHash, buf []byte) (int, error) {
			return copy(buf, block[n%4*ChunkSize:][:ChunkSize]), nil
		}, func(int64) {})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkSend sends 1 GiB through the loopback interface, from the disk or from the page cache.
func BenchmarkSend(b *testing.B) {
	d, c := benchImage(b)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r, err := d.Open(testID)
		if err != nil {
			b.Error(err)
			return
		}
		defer r.Close()
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(c.Size, 10))
		if err := r.Send(w, 0, c.Size, nil); err != nil {
			b.Error(err)
		}
	}))
	defer server.Close()
	for _, cached := range []string{"disk", "cache"} {
		b.Run(cached, func(b *testing.B) {
			if cached == "cache" {
				if _, err := os.ReadFile(imagePath(d, imageFile)); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(c.Size)
			processorTime(b, func() {
				for b.Loop() {
					response, err := http.Get(server.URL)
					if err != nil {
						b.Fatal(err)
					}
					// io.Discard alone would read with small buffers.
					_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, response.Body, make([]byte, ChunkSize))
					if err := errors.Join(err, response.Body.Close()); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkProve measures what a deletion costs for each copy on which it counts: it selects a chunk from the manifest, and
// reads the chunk past the page cache.
func BenchmarkProve(b *testing.B) {
	d, _ := benchImage(b)
	for secret := uint64(0); b.Loop(); secret++ {
		m, err := d.Manifest(testID)
		if err != nil {
			b.Fatal(err)
		}
		chunk, err := SelectChunk(m.Encoded(), m.Size(), secret)
		if err = errors.Join(err, m.Close()); err == nil {
			err = d.Prove(testID, chunk)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkReadBack measures what an eviction costs for the copy that replaces the evicted one: one full read.
func BenchmarkReadBack(b *testing.B) {
	d, _ := benchImage(b)
	b.SetBytes(benchSize)
	for b.Loop() {
		if c, err := d.Verify(b.Context(), testID, Expected{}, func(int64) {}); err != nil || c.ReadBackAt.IsZero() {
			b.Fatal(c, err)
		}
	}
}
