package qcow2

import "encoding/binary"

// Limits of QEMU for internal snapshots.
const (
	maxSnapshots         = 65536
	minSnapshotBytes     = 40 // of an entry without ID, name and extra data
	maxSnapshotTable     = 64 << 20
	maxSnapshotExtraData = 1024
)

// snapshotEntry is the beginning of an entry of the snapshot table, byte for byte. Extra data, ID and
// name follow. Each entry begins at a multiple of 8 bytes.
type snapshotEntry struct {
	L1Offset   uint64
	L1Entries  uint32
	IDBytes    uint16
	NameBytes  uint16
	_          [20]byte // times, and the size of the machine's state
	ExtraBytes uint32
}

// markSnapshots marks the snapshot table and the L1 tables of all snapshots.
func (c *checker) markSnapshots() error {
	h := c.h
	length, err := c.snapshots(func(t tree) error {
		if err := h.checkTable("L1 table of a snapshot", uint64(t.offset), uint64(t.entries)*8, maxL1Bytes, c.size); err != nil {
			return err
		}
		return c.clusters.mark(t.offset, t.entries*8, usedAsMetadata, false)
	})
	if err != nil || length == 0 {
		return err
	}
	return c.clusters.mark(int64(h.SnapshotsOffset), length, usedAsMetadata, false)
}

// snapshots reads the snapshot table. It calls visit with each snapshot, and returns the length of the
// table in bytes.
func (c *checker) snapshots(visit func(tree) error) (length int64, err error) {
	b := make([]byte, minSnapshotBytes)
	for range c.h.Snapshots {
		length = (length + 7) &^ 7
		at := int64(c.h.SnapshotsOffset) + length
		if at+minSnapshotBytes > c.size {
			return 0, refuse(hintDamaged, "the snapshot table of the qcow2 image lies outside the file")
		}
		if err := c.read(b, at); err != nil {
			return 0, err
		}
		var s snapshotEntry
		if _, err := binary.Decode(b, binary.BigEndian, &s); err != nil {
			return 0, err
		}
		length += minSnapshotBytes + int64(s.ExtraBytes) + int64(s.IDBytes) + int64(s.NameBytes)
		switch {
		case s.ExtraBytes > maxSnapshotExtraData:
			return 0, refuse(hintDamaged, "a snapshot of the qcow2 image has %d bytes of extra data; at most %d are allowed", s.ExtraBytes, maxSnapshotExtraData)
		case length > maxSnapshotTable:
			return 0, refuse(hintDamaged, "the snapshot table of the qcow2 image has more than %d bytes", maxSnapshotTable)
		case int64(c.h.SnapshotsOffset)+length > c.size:
			return 0, refuse(hintDamaged, "the snapshot table of the qcow2 image lies outside the file")
		}
		if err := visit(tree{offset: int64(s.L1Offset), entries: int64(s.L1Entries), snapshot: true}); err != nil {
			return 0, err
		}
	}
	return length, nil
}
