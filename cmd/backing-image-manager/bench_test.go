package main

import (
	"bytes"
	"cmp"
	"crypto/sha512"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cost is the cost of one run.
type cost struct {
	wall, cpu time.Duration
	rss       int64 // bytes, of the largest process
}

// BenchmarkDownload compares one reconcile that downloads, verifies and durably commits an image
// with the public tools for the same work (curl, tee, sha512sum and sync), and with SHA-512 alone
// over the same number of bytes in memory. The three run in turn, and their medians are compared.
// TMPDIR must be on a disk.
func BenchmarkDownload(b *testing.B) {
	for _, image := range []struct {
		name   string
		size   int64
		stride int64 // 64 MiB of random bytes in each stride
	}{
		{"dense-2GiB", 2 << 30, 64 << 20},
		{"sparse-8GiB", 8 << 30, 512 << 20},
	} {
		b.Run(image.name, func(b *testing.B) {
			dir := b.TempDir()
			source := filepath.Join(dir, "image.raw")
			writeImage(b, source, image.size, image.stride)
			upstream := httptest.NewServer(http.FileServer(http.Dir(dir)))
			defer upstream.Close()
			program := buildProgram(b)
			var ours, pipe, hash []cost
			var cached, allocated int64
			for b.Loop() {
				hash = append(hash, hashAlone(b, image.size))
				pipe = append(pipe, runPipe(b, upstream.URL))
				var c cost
				c, cached, allocated = runProgram(b, program, upstream.URL)
				ours = append(ours, c)
			}
			o, p, h := median(ours), median(pipe), median(hash)
			b.ReportMetric(0, "ns/op") // 0 hides ns/op, which would be the sum of all three
			b.ReportMetric(o.wall.Seconds(), "s")
			b.ReportMetric(o.wall.Seconds()/p.wall.Seconds(), "wall/pipe")
			b.ReportMetric(o.wall.Seconds()/h.wall.Seconds(), "wall/sha512")
			b.ReportMetric(o.cpu.Seconds()/p.cpu.Seconds(), "cpu/pipe")
			b.ReportMetric(o.cpu.Seconds()/h.cpu.Seconds(), "cpu/sha512")
			b.ReportMetric(float64(o.rss)/(1<<20), "MiB-rss")
			b.ReportMetric(float64(cached)/(1<<20), "MiB-cached")
			b.ReportMetric(float64(allocated)/(1<<20), "MiB-allocated")
		})
	}
}

func writeImage(b *testing.B, name string, size, stride int64) {
	f, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	random := rand.NewChaCha8([32]byte{3})
	block := make([]byte, 4<<20)
	for at := int64(0); at < size; at += stride {
		for in := int64(0); in < 64<<20; in += int64(len(block)) {
			random.Read(block)
			if _, err := f.WriteAt(block, at+in); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := f.Truncate(size); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
	// Read the file once, so that each run finds it in the page cache.
	if err := exec.Command("cat", name).Run(); err != nil {
		b.Fatal(err)
	}
}

func buildProgram(b *testing.B) string {
	name := filepath.Join(b.TempDir(), "backing-image-manager")
	if out, err := exec.Command("go", "build", "-o", name, ".").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	return name
}

func hashAlone(b *testing.B, size int64) cost {
	block := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{4}).Read(block)
	start, used := time.Now(), processTime(b)
	h := sha512.New()
	for range size / int64(len(block)) {
		h.Write(block)
	}
	h.Sum(nil)
	return cost{wall: time.Since(start), cpu: processTime(b) - used}
}

// processTime returns the processor time of this process.
func processTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func runPipe(b *testing.B, url string) cost {
	file := filepath.Join(b.TempDir(), "image")
	defer os.Remove(file)
	return measure(b, exec.Command("sh", "-c", `curl -s "$0" | tee "$1" | sha512sum >/dev/null && sync "$1"`, url+"/image.raw", file))
}

func runProgram(b *testing.B, program, url string) (c cost, cached, allocated int64) {
	dir := b.TempDir()
	config := filepath.Join(dir, "config")
	data := filepath.Join(dir, "disk")
	if err := os.MkdirAll(config, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Mkdir(data, 0o755); err != nil {
		b.Fatal(err)
	}
	text := fmt.Sprintf("settings: {allowLoopbackSources: true}\nimages: {bench: {source: {download: {url: %q}}}}\n", url+"/image.raw")
	if err := os.WriteFile(filepath.Join(config, "images.yaml"), []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	if out, err := exec.Command(program, "disk", "init", data).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	c = measure(b, exec.Command(program, "reconcile", "--config-dir", config, "--disk", data))
	found, err := filepath.Glob(filepath.Join(data, "backing-images", "bench-*", "backing"))
	if err != nil || len(found) != 1 {
		b.Fatalf("images: %v, error %v", found, err)
	}
	cached, allocated = pagesAndBlocks(b, found[0])
	os.Remove(found[0])
	return c, cached, allocated
}

func measure(b *testing.B, cmd *exec.Cmd) cost {
	var log bytes.Buffer
	cmd.Stderr = &log
	start := time.Now()
	if err := cmd.Run(); err != nil {
		b.Fatalf("%v: %v: %s", cmd, err, log.Bytes())
	}
	c := costOf(cmd.ProcessState)
	c.wall = time.Since(start)
	return c
}

// costOf returns what a process has used, without the time on the clock.
func costOf(ended *os.ProcessState) cost {
	used := ended.SysUsage().(*syscall.Rusage)
	return cost{cpu: time.Duration(used.Utime.Nano() + used.Stime.Nano()), rss: used.Maxrss << 10}
}

// pagesAndBlocks returns the bytes of a file that are in the page cache (by cachestat, Linux 6.5),
// and those that are allocated on the disk.
func pagesAndBlocks(b *testing.B, name string) (cached, allocated int64) {
	f, err := os.Open(name)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	const sysCachestat = 451
	var all struct{ off, length uint64 }
	var stat struct{ cache, dirty, writeback, evicted, recentlyEvicted uint64 }
	_, _, errno := unix.Syscall6(sysCachestat, f.Fd(), uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&stat)), 0, 0, 0)
	if errno != 0 {
		b.Logf("cachestat: %v: the cached bytes are unknown", errno)
	}
	return int64(stat.cache) * int64(os.Getpagesize()), info.Sys().(*syscall.Stat_t).Blocks * 512
}

func median(all []cost) cost {
	all = slices.SortedFunc(slices.Values(all), func(x, y cost) int { return cmp.Compare(x.wall, y.wall) })
	return all[len(all)/2]
}
