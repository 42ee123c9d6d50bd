package export

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/disk/qcow2"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

var (
	benchSize = flag.Int64("bench.size", 4<<30, "size of the exported volume in bytes")
	benchData = flag.Int64("bench.data", 1<<30, "bytes of data in the volume")
	benchRun  = flag.Int64("bench.run", 1<<20, "length of the longest run of data in bytes, at least 64 KiB")
	drop      = flag.Bool("bench.cold", false, "drop the page cache before each run; needs root")
)

const benchLayers = 10

// TestMain also runs the process whose export is measured.
func TestMain(m *testing.M) {
	if path := os.Getenv("EXPORT_TEST_DISK"); path != "" {
		if err := exportAlone(path, model.Format(os.Getenv("EXPORT_TEST_FORMAT"))); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// exportAlone exports the volume on a disk, and prints the peak memory of its process.
func exportAlone(path string, format model.Format) error {
	d, err := disk.Open(path)
	if err != nil {
		return err
	}
	s, err := Find(&fetch.Client{}, map[string]*disk.Disk{"disk1": d}, Request{Volume: "bench", Format: format})
	if err != nil {
		return err
	}
	part, err := d.OpenPart(context.Background(), imageID, disk.PartOptions{Format: format})
	if err != nil {
		return err
	}
	if err := s.Fill(context.Background(), part, &fetch.Progress{}); err != nil {
		return err
	}
	c, err := part.Commit(ident.Digest{})
	if err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int64
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return err
	}
	fmt.Println(kib, c.SHA512)
	return nil
}

// benchVolume creates a volume with layers, and a chain of qcow2 files with the same data at the same
// offsets. It returns the disk and the newest qcow2 file.
func benchVolume(b *testing.B) (d *disk.Disk, newest string) {
	b.Helper()
	check := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	d = openDisk(b, b.TempDir())
	dir, chain := filepath.Join(d.Path(), "replicas/bench-00000001"), b.TempDir()
	check(os.MkdirAll(dir, 0o700))
	put := func(name, text string) { check(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600)) }
	r := rand.New(rand.NewPCG(1, 2))
	noise := rand.NewChaCha8([32]byte{1})
	buf := make([]byte, *benchRun)
	parent := ""
	for n := range benchLayers {
		name := fmt.Sprintf("volume-snap-s%d.img", n)
		if n == benchLayers-1 {
			name = "volume-head-009.img"
		}
		f, err := os.Create(filepath.Join(dir, name))
		check(err)
		check(f.Truncate(*benchSize))
		for written := int64(0); written < *benchData/benchLayers; {
			piece := buf[:min((1+r.Int64N(*benchRun>>16))<<16, *benchRun)]
			noise.Read(piece)
			_, err := f.WriteAt(piece, r.Int64N((*benchSize-int64(len(piece)))>>16)<<16)
			check(err)
			written += int64(len(piece))
		}
		check(f.Sync())
		check(f.Close())
		put(name+".meta", fmt.Sprintf(`{"Parent":%q}`, parent))
		file := filepath.Join(chain, fmt.Sprint(n, ".qcow2"))
		encode(b, filepath.Join(dir, name), file)
		if newest != "" {
			run(b, "qemu-img", "rebase", "-u", "-f", "qcow2", "-F", "qcow2", "-b", newest, file)
		}
		parent, newest = name, file
	}
	put("volume.meta", fmt.Sprintf(`{"Size":%d,"Head":%q,"BackingFilePath":""}`, *benchSize, parent))
	return d, newest
}

// encode creates a qcow2 file that has clusters exactly where a layer has data.
func encode(b *testing.B, layer, to string) {
	b.Helper()
	v, err := openPath(&fetch.Client{AllowAnyFile: true}, layer)
	if err != nil {
		b.Fatal(err)
	}
	defer v.Close()
	e, err := qcow2.Encode(v, qcow2.Options{})
	if err != nil {
		b.Fatal(err)
	}
	f, err := os.Create(to)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	if _, err := io.Copy(f, e); err != nil {
		b.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		b.Fatal(err)
	}
}

// cost contains the times of a process.
type cost struct{ time, processor time.Duration }

func (c *cost) add(start time.Time, s *os.ProcessState) {
	c.time += time.Since(start)
	c.processor += s.UserTime() + s.SystemTime()
}

// BenchmarkExport exports a volume with 10 layers, and runs qemu-img convert on an equal chain, and
// sha512sum. x-qemu is the ratio of the times, and x-qemu-cpu the ratio of the CPU times, which
// depends less on other processes of the machine. The other programs do not sync their output.
func BenchmarkExport(b *testing.B) {
	d, newest := benchVolume(b)
	for _, format := range []model.Format{model.Raw, model.QCOW2} {
		b.Run(string(format), func(b *testing.B) {
			var ours, theirs cost
			var most int64
			b.SetBytes(*benchSize)
			for b.Loop() {
				b.StopTimer()
				convert(b, newest, format, &theirs)
				dropPageCache(b)
				b.StartTimer()
				start := time.Now()
				c := exec.Command(os.Args[0])
				c.Env = append(os.Environ(), "EXPORT_TEST_DISK="+d.Path(), "EXPORT_TEST_FORMAT="+string(format))
				c.Stderr = os.Stderr
				out, err := c.Output()
				if err != nil {
					b.Fatal(err)
				}
				ours.add(start, c.ProcessState)
				b.StopTimer()
				var kib int64
				if _, err := fmt.Sscan(string(out), &kib); err != nil {
					b.Fatal(err)
				}
				most = max(most, kib)
				if err := d.Remove(imageID, disk.Mark{}); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(ours.time.Seconds()/theirs.time.Seconds(), "x-qemu")
			b.ReportMetric(ours.processor.Seconds()/theirs.processor.Seconds(), "x-qemu-cpu")
			b.ReportMetric(theirs.time.Seconds()/float64(b.N), "qemu-s/op")
			b.ReportMetric(float64(most)/1024, "MiB-peak")
		})
	}
}

// convert does the same as an export, with other programs.
func convert(b *testing.B, newest string, format model.Format, spent *cost) {
	b.Helper()
	out := filepath.Join(b.TempDir(), "out")
	dropPageCache(b)
	for _, args := range [][]string{{"qemu-img", "convert", "-f", "qcow2", "-O", string(format), newest, out}, {"sha512sum", out}} {
		start := time.Now()
		c := exec.Command(args[0], args[1:]...)
		if text, err := c.CombinedOutput(); err != nil {
			b.Fatalf("%s: %v: %s", args[0], err, text)
		}
		spent.add(start, c.ProcessState)
	}
	if err := os.Remove(out); err != nil {
		b.Fatal(err)
	}
}

func dropPageCache(b *testing.B) {
	b.Helper()
	if !*drop {
		return
	}
	run(b, "sync")
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1"), 0); err != nil {
		b.Fatal(err)
	}
}
