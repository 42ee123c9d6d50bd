package clone

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// BenchmarkClone creates clones of 512 MiB. It compares the rate with the write rate of the disk and
// the encryption rate of OpenSSL on one CPU in the same run. A clone also reads the source, computes
// SHA-512 and SHA-256, and writes the partial file.
func BenchmarkClone(b *testing.B) {
	const size = 512 << 20
	r := newFixture(b)
	image := make([]byte, size)
	rand.NewChaCha8([32]byte{}).Read(image)
	r.addImage(b, sourceID, image)
	encrypted := ident.ID{Name: "encrypted", UUID: "00c0ffee"}
	if _, err := r.clone(b, context.Background(), sourceID, encrypted, Encrypt, "vault"); err != nil {
		b.Fatal(err)
	}
	for _, how := range []Encryption{Ignore, Encrypt, Decrypt} {
		b.Run(string(how), func(b *testing.B) {
			from := sourceID
			if how == Decrypt {
				from = encrypted
			}
			half, written := opensslRate(b)/2, writeRate(b, filepath.Join(r.dir, "raw"), image)
			b.SetBytes(size)
			spent := processorTime(b)
			b.ResetTimer()
			for i := range b.N {
				to := ident.ID{Name: "clone", UUID: fmt.Sprintf("%08x", i)}
				if _, err := r.clone(b, context.Background(), from, to, how, "vault"); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := os.RemoveAll(filepath.Dir(r.path(to))); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			rate := float64(b.N) * size / b.Elapsed().Seconds()
			b.ReportMetric(rate/half, "of-half-openssl")
			b.ReportMetric((processorTime(b)-spent).Seconds()/float64(b.N)*(1<<30)/size, "processor-s/GiB")
			b.ReportMetric(rate/written, "of-disk")
		})
	}
}

// processorTime returns the CPU time of this process, without cryptsetup.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// opensslRate returns the encryption rate of OpenSSL in bytes per second on one CPU.
func opensslRate(b *testing.B) float64 {
	b.Helper()
	out, err := need.Command(b, "openssl", "speed", "-seconds", "1", "-bytes", "1048576", "-evp", "aes-256-xts").Output()
	if err != nil {
		b.Fatalf("openssl speed: %v", err)
	}
	found := regexp.MustCompile(`(?im)^aes-256-xts\s+([0-9.]+)k`).FindSubmatch(out)
	if found == nil {
		b.Fatalf("openssl speed printed %q", out)
	}
	thousands, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return thousands * 1000
}

// writeRate returns the write rate of the disk in bytes per second, without the page cache.
func writeRate(b *testing.B, name string, data []byte) float64 {
	b.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_DIRECT, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(name)
	defer f.Close()
	buf := disk.NewChunkBuffer()
	start := time.Now()
	for at := 0; at < len(data); at += len(buf) {
		copy(buf, data[at:])
		if _, err := f.Write(buf); err != nil {
			b.Fatal(err)
		}
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	return float64(len(data)) / time.Since(start).Seconds()
}
