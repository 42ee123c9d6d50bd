package qcow2

import (
	"encoding/binary"
	"math"
)

// checkTables checks where the tables lie in a file of size bytes.
func (h *header) checkTables(size int64) error {
	if h.Snapshots > maxSnapshots {
		return refuse(hintDamaged, "the qcow2 image has %d snapshots: %d are possible", h.Snapshots, maxSnapshots)
	}
	if h.RefcountClusters == 0 {
		return refuse(hintDamaged, "the qcow2 image has no table of reference counts")
	}
	if need := h.needL1(); uint64(h.L1Entries) < need {
		return refuse(hintDamaged, "the L1 table of the qcow2 image has %d entries where its virtual size needs %d", h.L1Entries, need)
	}
	err := h.checkTable("L1 table", h.L1Offset, uint64(h.L1Entries)*8, maxL1Bytes, size)
	if err == nil {
		err = h.checkTable("table of reference counts", h.RefcountOffset, uint64(h.RefcountClusters)<<h.ClusterBits, maxRefcountBytes, size)
	}
	if err == nil && h.Snapshots > 0 {
		err = h.checkTable("table of snapshots", h.SnapshotsOffset, uint64(h.Snapshots)*minSnapshotBytes, maxSnapshots*minSnapshotBytes, size)
	}
	if err == nil && (h.SnapshotsOffset%h.clusterSize() != 0 || h.SnapshotsOffset > math.MaxInt64) {
		// Without snapshots the offset may be anywhere, past the end too.
		err = refuse(hintDamaged, "the table of snapshots of the qcow2 image does not begin at a cluster of its own")
	}
	return err
}

// needL1 returns the number of L1 entries that cover the virtual size. Each
// stands for one L2 table, which is one cluster of entries.
func (h *header) needL1() uint64 {
	covered := uint64(1) << (h.ClusterBits + h.ClusterBits - h.entryBits())
	return (h.Size + covered - 1) / covered
}

// entryBits returns the binary logarithm of the size of an L2 entry. Extended ones have a
// bitmap of subclusters.
func (h *header) entryBits() uint32 {
	if h.Incompatible&featureExtendedL2 != 0 {
		return 4
	}
	return 3
}

func (h *header) checkTable(name string, offset, length, limit uint64, size int64) error {
	switch {
	case length > limit:
		return refuse(hintDamaged, "the %s of the qcow2 image has %d bytes: %d are possible", name, length, limit)
	case offset == 0 || offset%h.clusterSize() != 0:
		return refuse(hintDamaged, "the %s of the qcow2 image does not begin at a cluster of its own", name)
	case offset > uint64(size) || length > uint64(size)-offset:
		return refuse(hintDamaged, "the %s of the qcow2 image lies outside the file", name)
	}
	return nil
}

// L1 entries: the offset of an L2 table between reserved bits, and one flag.
const (
	l1OffsetMask   = 1<<56 - 1<<9
	l1ReservedMask = 1<<63 - 1 - l1OffsetMask
)

// checkL1 reads the L1 table, of up to 32 MiB, through one small buffer.
func (f file) checkL1(h *header) error {
	rest, offset := int64(h.L1Entries)*8, int64(h.L1Offset)
	buffer := make([]byte, min(rest, 64<<10))
	for rest > 0 {
		b := buffer[:min(rest, int64(len(buffer)))]
		if err := f.read(b, offset); err != nil {
			return err
		}
		for i := 0; i < len(b); i += 8 {
			if err := h.checkL1Entry(binary.BigEndian.Uint64(b[i:]), f.size); err != nil {
				return err
			}
		}
		offset += int64(len(b))
		rest -= int64(len(b))
	}
	return nil
}

func (h *header) checkL1Entry(entry uint64, size int64) error {
	if entry&l1ReservedMask != 0 {
		return refuse(hintDamaged, "an L1 entry of the qcow2 image has reserved bits set")
	}
	l2 := entry & l1OffsetMask
	if l2 == 0 {
		return nil
	}
	return h.checkTable("L2 table", l2, h.clusterSize(), h.clusterSize(), size)
}
