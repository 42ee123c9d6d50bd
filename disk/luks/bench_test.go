package luks

import (
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// BenchmarkEncrypt encrypts pieces of 1 MiB on one CPU and on all CPUs. It compares the speed with
// OpenSSL on one CPU in the same run: by wall time, and by CPU time, which OpenSSL measures.
func BenchmarkEncrypt(b *testing.B) {
	for _, keySize := range []int{256, 512} {
		for _, sectorSize := range []int{512, 4096} {
			for _, workers := range []int{1, runtime.GOMAXPROCS(0)} {
				b.Run(fmt.Sprintf("key=%d/sector=%d/processors=%d", keySize, sectorSize, workers), func(b *testing.B) {
					p := newPayload(b, make([]byte, keySize/8), sectorSize, 0)
					reference := opensslSpeed(b, fmt.Sprintf("aes-%d-xts", keySize/2))
					b.SetBytes(int64(workers) << 20)
					b.ResetTimer()
					spent := processorTime(b)
					var wg sync.WaitGroup
					for range workers {
						wg.Go(func() {
							piece := make([]byte, 1<<20)
							for i := range b.N {
								p.Encrypt(piece, int64(i)<<20)
							}
						})
					}
					wg.Wait()
					bytes := float64(b.N*workers) * (1 << 20)
					b.ReportMetric(bytes/b.Elapsed().Seconds()/reference, "of-openssl")
					b.ReportMetric(bytes/(processorTime(b)-spent).Seconds()/reference, "of-openssl/processor")
				})
			}
		}
	}
}

// processorTime returns the CPU time of this process.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// opensslSpeed returns the bytes per second that OpenSSL encrypts on one CPU.
func opensslSpeed(b *testing.B, algorithm string) float64 {
	b.Helper()
	out, err := need.Command(b, "openssl", "speed", "-seconds", "1", "-bytes", "1048576", "-evp", algorithm).Output()
	if err != nil {
		b.Fatalf("openssl speed: %v", err)
	}
	found := regexp.MustCompile(`(?im)^` + algorithm + `\s+([0-9.]+)k`).FindStringSubmatch(string(out))
	if found == nil {
		b.Fatalf("openssl speed printed %q", strings.TrimSpace(string(out)))
	}
	thousands, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return thousands * 1000
}
