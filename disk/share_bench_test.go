package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// updateSize is the size of the images of BenchmarkUpdate, in bytes.
const updateSize = 2 << 30

// BenchmarkUpdate creates a durable image of 2 GiB of which an older generation on the same disk has all
// chunks but one of 100 at the same place. Compare "shared" with "written".
func BenchmarkUpdate(b *testing.B) {
	mkfs := map[string][]string{"xfs": {"mkfs.xfs", "-q", "-m", "reflink=1"}, "btrfs": {"mkfs.btrfs", "-q"}}
	for _, name := range []string{"xfs", "btrfs"} {
		b.Run(name, func(b *testing.B) {
			d := diskAt(b, mountNew(b, 3*updateSize, name, mkfs[name]...))
			device := loopOf(b, d.path)
			block := randomBlock()
			p := openPart(b, d, PartOptions{})
			if err := p.Begin(PartSource{Size: updateSize}); err != nil {
				b.Fatal(err)
			}
			if _, err := p.ReadFrom(repeat(block, updateSize)); err != nil {
				b.Fatal(err)
			}
			if _, err := p.Commit(ident.Digest{}); err != nil {
				b.Fatal(err)
			}
			for _, how := range []string{"written", "shared"} {
				b.Run(how, func(b *testing.B) {
					b.SetBytes(updateSize)
					before := device.moved(b, d)
					processorTime(b, func() {
						for b.Loop() {
							update(b, d, block, how == "shared")
						}
					})
					after := device.moved(b, d)
					b.ReportMetric(float64(after.read-before.read)/float64(b.N)/1e6, "MB-read/op")
					b.ReportMetric(float64(after.written-before.written)/float64(b.N)/1e6, "MB-written/op")
				})
			}
		})
	}
}

// update creates and removes the new image.
func update(b *testing.B, d *Disk, block []byte, shared bool) {
	b.Helper()
	var hashes []ChunkHash
	for chunk := range slices.Chunk(block, ChunkSize) {
		hashes = append(hashes, NewChunks.Hash(chunk))
	}
	r, err := d.Open(testID)
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	if err := unix.Fadvise(int(r.chunks.f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		b.Fatal(err)
	}
	p := openPartOf(b, d, PartOptions{})
	defer p.Close()
	err = p.Begin(PartSource{ID: "peer", Size: updateSize})
	if !shared {
		p.shareAlign = 0
	}
	buf := NewChunkBuffer()
	for err == nil && p.Offset() < updateSize {
		at := p.Offset()
		n := at / ChunkSize
		if n%100 == 50 {
			copy(buf, block[(n+1)%4*ChunkSize:][:ChunkSize])
			buf, err = p.AppendChunk(buf, ChunkSize, hashes[(n+1)%4])
		} else {
			err = p.AppendFrom(r, at, ChunkSize, hashes[n%4])
		}
	}
	if err == nil {
		_, err = p.Commit(ident.Digest{})
	}
	if err == nil {
		err = d.Remove(cloneID, Mark{})
	}
	if err != nil {
		b.Fatal(err)
	}
}

// loopDevice is the name of a loop device, such as loop0.
type loopDevice string

// loopOf returns the loop device that is mounted at a path. It makes the device bypass the page cache of
// its file, as a disk would.
func loopOf(b *testing.B, at string) loopDevice {
	b.Helper()
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		fields := strings.Fields(line)
		if fields[1] != at {
			continue
		}
		f, err := os.OpenFile(fields[0], os.O_RDWR, 0)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if err := unix.IoctlSetInt(int(f.Fd()), unix.LOOP_SET_DIRECT_IO, 1); err != nil {
			b.Log("the device reads and writes through the page cache:", err)
		}
		return loopDevice(filepath.Base(fields[0]))
	}
	b.Fatal(at, " is not mounted")
	return ""
}

// movedBytes are the bytes that a device has read and written.
type movedBytes struct{ read, written int64 }

// moved returns the bytes since the device exists, after all writes to d.
func (l loopDevice) moved(b *testing.B, d *Disk) movedBytes {
	b.Helper()
	free(b, d) // syncs
	stat, err := os.ReadFile(filepath.Join("/sys/block", string(l), "stat"))
	if err != nil {
		b.Fatal(err)
	}
	var requests, merged, read, ticks, writes, writesMerged, written int64
	if _, err := fmt.Sscan(string(stat), &requests, &merged, &read, &ticks, &writes, &writesMerged, &written); err != nil {
		b.Fatal(err)
	}
	return movedBytes{read * 512, written * 512}
}
