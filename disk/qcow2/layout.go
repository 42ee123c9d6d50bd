package qcow2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sort"
)

// layout contains the offsets of all parts of the file, in bytes. Each part begins at a cluster
// border.
type layout struct {
	virtual int64
	tables  []*l2Plan

	refcountBlocks int64 // the refcount table is before the refcount blocks, in the second cluster of the file
	l1             int64
	l2             int64
	standard       int64
	compressed     int64
	size           int64
}

// divideUp returns n / each, rounded up.
func divideUp(n, each int64) int64 { return (n + each - 1) / each }

func newLayout(size int64, tables []*l2Plan) layout {
	l := layout{virtual: size}
	var plain, packed int64
	for _, t := range tables {
		t.standard, t.compressed = plain, packed
		for i := t.next(0); i < tableEntries; i = t.next(i + 1) {
			if n := t.size(i); n > 0 {
				packed += int64(n)
			} else {
				plain++
			}
		}
		if plain > t.standard || packed > t.compressed {
			l.tables = append(l.tables, t)
		}
	}
	l1 := divideUp(l.entries(), tableEntries)
	rest := l1 + int64(len(l.tables)) + plain + divideUp(packed, encodeCluster)
	// The refcount blocks also count themselves and the refcount table. Each iteration can only add
	// clusters, so the loop ends.
	blocks, counts := int64(1), int64(1)
	for {
		total := 1 + counts + blocks + rest
		b := divideUp(total, refcountEntries)
		c := divideUp(b, tableEntries)
		if b == blocks && c == counts {
			break
		}
		blocks, counts = b, c
	}
	l.refcountBlocks = (1 + counts) << encodeBits
	l.l1 = l.refcountBlocks + blocks<<encodeBits
	l.l2 = l.l1 + l1<<encodeBits
	l.standard = l.l2 + int64(len(l.tables))<<encodeBits
	l.compressed = l.standard + plain<<encodeBits
	l.size = l.compressed + divideUp(packed, encodeCluster)<<encodeBits
	return l
}

// entries returns the number of entries of the L1 table.
func (l *layout) entries() int64 { return divideUp(l.virtual, tableBytes) }

// putMetadata fills b, which contains zeros, with a metadata cluster of the file.
func (l *layout) putMetadata(b []byte, cluster int64) {
	switch off := cluster << encodeBits; {
	case cluster == 0:
		l.putHeader(b)
	case off < l.refcountBlocks:
		for i := range min(tableEntries, (l.l1-l.refcountBlocks)>>encodeBits-(cluster-1)*tableEntries) {
			putEntry(b, i, uint64(l.refcountBlocks+((cluster-1)*tableEntries+i)<<encodeBits))
		}
	case off < l.l1:
		l.putRefcounts(b, (off-l.refcountBlocks)>>encodeBits*refcountEntries)
	case off < l.l2:
		l.putL1(b, (off-l.l1)>>encodeBits*tableEntries)
	default:
		l.putL2(b, l.tables[(off-l.l2)>>encodeBits])
	}
}

func putEntry(b []byte, i int64, v uint64) { binary.BigEndian.PutUint64(b[i*8:], v) }

func (l *layout) putHeader(b []byte) {
	h := header{
		Magic:            [4]byte([]byte(Magic)),
		Version:          3,
		ClusterBits:      encodeBits,
		Size:             uint64(l.virtual),
		L1Entries:        uint32(l.entries()),
		L1Offset:         uint64(l.l1),
		RefcountOffset:   encodeCluster,
		RefcountClusters: uint32(l.refcountBlocks>>encodeBits - 1),
		RefcountOrder:    4,
		Length:           v3HeaderLength,
	}
	// The compression type follows the header length. Its value 0 also marks the end of the
	// extensions.
	if _, err := binary.Encode(b, binary.BigEndian, h); err != nil {
		panic("qcow2: " + err.Error())
	}
}

// putRefcounts fills b with a refcount block. The argument first is the cluster of its first entry.
func (l *layout) putRefcounts(b []byte, first int64) {
	last := min(first+refcountEntries, l.compressed>>encodeBits)
	for c := first; c < last; c++ {
		binary.BigEndian.PutUint16(b[(c-first)*2:], 1)
	}
	if first+refcountEntries > l.compressed>>encodeBits {
		l.putCompressedRefcounts(b, first)
	}
}

// putCompressedRefcounts counts, for each cluster of the file, the compressed clusters that overlap
// it.
func (l *layout) putCompressedRefcounts(b []byte, first int64) {
	begin, end := first<<encodeBits-l.compressed, (first+refcountEntries)<<encodeBits-l.compressed
	for c, ok := l.firstCompressed(begin); ok && c.compressed < end; c, ok = l.nextCompressed(c) {
		for at := c.compressed &^ (encodeCluster - 1); at < c.compressed+int64(c.t.size(c.i)); at += encodeCluster {
			if at >= begin && at < end {
				count := b[(at-begin)>>encodeBits*2:]
				binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
			}
		}
	}
}

// copied is the flag of an entry whose table or cluster has exactly one reference.
const copied = 1 << 63

func (l *layout) putL1(b []byte, first int64) {
	i := sort.Search(len(l.tables), func(i int) bool { return l.tables[i].index >= first })
	for ; i < len(l.tables) && l.tables[i].index < first+tableEntries; i++ {
		putEntry(b, l.tables[i].index-first, copied|uint64(l.l2+int64(i)<<encodeBits))
	}
}

