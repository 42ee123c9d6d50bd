package qcow2

// kind is what an extent of the disk is in the file.
type kind uint8

const (
	zero   kind = iota // nothing
	plain              // the same bytes
	packed             // one compressed cluster, or a part of it
)

// extent is a piece of the disk, within one cluster unless it is zero.
type extent struct {
	kind   kind
	length int64

	host  int64 // plain: offset in the file
	entry uint64
	skip  int64 // packed: where the extent begins in its cluster
}

// L2 entries: the offset of a cluster between reserved bits, and flags. Those of
// compressed clusters are divided otherwise.
const (
	l2OffsetMask   = l1OffsetMask
	l2Compressed   = 1 << 62
	l2Zero         = 1
	l2ReservedMask = 1<<62 - 1 - l2OffsetMask - l2Zero

	subclusters = 32
)

// lookup returns the extent of the disk that begins at off, which lies on the disk, up
// to the end of its cluster or of what is alike in it. Where a whole L2 table is missing
// the extent is what it would stand for.
func (m *Image) lookup(off int64) (extent, error) {
	e, err := m.find(off)
	if err != nil {
		return extent{}, err
	}
	e.length = min(e.length, m.Size()-off)
	return e, nil
}

func (m *Image) find(off int64) (extent, error) {
	h := m.header
	tableBits := h.ClusterBits + h.ClusterBits - h.entryBits()
	l1, err := m.pages.l1(int64(h.L1Offset) + off>>tableBits*8)
	if err != nil {
		return extent{}, err
	}
	if err := h.checkL1Entry(l1, m.file.size); err != nil {
		return extent{}, err
	}
	table := int64(l1 & l1OffsetMask)
	if table == 0 {
		return extent{kind: zero, length: 1<<tableBits - off&(1<<tableBits-1)}, nil
	}
	index := off & (1<<tableBits - 1) >> h.ClusterBits
	entry, err := m.pages.entry(table + index<<h.entryBits())
	if err != nil {
		return extent{}, err
	}
	skip := off & (1<<h.ClusterBits - 1)
	rest := 1<<h.ClusterBits - skip
	if entry&l2Compressed != 0 {
		return extent{kind: packed, length: rest, entry: entry, skip: skip}, nil
	}
	host, err := h.plainOffset(entry)
	if err != nil {
		return extent{}, err
	}
	e := extent{kind: plain, length: rest, host: host + skip}
	if h.entryBits() == 4 {
		if e, err = m.subcluster(e, table+index<<4+8, host, skip); err != nil {
			return extent{}, err
		}
	} else if host == 0 || entry&l2Zero != 0 {
		return extent{kind: zero, length: rest}, nil
	}
	if e.kind == plain && host >= m.file.size {
		return extent{}, refuse(hintDamaged, "a cluster of the qcow2 image lies outside the file")
	}
	return e, nil
}

// plainOffset returns the offset of the cluster that an L2 entry of an uncompressed
// cluster names, 0 for none.
func (h *header) plainOffset(entry uint64) (int64, error) {
	reserved := uint64(l2ReservedMask)
	if h.Version == 2 || h.entryBits() == 4 {
		reserved |= l2Zero
	}
	host := entry & l2OffsetMask
	switch {
	case entry&reserved != 0:
		return 0, refuse(hintDamaged, "an L2 entry of the qcow2 image has reserved bits set")
	case host%h.clusterSize() != 0:
		return 0, refuse(hintDamaged, "an L2 entry of the qcow2 image names no whole cluster")
	}
	return int64(host), nil
}

// subcluster narrows e, the rest of a cluster from skip on, to the subclusters that are
// alike, by the bitmap at offset: a bit for those that are there, and 32 further on one
// for those that are zeros.
func (m *Image) subcluster(e extent, offset, host, skip int64) (extent, error) {
	bitmap, err := m.pages.entry(offset)
	if err != nil {
		return extent{}, err
	}
	there, zeros := uint32(bitmap), uint32(bitmap>>32)
	switch {
	case there&zeros != 0:
		return extent{}, refuse(hintDamaged, "a subcluster of the qcow2 image is both zeros and data")
	case there != 0 && host == 0:
		return extent{}, refuse(hintDamaged, "an L2 entry of the qcow2 image has data nowhere")
	}
	bits := m.header.ClusterBits - 5
	first := skip >> bits
	last := first + 1
	for last < subclusters && there>>last&1 == there>>first&1 {
		last++
	}
	e.length = last<<bits - skip
	if there>>first&1 == 0 {
		e.kind = zero
	}
	return e, nil
}
