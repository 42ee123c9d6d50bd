package qcow2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/imagetest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// Offsets of header fields, by the published specification of the format.
const (
	atVersion          = 4
	atBackingOffset    = 8
	atBackingLength    = 16
	atClusterBits      = 20
	atSize             = 24
	atEncryption       = 32
	atL1Entries        = 36
	atL1Offset         = 40
	atRefcountOffset   = 48
	atRefcountClusters = 56
	atSnapshots        = 60
	atSnapshotsOffset  = 64
	atIncompatible     = 72
	atAutoclear        = 88
	atRefcountOrder    = 96
	atLength           = 100
	atCompression      = 104
	atExtensions       = 112
)

// edit changes a few bytes of an image.
type edit func(b []byte)

func put32(at int, v uint32) edit {
	return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) }
}

func put64(at int, v uint64) edit {
	return func(b []byte) { binary.BigEndian.PutUint64(b[at:], v) }
}

// putL1 sets entry i of the L1 table.
func putL1(i int, v uint64) edit {
	return func(b []byte) { put64(int(binary.BigEndian.Uint64(b[atL1Offset:]))+8*i, v)(b) }
}

// putExtensions replaces all header extensions.
func putExtensions(at int, words ...uint32) edit {
	return func(b []byte) {
		for i, w := range words {
			put32(at+4*i, w)(b)
		}
	}
}

// image returns the bytes of an image in the testdata of package disk, where it is compressed with
// gzip.
func image(t testing.TB, name string) []byte {
	t.Helper()
	return imagetest.Gunzip(t, "../testdata/"+name+".gz")
}

func wantRefused(t *testing.T, err error, reason string) {
	t.Helper()
	e, ok := errors.AsType[*FormatError](err)
	if !ok || !strings.HasPrefix(e.Reason, reason) || e.Hint == "" {
		t.Errorf("error %#v; want %q with a hint", err, reason)
	}
}

func edited(good []byte, edits ...edit) []byte {
	b := bytes.Clone(good)
	for _, e := range edits {
		e(b)
	}
	return b
}

