package qcow2

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"slices"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/seed-26586806/backing-image-manager/internal/testx/imagetest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// putL2 sets word i of the first L2 table: an entry, or half of an extended entry.
func putL2(i int, v uint64) edit {
	return func(b []byte) {
		l1 := binary.BigEndian.Uint64(b[number(b, atL1Offset):])
		put64(int(l1&l1OffsetMask)+8*i, v)(b)
	}
}

const (
	damaged = "a compressed cluster of the qcow2 image is damaged"
	twice   = "the cluster at "
	outside = "a cluster of the qcow2 image lies outside the file"
)

// hostileClusters contains one image for each rule about table entries, which violates this rule.
// v3.qcow2 has its tables in clusters 1 to 4, and data in cluster 5, which is the second cluster of
// the disk. extended-l2.qcow2 is similar, with data at offset 64 KiB of the disk.
var hostileClusters = []struct {
	name   string
	base   string
	reason string
	edits  []edit
}{
	{"reserved bits", "v3", "an L2 entry of the qcow2 image has reserved bits set", []edit{putL2(1, copied|1<<56|5<<16)}},
	{"low reserved bits", "v3", "an L2 entry of the qcow2 image has reserved bits set", []edit{putL2(1, copied|5<<16|2)}},
	{"zeros of version 2", "v2", "an L2 entry of the qcow2 image has reserved bits set", []edit{putL2(1, copied|5<<16|1)}},
	{"zeros of extended entries", "extended-l2", "an L2 entry of the qcow2 image has reserved bits set", []edit{putL2(8, copied|5<<14|1)}},
	{"within a cluster", "v3", "an L2 entry of the qcow2 image has an offset within a cluster", []edit{putL2(1, copied|5<<16|512)}},
	{"zeros within a cluster", "v3", "an L2 entry of the qcow2 image has an offset within a cluster", []edit{putL2(1, copied|5<<16|512|1)}},
	{"after the end of the file", "v3", outside, []edit{putL2(1, copied|6<<16)}},
	{"far", "v3", outside, []edit{putL2(1, 1<<56-1<<16)}},
	{"last entry", "v3", outside, []edit{putL2(1023, copied|6<<16)}},

	{"one cluster in two L2 entries", "v3", twice + "327680 of the qcow2 file is used twice: as data and as data (L2 entry for offset 65536 of the disk)", []edit{putL2(0, copied|5<<16)}},
	{"a zero cluster that another entry uses as data", "v3", twice, []edit{putL2(0, copied|5<<16|1)}},
	{"the refcount table used as data", "v3", twice + "65536 of the qcow2 file is used twice: as metadata and as data (L2 entry for offset 65536 of the disk)", []edit{putL2(1, copied|1<<16)}},
	{"the L1 table used as data", "v3", twice, []edit{putL2(1, copied|3<<16)}},
	{"the L2 table used as data", "v3", twice + "262144 of the qcow2 file is used twice: as an L2 table and as data", []edit{putL2(1, copied|4<<16)}},
	{"the L1 table used as L2 table", "v3", twice, []edit{putL1(0, copied|3<<16)}},
	{"one L2 table in two L1 entries", "v3", twice, []edit{put64(atSize, 1<<30), put32(atL1Entries, 2), putL1(1, copied|4<<16)}},
	{"one L2 table in all L1 entries", "v3", twice, []edit{put64(atSize, 8<<40), put32(atL1Entries, 16<<10), func(b []byte) {
		for i := 3 << 16; i < 5<<16; i += 8 {
			put64(i, copied|5<<16)(b)
		}
		clear(b[5<<16:])
	}}},

	{"compressed after the end of the file", "v3", "a compressed " + outside[2:], []edit{putL2(1, l2Compressed|6<<16)}},
	{"compressed at a huge offset", "v3", "a compressed " + outside[2:], []edit{putL2(1, l2Compressed|1<<54-1)}},
	{"compressed at an impossible offset", "v3", "a compressed " + outside[2:], []edit{putL2(1, l2Compressed|255<<54)}},
	{"compressed nonsense", "v3", damaged, []edit{putL2(1, l2Compressed|5<<16)}},
	{"compressed zeros", "v3", damaged, []edit{putL2(1, l2Compressed|255<<54|5<<16+32<<10)}},
	{"compressed by another method", "zstd", damaged, []edit{put64(atIncompatible, 0), put32(atCompression, 0)}},
	{"compressed and truncated", "zlib", damaged, []edit{putL2(1, l2Compressed|6<<16-1)}},

	{"after the end of the disk", "v3", outside, []edit{putL2(1024, copied|7<<40)}},
	{"the header used as data", "v3", twice + "0 of", []edit{putL2(1, copied), putL2(1, l2Compressed|1)}},
	{"compressed data in the L2 table", "v3", twice + "262144 of", []edit{putL2(1, l2Compressed|255<<54|5<<16-512)}},
	{"compressed data that reaches into a standard cluster", "v3", twice + "327680 of", []edit{putL2(2, l2Compressed|5<<16)}},
	{"a refcount block used as data", "v3", twice + "131072 of", []edit{putL2(1, copied|2<<16)}},
	{"the refcount table at the L1 table", "v3", twice + "196608 of", []edit{put64(atRefcountOffset, 3<<16)}},
	{"the L1 table at the header of the refcount blocks", "v3", twice + "131072 of", []edit{put64(atL1Offset, 2<<16)}},
	{"refcount block after the end of the file", "v3", "the refcount block of the qcow2 image lies outside the file", []edit{put64(1<<16, 6<<16)}},
	{"refcount block within a cluster", "v3", "the refcount block of the qcow2 image does not begin at a cluster border", []edit{put64(1<<16, 2<<16+512)}},
	{"two refcount blocks in one cluster", "v3", twice + "131072 of", []edit{put64(1<<16+8, 2<<16)}},
	{"refcount block in the header", "v3", "the refcount block of the qcow2 image does not begin at a cluster border", []edit{put64(1<<16, 8)}},

	{"one snapshot without a table", "v3", "the L1 table of a snapshot of the qcow2 image does not begin at a cluster border", []edit{put32(atSnapshots, 1), put64(atSnapshotsOffset, 5<<16), func(b []byte) { clear(b[5<<16:]) }}},
	{"snapshot table in the header", "v3", "the snapshot table of the qcow2 image does not begin at a cluster border", []edit{put32(atSnapshots, 1)}},
	{"snapshot table in the refcount table", "snapshot", twice, []edit{func(b []byte) {
		put64(atSnapshotsOffset, number(b, atL1Offset))(b)
		clear(b[number(b, atL1Offset):][:4096])
		putSnapshot(0, number(b, atRefcountOffset))(b)
	}}},
	{"L1 table of a snapshot after the end of the file", "snapshot", "the L1 table of a snapshot of the qcow2 image lies outside the file", []edit{putSnapshot(0, 1<<40)}},
	{"L1 table of a snapshot in the refcount table", "snapshot", twice, []edit{func(b []byte) { putSnapshot(0, number(b, atRefcountOffset))(b) }}},
	{"L1 table of a snapshot at that of the disk", "snapshot", twice, []edit{func(b []byte) { putSnapshot(0, number(b, atL1Offset))(b) }}},
	{"huge L1 table of a snapshot", "snapshot", "the L1 table of a snapshot of the qcow2 image has 34359738360 bytes", []edit{putSnapshot(8, 0xffffffff<<32)}},
	{"snapshot with much extra data", "snapshot", "a snapshot of the qcow2 image has 1025 bytes of extra data", []edit{putSnapshot(32, 1025)}},
	{"L2 table of a snapshot in the refcount table", "snapshot", twice, []edit{func(b []byte) { snapshotL1(number(b, atRefcountOffset))(b) }}},
	{"no L2 table of a snapshot, but its flag", "snapshot", "an L1 entry of the qcow2 image has a flag without an offset", []edit{snapshotL1(copied)}},
	{"L2 table of a snapshot after the end of the file", "snapshot", "the L2 table of the qcow2 image lies outside the file", []edit{snapshotL1(1 << 40)}},
	{"data of a snapshot in the refcount table", "snapshot", twice, []edit{func(b []byte) { snapshotL2(16, number(b, atRefcountOffset))(b) }}},
	{"data of a snapshot after the end of the file", "snapshot", outside + " (L2 entry for offset 65536 of a snapshot)", []edit{snapshotL2(16, 1<<40)}},

	{"both zeros and data", "extended-l2", "a subcluster of the qcow2 image is both zeros and data", []edit{putL2(9, 1<<32|1)}},
	{"data without an offset", "extended-l2", "an L2 entry of the qcow2 image has data without an offset", []edit{putL2(8, copied)}},
}