func (l *layout) putL2(b []byte, t *l2Plan) {
	c := cursor{standard: t.standard, compressed: t.compressed}
	for i := t.next(0); i < tableEntries; i = t.next(i + 1) {
		n := t.size(i)
		if n == 0 {
			putEntry(b, int64(i), copied|uint64(l.standard+c.standard<<encodeBits))
			c.standard++
			continue
		}
		off := l.compressed + c.compressed
		sectors := (off+int64(n)-1)/sector - off/sector
		putEntry(b, int64(i), l2Compressed|uint64(sectors)<<(62-(encodeBits-8))|uint64(off))
		c.compressed += int64(n)
	}
}

// l2Plan describes an L2 table that will be written.
type l2Plan struct {
	index int64                     // in the L1 table
	used  [tableEntries / 64]uint64 // a bit for each cluster with data
	sizes []uint16                  // compressed size of each cluster; 0: a standard cluster; nil: no compression

	standard   int64 // number of standard clusters in all previous tables
	compressed int64 // bytes of compressed clusters in all previous tables
}

// drop removes cluster i, which contains only zeros.
func (t *l2Plan) drop(i int) { t.used[i/64] &^= 1 << (i % 64) }

// size returns the compressed size of cluster i. It is 0 for a standard cluster and for a cluster
// without data.
func (t *l2Plan) size(i int) int {
	if t.sizes == nil {
		return 0
	}
	return int(t.sizes[i])
}

// next returns the first cluster at or after i that has data, or tableEntries.
func (t *l2Plan) next(i int) int {
	for w := i / 64; w < len(t.used); w++ {
		word := t.used[w]
		if w == i/64 {
			word &= ^uint64(0) << (i % 64)
		}
		if word != 0 {
			return w*64 + bits.TrailingZeros64(word)
		}
	}
	return tableEntries
}

// planTables reads the ranges of src, and returns the plans of all L2 tables with data, in order.
func planTables(src Source) ([]*l2Plan, error) {
	var tables []*l2Plan
	for off := int64(0); off < src.Size(); {
		start, end, err := src.NextData(off)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if start < off || end <= start || end > src.Size() {
			return nil, fmt.Errorf("the source returned the range %d to %d as the next one after %d", start, end, off)
		}
		for c := start >> encodeBits; c <= (end-1)>>encodeBits; c++ {
			index := c / tableEntries
			if n := len(tables); n == 0 || tables[n-1].index != index {
				tables = append(tables, &l2Plan{index: index})
			}
			i := c % tableEntries
			tables[len(tables)-1].used[i/64] |= 1 << (i % 64)
		}
		off = end
	}
	return tables, nil
}

// cursor is a position: a cluster of the disk, the number of standard clusters before it, and the
// bytes of compressed clusters before it.
type cursor struct {
	t          *l2Plan
	table      int // index in layout.tables
	i          int // cluster in the table
	standard   int64
	compressed int64
}

// offset returns the offset of the cluster on the disk.
func (c cursor) offset() int64 { return c.t.index*tableBytes + int64(c.i)<<encodeBits }

// start returns a cursor before the first cluster of table n.
func (l *layout) start(n int) cursor {
	t := l.tables[n]
	return cursor{t: t, table: n, i: -1, standard: t.standard - 1, compressed: t.compressed}
}

// seekStandard returns the standard cluster n, which must exist. The search starts at the given cursor
// if n follows it within tableEntries clusters.
func (l *layout) seekStandard(from cursor, n int64) cursor {
	c := from
	if c.t == nil || c.standard > n || n >= c.t.standard+tableEntries {
		c = l.start(sort.Search(len(l.tables), func(i int) bool { return l.tables[i].standard > n }) - 1)
	}
	for c.standard < n {
		next, ok := l.nextStandard(c)
		if !ok {
			panic("qcow2: fewer clusters than were counted")
		}
		c = next
	}
	return c
}

// nextStandard returns the standard cluster after c.
func (l *layout) nextStandard(c cursor) (cursor, bool) {
	c, ok := l.next(c, false)
	c.standard++
	return c, ok
}

// firstCompressed returns the compressed cluster that contains an offset, which is counted from the
// first compressed cluster. For a negative offset it returns the first compressed cluster.
func (l *layout) firstCompressed(offset int64) (cursor, bool) {
	n := sort.Search(len(l.tables), func(i int) bool { return l.tables[i].compressed > offset }) - 1
	if len(l.tables) == 0 {
		return cursor{}, false
	}
	c, ok := l.next(l.start(max(0, n)), true)
	for ok && c.compressed+int64(c.t.size(c.i)) <= offset {
		c, ok = l.nextCompressed(c)
	}
	return c, ok
}

// nextCompressed returns the compressed cluster after c.
func (l *layout) nextCompressed(c cursor) (cursor, bool) {
	c.compressed += int64(c.t.size(c.i))
	return l.next(c, true)
}

// next returns the next compressed cluster after c, or the next standard cluster if packed is false.
func (l *layout) next(c cursor, packed bool) (cursor, bool) {
	for {
		c.i = c.t.next(c.i + 1)
		switch {
		case c.i < tableEntries && (c.t.size(c.i) > 0) == packed:
			return c, true
		case c.i < tableEntries:
		case c.table+1 < len(l.tables):
			c.table++
			c.t, c.i = l.tables[c.table], -1
		default:
			return c, false
		}
	}
}