// hostile contains one image for each rule, which violates only this rule. v3.qcow2 has 6 clusters of
// 64 KiB, extended-l2.qcow2 has clusters of 16 KiB.
var hostile = []struct {
	name   string
	base   string
	reason string
	edits  []edit
}{
	{"version 0", "v3", "qcow version 0 is neither 2 nor 3", []edit{put32(atVersion, 0)}},
	{"version 1", "v2", "qcow version 1 is neither 2 nor 3", []edit{put32(atVersion, 1)}},
	{"version 4", "v3", "qcow version 4 is neither 2 nor 3", []edit{put32(atVersion, 4)}},

	{"backing offset", "v3", "the qcow2 image has a backing file", []edit{put64(atBackingOffset, 0x200)}},
	{"backing length alone", "v3", "the qcow2 image has a backing file", []edit{put32(atBackingLength, 11)}},
	{"backing file of version 2", "v2", "the qcow2 image has a backing file", []edit{put64(atBackingOffset, 0x200), put32(atBackingLength, 11)}},
	{"backing format", "v3", "the qcow2 image has a backing file", []edit{putExtensions(atExtensions, extensionBackingFormat, 3, 0x72617700, 0, 0, 0)}},
	{"backing format after other extensions", "v3", "the qcow2 image has a backing file", []edit{putExtensions(atExtensions, 0x12345678, 5, 0, 0, extensionBackingFormat, 3)}},
	{"backing format of version 2", "v2", "the qcow2 image has a backing file", []edit{putExtensions(72, extensionBackingFormat, 3)}},
	{"backing format at the end of the cluster", "v3", "the qcow2 image has a backing file", []edit{putExtensions(atExtensions, 0x12345678, 64<<10-112-16), putExtensions(64<<10-8, extensionBackingFormat, 0)}},
	{"data file bit", "v3", "the qcow2 image has its data in another file", []edit{put64(atIncompatible, featureDataFile)}},
	{"data file name", "v3", "the qcow2 image has its data in another file", []edit{putExtensions(atExtensions, extensionDataFile, 8)}},
	{"raw data file", "v3", "the qcow2 image has its data in another file", []edit{put64(atAutoclear, autoclearRawData)}},
	{"AES", "v3", "the qcow2 image uses qcow2 encryption", []edit{put32(atEncryption, 1)}},
	{"LUKS", "v3", "the qcow2 image uses qcow2 encryption", []edit{put32(atEncryption, 2)}},
	{"LUKS header", "v3", "the qcow2 image uses qcow2 encryption", []edit{putExtensions(atExtensions, extensionEncryption, 16)}},

	{"unknown feature", "v3", "the qcow2 image needs unknown features (bits 0x20)", []edit{put64(atIncompatible, 1<<5)}},
	{"last feature", "v3", "the qcow2 image needs unknown features (bits 0x8000000000000000)", []edit{put64(atIncompatible, 1<<63)}},
	{"corrupt", "v3", "the qcow2 image is marked as corrupt", []edit{put64(atIncompatible, featureCorrupt)}},
	{"dirty", "v3", "the qcow2 image was not closed by its last writer", []edit{put64(atIncompatible, featureDirty)}},
	{"unknown compression", "zstd", "the qcow2 image has an unknown compression type (2)", []edit{put32(atCompression, 2<<24)}},
	{"zstd without its bit", "v3", "the qcow2 image has an unknown compression type (1)", []edit{put32(atCompression, 1<<24)}},
	{"zstd bit without zstd", "zstd", "the qcow2 image has an unknown compression type (0)", []edit{put32(atCompression, 0)}},
	{"zstd bit without the field", "zstd", "the qcow2 image has an unknown compression type (0)", []edit{put32(atLength, 104)}},

	{"clusters of 256 bytes", "v3", "the qcow2 image has clusters of 2^8 bytes: 2^9 to 2^21 are allowed", []edit{put32(atClusterBits, 8)}},
	{"clusters of 4 MiB", "v3", "the qcow2 image has clusters of 2^22 bytes: 2^9 to 2^21 are allowed", []edit{put32(atClusterBits, 22)}},
	{"clusters of 2^63 bytes", "v3", "the qcow2 image has clusters of 2^63 bytes: 2^9 to 2^21 are allowed", []edit{put32(atClusterBits, 63)}},
	{"clusters of 2^64 bytes", "v2", "the qcow2 image has clusters of 2^64 bytes: 2^9 to 2^21 are allowed", []edit{put32(atClusterBits, 64)}},
	{"subclusters below a sector", "extended-l2", "the qcow2 image has clusters of 2^13 bytes: 2^14 to 2^21 are allowed", []edit{put32(atClusterBits, 13)}},
	{"short header", "v3", "the qcow2 header has an invalid length of 96 bytes", []edit{put32(atLength, 96)}},
	{"no header", "v3", "the qcow2 header has an invalid length of 0 bytes", []edit{put32(atLength, 0)}},
	{"odd header", "v3", "the qcow2 header has an invalid length of 113 bytes", []edit{put32(atLength, 113)}},
	{"header longer than a cluster", "v3", "the qcow2 header has an invalid length of 65544 bytes", []edit{put32(atLength, 65544)}},
	{"endless header", "v3", "the qcow2 header has an invalid length of 4294967288 bytes", []edit{put32(atLength, 0xfffffff8)}},
	{"wide reference counts", "v3", "the qcow2 image has reference counts of 2^7 bits", []edit{put32(atRefcountOrder, 7)}},

	{"no virtual size", "v3", "the virtual size 0 of the qcow2 image is not a whole number of sectors", []edit{put64(atSize, 0)}},
	{"odd virtual size", "v3", "the virtual size 1000 of the qcow2 image is not a whole number of sectors", []edit{put64(atSize, 1000)}},
	{"huge virtual size", "v3", "the virtual size 70368744178176 of the qcow2 image is larger than 70368744177664 (64 TiB)", []edit{put64(atSize, 64<<40+512)}},
	{"negative virtual size", "v3", "the virtual size 18446744073709551104 of the qcow2 image is larger than 70368744177664 (64 TiB)", []edit{put64(atSize, 1<<64-512)}},

	{"L1 table too small", "v3", "the L1 table of the qcow2 image has 1 entries: its virtual size needs 2", []edit{put64(atSize, 512<<20+512)}},
	{"no L1 table", "v3", "the L1 table of the qcow2 image has 0 entries: its virtual size needs 1", []edit{put32(atL1Entries, 0)}},
	{"L1 table too small for extended entries", "extended-l2", "the L1 table of the qcow2 image has 64 entries: its virtual size needs 65", []edit{put64(atSize, 1<<30+512)}},
	{"huge L1 table", "v3", "the L1 table of the qcow2 image has 33554440 bytes; at most 33554432 are allowed", []edit{put32(atL1Entries, 4<<20+1)}},
	{"endless L1 table", "v3", "the L1 table of the qcow2 image has 34359738360 bytes; at most 33554432 are allowed", []edit{put32(atL1Entries, 1<<32-1)}},
	{"L1 table at the header", "v3", "the L1 table of the qcow2 image does not begin at a cluster border", []edit{put64(atL1Offset, 0)}},
	{"L1 table within a cluster", "v3", "the L1 table of the qcow2 image does not begin at a cluster border", []edit{put64(atL1Offset, 0x30200)}},
	{"L1 table after the end of the file", "v3", "the L1 table of the qcow2 image lies outside the file", []edit{put64(atL1Offset, 6<<16)}},
	{"L1 table across the end of the file", "v3", "the L1 table of the qcow2 image lies outside the file", []edit{put64(atL1Offset, 5<<16), put32(atL1Entries, 8193)}},
	{"L1 table at a negative offset", "v3", "the L1 table of the qcow2 image lies outside the file", []edit{put64(atL1Offset, 1<<64-1<<16)}},

	{"no reference counts", "v3", "the qcow2 image has no refcount table", []edit{put32(atRefcountClusters, 0)}},
	{"huge reference counts", "v3", "the refcount table of the qcow2 image has 8454144 bytes; at most 8388608 are allowed", []edit{put32(atRefcountClusters, 129)}},
	{"endless reference counts", "v3", "the refcount table of the qcow2 image has 281474976645120 bytes; at most 8388608 are allowed", []edit{put32(atRefcountClusters, 1<<32-1)}},
	{"reference counts within a cluster", "v3", "the refcount table of the qcow2 image does not begin at a cluster border", []edit{put64(atRefcountOffset, 0x10001)}},
	{"reference counts after the end of the file", "v3", "the refcount table of the qcow2 image lies outside the file", []edit{put64(atRefcountOffset, 1<<40)}},
	{"many snapshots", "v3", "the qcow2 image has 65537 snapshots; at most 65536 are allowed", []edit{put32(atSnapshots, 65537)}},
	{"snapshots within a cluster", "snapshot", "the snapshot table of the qcow2 image does not begin at a cluster border", []edit{put64(atSnapshotsOffset, 8)}},
	{"no snapshots within a cluster", "v3", "the snapshot table of the qcow2 image does not begin at a cluster border", []edit{put64(atSnapshotsOffset, 8)}},
	{"no snapshots at a negative offset", "v3", "the snapshot table of the qcow2 image does not begin at a cluster border", []edit{put64(atSnapshotsOffset, 1<<63)}},
	{"snapshots after the end of the file", "snapshot", "the snapshot table of the qcow2 image lies outside the file", []edit{put64(atSnapshotsOffset, 1<<63)}},
	{"more snapshots than bytes", "snapshot", "the snapshot table of the qcow2 image lies outside the file", []edit{put32(atSnapshots, 60000)}},

	{"bitmaps", "v3", "the qcow2 image has bitmaps for backups", []edit{put64(atAutoclear, autoclearBitmaps), putExtensions(atExtensions, extensionBitmaps, 24)}},
	{"long extension", "v3", "a header extension of the qcow2 image does not fit into its first cluster", []edit{putExtensions(atExtensions, 0x12345678, 1<<32-1)}},
	{"last extension too long", "v3", "a header extension of the qcow2 image does not fit into its first cluster", []edit{putExtensions(atExtensions, extensionEnd, 64<<10-112-8+1)}},
	{"extension across the cluster", "v3", "a header extension of the qcow2 image does not fit into its first cluster", []edit{putExtensions(atExtensions, 0x12345678, 64<<10-112-8+1)}},
	{"many extensions", "v3", "the qcow2 image has more than 64 header extensions", []edit{putExtensions(atExtensions, slices.Repeat([]uint32{0x12345678, 0}, 64)...)}},

	{"reserved bits", "v3", "an L1 entry of the qcow2 image has reserved bits set", []edit{putL1(0, 1<<63|1<<56|4<<16)}},
	{"low reserved bits", "v3", "an L1 entry of the qcow2 image has reserved bits set", []edit{putL1(0, 4<<16|1)}},
	{"no L2 table, but its flag", "v3", "an L1 entry of the qcow2 image has a flag without an offset", []edit{putL1(0, 1<<63)}},
	{"L2 table within a cluster", "v3", "the L2 table of the qcow2 image does not begin at a cluster border", []edit{putL1(0, 1<<63|4<<16|512)}},
	{"L2 table after the end of the file", "v3", "the L2 table of the qcow2 image lies outside the file", []edit{putL1(0, 1<<63|6<<16)}},
	{"L2 table at a huge offset", "large", "the L2 table of the qcow2 image lies outside the file", []edit{putL1(4095, 1<<56-1<<16)}},
}

