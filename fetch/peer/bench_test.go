package peer

import (
	"bytes"
	"cmp"
	"crypto/sha512"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// BenchmarkSync syncs an image from one peer, in two processes, until it is verified and durable. It
// compares the time with SHA-512 alone over the same number of bytes in memory, and with rsync -S
// from an rsync daemon followed by sha512sum and sync. The three run alternately, and the benchmark
// compares their medians. TMPDIR must be on a disk.
func BenchmarkSync(b *testing.B) {
	for _, image := range []struct {
		name   string
		size   int64
		stride int64 // 64 MiB of random bytes in each stride
	}{
		{"dense-2GiB", 2 << 30, 64 << 20},
		{"sparse-8GiB", 8 << 30, 512 << 20},
	} {
		b.Run(image.name, func(b *testing.B) {
			d := newDisk(b)
			c := fillDisk(b, d, image.size, &sparseReader{size: image.size, stride: image.stride, random: rand.NewChaCha8([32]byte{3})})
			from := startSender(b, "node1", d, "127.0.0.1:0")
			daemon := startRsync(b, d)
			backing := (&testNode{disk: d}).backing(parrot)
			var syncs []syncCost
			var hash []hashCost
			var rsync []time.Duration
			for b.Loop() {
				fillPageCache(b, backing)
				hash = append(hash, hashOnly(b, image.size))
				if daemon != "" {
					fillPageCache(b, backing)
					rsync = append(rsync, runRsync(b, daemon))
				}
				fillPageCache(b, backing)
				path := b.TempDir()
				sending := cpuTimeOf(b, from.Process.Pid)
				one := pullInProcess(b, path, pullJob{Sources: []Source{from.source}, Size: image.size, Digest: c.SHA512}, nil)
				syncs = append(syncs, syncCost{one, one.CPU + cpuTimeOf(b, from.Process.Pid) - sending})
				os.RemoveAll(path)
			}
			o := median(syncs, func(o syncCost) float64 { return o.Seconds })
			h := median(hash, func(c hashCost) float64 { return c.wall.Seconds() })
			b.ReportMetric(0, "ns/op") // 0 hides ns/op, which would be the sum of hash, rsync and sync
			b.ReportMetric(o.Seconds, "s")
			b.ReportMetric(o.Seconds/h.wall.Seconds(), "wall/sha512")
			b.ReportMetric(o.CPU.Seconds()/h.cpu.Seconds(), "cpu/sha512")
			b.ReportMetric(o.both.Seconds()/h.cpu.Seconds(), "cpu-both/sha512")
			if len(rsync) > 0 {
				b.ReportMetric(o.Seconds/median(rsync, time.Duration.Seconds).Seconds(), "wall/rsync")
			}
			b.ReportMetric(float64(o.RSS)/mib, "MiB-rss")
			b.ReportMetric(float64(peakRSS(b, from.Process.Pid))/mib, "MiB-sender")
		})
	}
}

// syncCost is one sync, and the processor time of receiver and sender.
type syncCost struct {
	pullResult
	both time.Duration
}

// cpuTimeOf returns the processor time of a process so far, in steps of 10 ms.
func cpuTimeOf(b *testing.B, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // from the third field on, see proc(5)
	user, userErr := strconv.Atoi(fields[11])
	system, systemErr := strconv.Atoi(fields[12])
	if err := errors.Join(userErr, systemErr); err != nil {
		b.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

func median[T any](all []T, by func(T) float64) T {
	all = slices.SortedFunc(slices.Values(all), func(x, y T) int { return cmp.Compare(by(x), by(y)) })
	return all[len(all)/2]
}

// sparseReader returns, in each stride, 64 MiB of random bytes and then zeros.
type sparseReader struct {
	at, size, stride int64
	random           io.Reader
}

func (s *sparseReader) Read(p []byte) (int, error) {
	const data = 64 << 20
	if s.at == s.size {
		return 0, io.EOF
	}
	in := s.at % s.stride
	if in < data {
		n, err := s.random.Read(p[:min(int64(len(p)), data-in, s.size-s.at)])
		s.at += int64(n)
		return n, err
	}
	p = p[:min(int64(len(p)), s.stride-in, s.size-s.at)]
	clear(p)
	s.at += int64(len(p))
	return len(p), nil
}

// fillPageCache reads a file into the page cache, so that all three runs start with the same cache.
func fillPageCache(b *testing.B, name string) {
	if err := exec.Command("cat", name).Run(); err != nil {
		b.Fatal(err)
	}
}

// hashCost returns the time that SHA-512 alone needs.
type hashCost struct{ wall, cpu time.Duration }

func hashOnly(b *testing.B, size int64) hashCost {
	block := make([]byte, mib)
	rand.NewChaCha8([32]byte{4}).Read(block)
	start, used := time.Now(), cpuTime(b)
	h := sha512.New()
	for range size / mib {
		h.Write(block)
	}
	h.Sum(nil)
	return hashCost{time.Since(start), cpuTime(b) - used}
}

// cpuTime returns the CPU time of this process.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// startRsync serves the image of d by rsync, and returns its URL, or "" if rsync is not installed.
func startRsync(b *testing.B, d *disk.Disk) string {
	if _, err := exec.LookPath("rsync"); err != nil {
		b.Log("no comparison with rsync: rsync is not installed")
		return ""
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	config := filepath.Join(b.TempDir(), "rsyncd.conf")
	text := fmt.Sprintf("use chroot = no\naddress = 127.0.0.1\nuid = %d\ngid = %d\n[image]\npath = %s\nread only = yes\n",
		os.Getuid(), os.Getgid(), filepath.Dir((&testNode{disk: d}).backing(parrot)))
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	c := exec.Command("rsync", "--daemon", "--no-detach", "--config="+config, fmt.Sprintf("--port=%d", port))
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = c.Process.Signal(syscall.SIGTERM)
		_ = c.Wait()
	})
	address := fmt.Sprintf("127.0.0.1:%d", port)
	for range 100 { // the rsync daemon does not report when it starts to listen
		if probe, err := net.Dial("tcp", address); err == nil {
			probe.Close()
			return "rsync://" + address + "/image/backing"
		}
		<-time.After(20 * time.Millisecond)
	}
	b.Fatal("the rsync daemon does not listen")
	return ""
}

func runRsync(b *testing.B, from string) time.Duration {
	file := filepath.Join(b.TempDir(), "image")
	defer os.Remove(file)
	c := exec.Command("sh", "-c", `rsync -S "$0" "$1" && sha512sum "$1" >/dev/null && sync "$1"`, from, file)
	c.Stderr = os.Stderr
	start := time.Now()
	if err := c.Run(); err != nil {
		b.Fatal(err)
	}
	return time.Since(start)
}