// number returns the 8 bytes at an offset.
func number(b []byte, at uint64) uint64 { return binary.BigEndian.Uint64(b[at:]) }

// putSnapshot sets 8 bytes of the first entry of the snapshot table.
func putSnapshot(at int, v uint64) edit {
	return func(b []byte) { put64(int(number(b, atSnapshotsOffset))+at, v)(b) }
}

// snapshotL1 sets the first entry of the L1 table of the first snapshot.
func snapshotL1(v uint64) edit {
	return func(b []byte) { put64(int(number(b, number(b, atSnapshotsOffset))), v)(b) }
}

// snapshotL2 sets entry i of the first L2 table of the first snapshot.
func snapshotL2(i int, v uint64) edit {
	return func(b []byte) {
		table := number(b, number(b, number(b, atSnapshotsOffset))) & l1OffsetMask
		put64(int(table)+8*i, v)(b)
	}
}

func TestOpenRefusesHostileClusters(t *testing.T) {
	for _, c := range hostileClusters {
		t.Run(c.name, func(t *testing.T) {
			b := padded(edited(image(t, "good/"+c.base+".qcow2"), c.edits...))
			if _, err := Inspect(bytes.NewReader(b), int64(len(b))); c.reason != damaged {
				wantRefused(t, err, c.reason)
			}
			m, err := Open(bytes.NewReader(b), int64(len(b)))
			if c.reason == damaged {
				if err != nil {
					t.Fatal(err)
				}
				_, err = m.ReadAt(make([]byte, 1<<20), 0)
				_, again := m.ReadAt(make([]byte, 1), 64<<10)
				wantRefused(t, again, c.reason)
			}
			wantRefused(t, err, c.reason)
		})
	}
}