func TestInspectRefusesHostileHeaders(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			b := edited(image(t, "good/"+c.base+".qcow2"), c.edits...)
			size, err := Inspect(bytes.NewReader(b), int64(len(b)))
			if size != 0 {
				t.Errorf("Inspect = %d; want none", size)
			}
			wantRefused(t, err, c.reason)
			_, err = Open(bytes.NewReader(b), int64(len(b)))
			wantRefused(t, err, c.reason)
		})
	}
}

// TestInspectAcceptsUnusualHeaders checks that unusual but harmless images are accepted.
func TestInspectAcceptsUnusualHeaders(t *testing.T) {
	for _, c := range []struct {
		name  string
		base  string
		edits []edit
	}{
		{"unknown extension", "v3", []edit{putExtensions(atExtensions, 0x12345678, 3, 0, 0, 0, 0)}},
		{"extension up to the end of the cluster", "v3", []edit{putExtensions(atExtensions, 0x12345678, 64<<10-112-8)}},
		{"bitmaps that QEMU ignores", "v3", []edit{putExtensions(atExtensions, extensionBitmaps, 24, 0, 0, 0, 0, 0, 0, 0, 0)}},
		{"header of 104 bytes", "v3", []edit{put32(atLength, 104), putExtensions(104, 0, 0)}},
		{"unknown compatible feature", "v3", []edit{put64(80, 1<<40)}},
		{"header that fills the first cluster", "v3", []edit{put32(atLength, 64<<10)}},
		{"reference counts of 64 bits", "v3", []edit{put32(atRefcountOrder, 6)}},
		{"no snapshots, past the end", "v3", []edit{put64(atSnapshotsOffset, 1<<40)}},
		{"no data", "v3", []edit{putL1(0, 0)}},
		{"L1 table up to the end", "v3", []edit{put64(atL1Offset, 4<<16), put32(atL1Entries, 16384), func(b []byte) { clear(b[4<<16:]) }}},
		{"virtual size that the L1 table just covers", "v3", []edit{put64(atSize, 512<<20)}},
		{"extended entries that the L1 table just covers", "extended-l2", []edit{put64(atSize, 1<<30)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := edited(image(t, "good/"+c.base+".qcow2"), c.edits...)
			if _, err := Inspect(bytes.NewReader(b), int64(len(b))); err != nil {
				t.Errorf("Inspect: %v", err)
			}
		})
	}
}

