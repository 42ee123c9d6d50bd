package replica

import (
	"errors"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// TestFileSystemWithoutFIEMAP opens a file in memory, whose file system does not support FIEMAP.
func TestFileSystemWithoutFIEMAP(t *testing.T) {
	fd, err := unix.MemfdCreate("layer", 0)
	if err != nil {
		t.Fatal(err)
	}
	f, err := disk.NewFile(os.NewFile(uintptr(fd), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, _, err := new(fiemap).read(f, 0, nil); !errors.Is(err, errNoExtents) {
		t.Errorf("error is %v", err)
	}
}

// TestCollect converts results of file systems with blocks of 512 or 1024 bytes, where extents begin
// and end within a sector.
func TestCollect(t *testing.T) {
	type result struct {
		at, length uint64
		flags      uint32
	}
	for _, test := range []struct {
		name    string
		from    int64
		results []result
		want    []extent
		to      int64
	}{
		{"nothing", 0, nil, nil, maxOffset},
		{"whole sectors", 0, []result{{4096, 8192, 0}, {16384, 4096, extentUnwritten}}, []extent{{4096, 12288, false}, {16384, 20480, true}}, maxOffset},
		{"neighbours", 0, []result{{0, 4096, 0}, {4096, 4096, 0}, {8192, 4096, extentUnwritten}, {12288, 4096, extentUnwritten}}, []extent{{0, 8192, false}, {8192, 16384, true}}, maxOffset},
		{"a part of a sector", 0, []result{{1024, 512, 0}}, []extent{{0, 4096, false}}, maxOffset},
		{"data, then preallocated, in one sector", 0, []result{{0, 1024, 0}, {1024, 7168, extentUnwritten}}, []extent{{0, 4096, false}, {4096, 8192, true}}, maxOffset},
		{"preallocated, then data, in one sector", 0, []result{{0, 5120, extentUnwritten}, {5120, 1024, 0}}, []extent{{0, 4096, true}, {4096, 8192, false}}, maxOffset},
		{"preallocated, then data, in the first sector", 0, []result{{0, 1024, extentUnwritten}, {1024, 1024, 0}}, []extent{{0, 4096, false}}, maxOffset},
		{"preallocated within data", 0, []result{{0, 1024, 0}, {1024, 1024, extentUnwritten}, {2048, 4096, 0}}, []extent{{0, 8192, false}}, maxOffset},
		{"after the end of the file", 0, []result{{0, 4096, 0}, {1 << 20, 4096, extentUnwritten}}, []extent{{0, 4096, false}}, maxOffset},
		{"across the end of the file", 0, []result{{1<<20 - 4096, 1 << 20, extentUnwritten}}, []extent{{1<<20 - 4096, 1 << 20, true}}, maxOffset},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := new(fiemap)
			for i, e := range test.results {
				m.extents[i] = fiemapExtent{logical: e.at, length: e.length, flags: e.flags}
			}
			m.header.mapped = uint32(len(test.results))
			got, to, err := m.collect(test.from, 1<<20, nil)
			if err != nil || to != test.to || !slices.Equal(got, test.want) {
				t.Errorf("got %v up to %d, error %v; want %v up to %d", got, to, err, test.want, test.to)
			}
		})
	}
}

// TestCollectFullBatch checks that the next call continues with the last sector if a full result ends
// within this sector.
func TestCollectFullBatch(t *testing.T) {
	m := new(fiemap)
	for i := range batch {
		m.extents[i] = fiemapExtent{logical: uint64(i) * 1024, length: 1024}
	}
	m.header.mapped = batch
	m.extents[batch-1].length = 512
	got, to, err := m.collect(0, 1<<20, nil)
	want := []extent{{0, (batch/4 - 1) * 4096, false}}
	if err != nil || to != want[0].end || !slices.Equal(got, want) {
		t.Errorf("got %v up to %d, error %v; want %v", got, to, err, want)
	}
}

// FuzzCollect checks for any result of FIEMAP that the extents are sorted, do not overlap and have
// whole sectors, or that collect returns an error.
func FuzzCollect(f *testing.F) {
	f.Add(uint64(0), uint64(1024), uint32(0), uint64(1024), uint64(9000), uint32(extentUnwritten))
	f.Fuzz(func(t *testing.T, at1, length1 uint64, flags1 uint32, at2, length2 uint64, flags2 uint32) {
		if at2 < at1+length1 || at1+length1 < at1 || at2+length2 < at2 {
			return // not possible: extents of a file system do not overlap
		}
		m := new(fiemap)
		m.extents[0] = fiemapExtent{logical: at1, length: length1, flags: flags1}
		m.extents[1] = fiemapExtent{logical: at2, length: length2, flags: flags2}
		m.header.mapped = 2
		list, _, err := m.collect(0, 1<<30, nil)
		if err != nil {
			return
		}
		last := int64(0)
		for i, e := range list {
			if e.start%sector != 0 || e.end%sector != 0 || e.start < last || e.end <= e.start || e.end > 1<<30 {
				t.Errorf("extent %d is %+v", i, e)
			}
			last = e.end
		}
	})
}
