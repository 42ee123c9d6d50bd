package qcow2

// maxTrackedClusters limits the memory of usedClusters, which needs one bit for each cluster of the
// file. The limit is enough for 2 TiB with clusters of 64 KiB.
const maxTrackedClusters = 32 << 20

// usedClusters is the set of clusters of a file to which a table or entry refers.
type usedClusters struct {
	header *header
	total  int64 // clusters of the file
	marked int64
	bits   []uint64 // nil: the file has too many clusters, and they are only counted
}

func newUsedClusters(h *header, size int64) *usedClusters {
	k := &usedClusters{header: h, total: (size + int64(h.clusterSize()) - 1) >> h.ClusterBits}
	if k.total <= maxTrackedClusters {
		k.bits = make([]uint64, (k.total+63)/64)
	}
	return k
}

// mark marks length bytes from offset on as used. It returns an error if a cluster is already marked.
// It ignores bytes after the end of the file, because lookup checks them.
func (k *usedClusters) mark(offset, length int64) error {
	first := offset >> k.header.ClusterBits
	last := min(k.total, (offset+length+int64(k.header.clusterSize())-1)>>k.header.ClusterBits)
	for c := first; c < last; c++ {
		if k.marked++; k.marked > k.total {
			return k.refuse()
		}
		if k.bits == nil {
			continue
		}
		if k.bits[c/64]>>(c%64)&1 != 0 {
			return k.refuse()
		}
		k.bits[c/64] |= 1 << (c % 64)
	}
	return nil
}

func (k *usedClusters) refuse() error {
	return refuse(hintDamaged, "a cluster of the qcow2 image is used twice")
}

// checkL2 reads every L2 table once. It returns an error if a table or cluster is used twice. It
// reads at most the size of the file, because it marks each table. It does not mark compressed
// clusters, because several of them share a cluster of the file.
func (m *Image) checkL2() error {
	h := m.header
	k := newUsedClusters(h, m.file.size)
	for _, t := range []struct{ offset, length int64 }{
		{0, 1},
		{int64(h.L1Offset), int64(h.L1Entries) * 8},
		{int64(h.RefcountOffset), int64(h.RefcountClusters) << h.ClusterBits},
	} {
		if err := k.mark(t.offset, t.length); err != nil {
			return err
		}
	}
	for i := range int64(h.needL1()) {
		entry, err := m.tables.l1(int64(h.L1Offset) + i*8)
		if err != nil {
			return err
		}
		table := int64(entry & l1OffsetMask)
		if table == 0 {
			continue
		}
		if err := k.mark(table, int64(h.clusterSize())); err != nil {
			return err
		}
		if err := m.checkTableL2(table, i, k); err != nil {
			return err
		}
	}
	return nil
}

// checkTableL2 checks the entries of a table that refer to clusters of the disk.
func (m *Image) checkTableL2(table, index int64, k *usedClusters) error {
	h := m.header
	entries := int64(h.clusterSize()) >> h.entryBits()
	clusters := (m.Size()+int64(h.clusterSize())-1)>>h.ClusterBits - index*entries
	for i := range min(entries, clusters) {
		entry, err := m.tables.entry(table + i<<h.entryBits())
		if err != nil {
			return err
		}
		if entry == 0 {
			continue
		}
		if err := m.checkL2Entry(entry, (index*entries+i)<<h.ClusterBits, k); err != nil {
			return err
		}
	}
	return nil
}

func (m *Image) checkL2Entry(entry uint64, off int64, k *usedClusters) error {
	if entry&l2Compressed != 0 {
		_, _, err := m.compressedRange(entry)
		return err
	}
	end := min(off+int64(m.header.clusterSize()), m.Size())
	for off < end {
		e, err := m.lookup(off)
		if err != nil {
			return err
		}
		off += e.length
	}
	if host := entry & l2OffsetMask; host != 0 {
		return k.mark(int64(host), 1)
	}
	return nil
}
