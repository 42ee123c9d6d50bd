package qcow2

import "encoding/binary"

const (
	// Tables are read in pieces of this size. The L1 table and the L2 tables have one buffer each.
	bufferSize = 64 << 10

	// A check may read this much in addition to twice the size of the file. It is enough for the L1
	// table in each of several passes.
	extraTableBytes = 128 << 20
)

// checker checks that every entry of every table of a file refers to something in the file that no
// other entry uses for another purpose.
//
// A valid file is read in one pass, or in a few passes if it has more clusters than the window of
// clusterMap. The checker reads only tables. What it reads is limited (left): a hostile file may let many
// snapshots share one L2 table outside the window, which is then read for each of them.
type checker struct {
	file
	h        *header
	clusters clusterMap
	left     int64 // bytes that may still be read
	outer    []byte
	inner    []byte // for tables that are read while outer is in use
}

// check checks the whole file.
func (f file) check() (*header, error) {
	c, err := newChecker(f)
	if err != nil {
		return nil, err
	}
	for first := int64(0); first < c.clusters.total; first += windowClusters {
		c.clusters.move(first)
		if err := c.checkWindow(); err != nil {
			return nil, err
		}
	}
	return c.h, nil
}

// newChecker checks the header and its extensions, and returns a checker of the tables.
func newChecker(f file) (*checker, error) {
	h, err := f.checkHead()
	if err != nil {
		return nil, err
	}
	return &checker{
		file: f, h: h, left: 2*f.size + extraTableBytes,
		clusters: clusterMap{clusterBits: h.ClusterBits, total: (f.size-1)>>h.ClusterBits + 1},
		outer:    make([]byte, bufferSize), inner: make([]byte, min(bufferSize, h.clusterSize())),
	}, nil
}

// checkWindow reads all tables. It finds every cluster of the window that is used twice.
func (c *checker) checkWindow() error {
	active := tree{offset: int64(c.h.L1Offset), entries: int64(c.h.L1Entries)}
	for _, check := range []func() error{
		c.markHeader, c.markSnapshots,
		func() error { return c.checkTree(active) },
		func() error { _, err := c.snapshots(c.checkTree); return err },
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// markHeader marks the header, the L1 table, the refcount table and the refcount blocks. The checker
// does not read the reference counts, because only programs that write to the image use them.
func (c *checker) markHeader() error {
	h := c.h
	for _, t := range []struct{ offset, length int64 }{
		{0, 1},
		{int64(h.L1Offset), int64(h.L1Entries) * 8},
		{int64(h.RefcountOffset), int64(h.RefcountClusters) << h.ClusterBits},
	} {
		if err := c.clusters.mark(t.offset, t.length, usedAsMetadata, false); err != nil {
			return err
		}
	}
	refcounts := table{int64(h.RefcountOffset), int64(h.RefcountClusters) << (h.ClusterBits - 3), 8}
	return c.entries(refcounts, c.outer, func(_ int64, entry, _ uint64) error {
		if err := h.checkTable("refcount block", entry, h.clusterSize(), h.clusterSize(), c.size); err != nil {
			return err
		}
		return c.clusters.mark(int64(entry), 1, usedAsMetadata, false)
	})
}

// tree is an L1 table with its L2 tables: the disk that a guest sees, or a snapshot.
type tree struct {
	offset, entries int64 // the L1 table
	snapshot        bool  // it shares L2 tables and data with other trees
}

// checkTree checks the L2 tables of a tree and their entries. A table is marked before it is read, so a
// hostile file cannot make the time depend on its virtual size: a table of the disk is read once, and a
// table of snapshots once for each window, or for each snapshot if it is outside the window.
func (c *checker) checkTree(t tree) error {
	h := c.h
	covered := int64(1) << (h.ClusterBits - h.entryBits()) // entries of an L2 table
	return c.entries(table{t.offset, t.entries, 8}, c.outer, func(index int64, entry, _ uint64) error {
		offset := int64(entry & l1OffsetMask)
		err := h.checkL1Entry(entry, c.size)
		if err != nil || offset == 0 || t.snapshot && c.clusters.at(offset) == usedAsTable {
			return err
		}
		if err := c.clusters.mark(offset, 1, usedAsTable, false); err != nil {
			return err
		}
		return c.entries(table{offset, covered, 1 << h.entryBits()}, c.inner, func(i int64, entry, bitmap uint64) error {
			err := c.checkL2Entry(entry, bitmap, t.snapshot)
			return located(err, t.snapshot, (index*covered+i)<<h.ClusterBits)
		})
	})
}

// checkL2Entry checks an entry. bitmap is the second half of an extended entry.
func (c *checker) checkL2Entry(entry, bitmap uint64, shared bool) error {
	h := c.h
	if entry&l2Compressed != 0 {
		offset, length, err := h.compressedRange(entry, c.size)
		if err != nil {
			return err
		}
		return c.clusters.mark(offset, length, usedAsCompressed, true)
	}
	host, err := h.standardOffset(entry)
	if err != nil {
		return err
	}
	hasData := host != 0 && entry&l2Zero == 0
	if h.entryBits() == 4 {
		if err := checkSubclusters(bitmap, host); err != nil {
			return err
		}
		hasData = uint32(bitmap) != 0
	}
	switch {
	case hasData && host >= c.size:
		return errClusterOutside
	case host != 0:
		return c.clusters.mark(host, 1, usedAsData, shared)
	}
	return nil
}

// located adds to a *FormatError which part of the disk an L2 entry describes.
func located(err error, snapshot bool, offset int64) error {
	e, ok := err.(*FormatError)
	if !ok {
		return err
	}
	where := "the disk"
	if snapshot {
		where = "a snapshot"
	}
	return refuse(e.Hint, "%s (L2 entry for offset %d of %s)", e.Reason, offset, where)
}

// table is an array of entries of 8 or 16 bytes.
type table struct {
	offset, entries, entrySize int64
}

// entries calls visit(i, first, second) for each non-zero entry i of a table. second is the second half of
// an entry of 16 bytes.
func (c *checker) entries(t table, buffer []byte, visit func(i int64, first, second uint64) error) error {
	size := t.entries * t.entrySize
	if c.left -= size; c.left < 0 {
		return refuse(hintConvert, "the tables of the qcow2 image refer to each other too often: they have more than %d bytes", 2*c.size+extraTableBytes)
	}
	for at := int64(0); at < size; at += int64(len(buffer)) {
		b := buffer[:min(int64(len(buffer)), size-at)]
		if err := c.read(b, t.offset+at); err != nil {
			return err
		}
		for k := int64(0); k < int64(len(b)); k += t.entrySize {
			first, second := binary.BigEndian.Uint64(b[k:]), uint64(0)
			if t.entrySize == 16 {
				second = binary.BigEndian.Uint64(b[k+8:])
			}
			if first|second == 0 {
				continue
			}
			if err := visit((at+k)/t.entrySize, first, second); err != nil {
				return err
			}
		}
	}
	return nil
}