// TestInspectHasBoundedCost checks the most expensive headers of a file without data: they require one
// read of the tables, and no more memory than small ones.
func TestInspectHasBoundedCost(t *testing.T) {
	race.Skip(t)
	head := edited(image(t, "good/v3.qcow2")[:64<<10],
		put32(atL1Entries, 4<<20), put64(atSize, 64<<40), put64(atRefcountOffset, 1<<32), put32(atRefcountClusters, 128),
		putExtensions(atExtensions, slices.Repeat([]uint32{0x12345678, 0}, maxExtensions-1)...),
		put64(atExtensions+8*(maxExtensions-1), 0))
	s := &imagetest.Sparse{Head: head, Size: 1 << 40}
	if size, err := Inspect(s, s.Size); size != 64<<40 || err != nil {
		t.Fatalf("Inspect = %d, %v; want %d", size, err, 64<<40)
	}
	if want := int64(maxL1Bytes + maxRefcountBytes + 64<<10); s.Bytes > want {
		t.Errorf("Inspect read %d bytes; want at most %d", s.Bytes, want)
	}
	for name, head := range map[string][]byte{
		"greedy":         head,
		"small":          image(t, "good/cluster512.qcow2"),
		"endless L1":     edited(head, put32(atL1Entries, 1<<32-1)),
		"endless header": edited(head, put32(atLength, 1<<32-8)),
		"endless rest":   edited(head, putExtensions(atExtensions, 0x12345678, 1<<32-1)),
		"snapshots":      edited(head, put32(atSnapshots, maxSnapshots), put64(atSnapshotsOffset, 1<<30)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Inspect(&imagetest.Sparse{Head: head, Size: 1 << 40}, 1<<40)
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 256<<10 {
			t.Errorf("%s: %d bytes allocated; want at most 256 KiB", name, got)
		}
	}
}
