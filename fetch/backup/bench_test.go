package backup

import (
	"context"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

var benchSize = flag.Int64("backup.size", 1<<30, "size of the image of the benchmarks in bytes")

// halfRandom returns half random bytes and half text in each 4 KiB, so that lz4 halves the size.
type halfRandom struct{ noise *rand.ChaCha8 }

func (h halfRandom) Read(p []byte) (int, error) {
	p = p[:len(p)&^4095]
	for at := 0; at < len(p); at += 4096 {
		_, _ = h.noise.Read(p[at : at+2048])
		for i := at + 2048; i < at+4096; i++ {
			p[i] = "numbered lines\n"[i%15]
		}
	}
	return len(p), nil
}

// BenchmarkRestore restores an image from a folder. It compares the time with that of reading,
// unpacking and hashing the same blocks sequentially.
func BenchmarkRestore(b *testing.B) {
	for _, c := range []Compression{LZ4, Gzip, None} {
		b.Run(string(c), func(b *testing.B) {
			dir, d := b.TempDir(), newDisk(b)
			part, err := d.OpenPart(b.Context(), id("bench"), disk.PartOptions{})
			if err != nil {
				b.Fatal(err)
			}
			if err := part.Begin(disk.PartSource{ID: "bench", Size: *benchSize}); err != nil {
				b.Fatal(err)
			}
			if _, err := part.ReadFrom(io.LimitReader(halfRandom{rand.NewChaCha8([32]byte{})}, *benchSize)); err != nil {
				b.Fatal(err)
			}
			if _, err := part.Commit(ident.Digest{}); err != nil {
				b.Fatal(err)
			}
			s := openTarget(b, dir)
			begun := time.Now()
			if err := (Creator{Store: s, Compression: c}).Create(b.Context(), d, id("bench"), new(fetch.Progress)); err != nil {
				b.Fatal(err)
			}
			stored := time.Since(begun)
			stored -= lockSettleTime
			if err := d.Remove(id("bench"), disk.Mark{}); err != nil {
				b.Fatal(err)
			}
			var took, reference time.Duration
			b.SetBytes(*benchSize)
			for b.Loop() {
				reference += unpackAll(b, s, "bench")
				begun := time.Now()
				if _, err := restore(context.Background(), s, d, "bench"); err != nil {
					b.Fatal(err)
				}
				took += time.Since(begun)
				if err := d.Remove(id("bench"), disk.Mark{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(*benchSize)/1e6/took.Seconds()*float64(b.N), "restore-MB/s")
			b.ReportMetric(took.Seconds()/reference.Seconds(), "x-unpack+hash")
			b.ReportMetric(float64(*benchSize)/1e6/stored.Seconds(), "backup-MB/s")
		})
	}
}

func unpackAll(b *testing.B, s Store, name string) time.Duration {
	begun := time.Now()
	m, err := LoadComplete(b.Context(), s, name)
	if err != nil {
		b.Fatal(err)
	}
	d, plain := newDecoder(), make([]byte, blockSize)
	for _, block := range m.Blocks {
		stored, err := os.ReadFile(filepath.Join(s.String(), block.ID.key()))
		if err != nil {
			b.Fatal(err)
		}
		if err := d.decode(plain[:m.length(block.Offset)], stored, block.ID); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(begun)
}
