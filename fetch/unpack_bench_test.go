package fetch

import (
	"bytes"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

var (
	unpackFolder = flag.String("unpack.folder", "/usr", "`FOLDER` whose files BenchmarkUnpackLikeTool packs")
	unpackSize   = flag.Int64("unpack.size", 32<<20, "number of `BYTES` of these files")
)

// BenchmarkUnpackLikeTool unpacks files of this machine, and the public tool unpacks the same bytes
// on as many threads. The metrics are ratios of rates: above 1, this program is faster.
func BenchmarkUnpackLikeTool(b *testing.B) {
	plain := filepath.Join(b.TempDir(), "plain")
	if err := os.WriteFile(plain, filesBelow(b, *unpackFolder, *unpackSize), 0o600); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		packing packing
		pack    string
		threads int
	}{
		{packedGz, "gzip -6", 1},
		{packedBz2, "bzip2 -9", 1},
		{packedXz, "xz -6", 1},
		{packedXz, "xz -6 -T2 --block-size=4MiB", 1},
		{packedZst, "zstd -3", 1},
		{packedZst, "zstd -19", 1},
	} {
		b.Run(strings.ReplaceAll(c.pack, " ", "")+"/threads="+strconv.Itoa(c.threads), func(b *testing.B) {
			tool, options, _ := strings.Cut(c.pack, " ")
			packed := filepath.Join(b.TempDir(), "packed")
			f, err := os.Create(packed)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			run(b, plain, f, tool, append(strings.Fields(options), "-c")...)
			unpackOptions := []string{"-dc"}
			if c.packing == packedXz {
				unpackOptions = append(unpackOptions, "-T"+strconv.Itoa(c.threads))
			}
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.threads))
			var ours, theirs cost
			b.SetBytes(*unpackSize)
			for b.Loop() {
				theirs.add(b, unix.RUSAGE_CHILDREN, func() { run(b, packed, nil, tool, unpackOptions...) })
				ours.add(b, unix.RUSAGE_SELF, func() { unpackAll(b, c.packing, packed) })
			}
			b.ReportMetric(theirs.cpu.Seconds()/ours.cpu.Seconds(), "x-tool-cpu")
			b.ReportMetric(theirs.wall.Seconds()/ours.wall.Seconds(), "x-tool-wall")
		})
	}
}

// cost is the time that some work took.
type cost struct{ cpu, wall time.Duration }

// add does the work and adds its cost, the processor time of this process or of its children.
func (c *cost) add(b *testing.B, who int, work func()) {
	var before, after unix.Rusage
	if err := unix.Getrusage(who, &before); err != nil {
		b.Fatal(err)
	}
	begun := time.Now()
	work()
	c.wall += time.Since(begun)
	if err := unix.Getrusage(who, &after); err != nil {
		b.Fatal(err)
	}
	c.cpu += time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
}

func unpackAll(b *testing.B, p packing, file string) {
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	r := p.reader(f, false)
	defer r.Close()
	if _, err := io.Copy(io.Discard, r); err != nil {
		b.Fatal(err)
	}
}

// run runs a program with the file as its input.
func run(b *testing.B, file string, out io.Writer, program string, arguments ...string) {
	in, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer in.Close()
	cmd := need.Command(b, program, arguments...)
	cmd.Stdin, cmd.Stdout = in, out
	if err := cmd.Run(); err != nil {
		b.Fatalf("%s: %v", cmd, err)
	}
}

// filesBelow returns the first size bytes of the files below a folder.
func filesBelow(b *testing.B, folder string, size int64) []byte {
	var all bytes.Buffer
	err := filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := io.CopyN(&all, f, size-int64(all.Len())); err != io.EOF {
			return fs.SkipAll // all bytes, or an error
		}
		return nil
	})
	if err != nil || int64(all.Len()) < size {
		b.Fatalf("read %d bytes of files below %s: got %d, %v", size, folder, all.Len(), err)
	}
	return all.Bytes()
}