// padded extends a file to a multiple of 64 KiB.
func padded(b []byte) []byte { return append(b, make([]byte, -len(b)&0xffff)...) }

// TestOpenAcceptsUnusualClusters checks that unusual but unambiguous images are read with the same
// result as by QEMU.
func TestOpenAcceptsUnusualClusters(t *testing.T) {
	data := bytes.Repeat([]byte{0x5a}, 12<<10)
	for _, c := range []struct {
		name  string
		base  string
		size  int // of the file; 0: unchanged
		want  []byte
		edits []edit
	}{
		{"as it is", "v3", 0, data, nil},
		{"not marked as copied", "v3", 0, data, []edit{putL2(1, 5<<16)}},
		{"file ends within the cluster", "v3", 5<<16 + 1000, data[:1000], nil},
		{"zeros with an offset", "v3", 0, nil, []edit{putL2(1, copied|5<<16|1)}},
		{"zeros with an offset after the end of the file", "v3", 5 << 16, nil, []edit{putL2(1, copied|5<<16|1)}},
		{"nothing", "v3", 0, nil, []edit{putL2(1, copied)}},
		{"packed twice", "zlib", 0, data, []edit{func(b []byte) {
			l2 := binary.BigEndian.Uint64(b[number(b, atL1Offset):]) & l1OffsetMask
			put64(int(l2)+16, binary.BigEndian.Uint64(b[l2+8:]))(b)
		}}},
		{"a single subcluster", "extended-l2", 0, data[:512], []edit{putL2(9, 1)}},
		{"other subclusters are zeros", "extended-l2", 0, data[:512], []edit{putL2(9, 1|0xfffffffe<<32)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := edited(image(t, "good/"+c.base+".qcow2"), c.edits...)
			if c.size > 0 {
				b = b[:c.size]
			}
			m, err := Open(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			got := bytes.Repeat([]byte{0xee}, 128<<10)
			if _, err := m.ReadAt(got, 0); err != nil {
				t.Fatal(err)
			}
			checkBytes(t, "disk", got, slices.Concat(make([]byte, 64<<10), c.want, make([]byte, 64<<10-len(c.want))))
		})
	}
}

// TestOpenUsesBoundedMemory checks that sizes in an image do not increase the memory of its reader.
func TestOpenUsesBoundedMemory(t *testing.T) {
	race.Skip(t)
	frame := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa0 | 7} // a window of gigabytes
	w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	bomb := w.EncodeAll(make([]byte, 64<<20), nil)
	for name, packed := range map[string][]byte{"window": frame, "bomb": bomb} {
		b := padded(edited(image(t, "good/zstd.qcow2"), putL2(1, l2Compressed|255<<54|5<<16)))
		b = append(b, make([]byte, 256<<10)...)
		copy(b[5<<16:], packed)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		_, err = m.ReadAt(make([]byte, 64<<10), 64<<10)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 8<<20 {
			t.Errorf("%s: %d bytes allocated, and %v", name, got, err)
		}
	}
	// A disk of 64 TiB without data: only an L1 table.
	head := edited(image(t, "good/v3.qcow2")[:64<<10], put32(atL1Entries, 4<<20), put64(atSize, 64<<40))
	s := &imagetest.Sparse{Head: head, Size: 1 << 40}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m, err := Open(s, s.Size)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.NextData(0); err != io.EOF {
		t.Errorf("NextData: %v", err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
		t.Errorf("64 TiB: %d bytes allocated", got)
	}
}
