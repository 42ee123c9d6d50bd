package qcow2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sort"
)

// layout is where everything lies in the file: offsets in bytes, each at a cluster.
type layout struct {
	virtual int64
	tables  []*table

	blocks int64 // of reference counts; their table is the second cluster of the file
	l1     int64
	l2     int64
	plain  int64
	packed int64
	size   int64
}

func clusters(n, each int64) int64 { return (n + each - 1) / each }

func newLayout(size int64, tables []*table) layout {
	l := layout{virtual: size}
	var plain, packed int64
	for _, t := range tables {
		t.plain, t.packed = plain, packed
		for i := t.next(0); i < tableEntries; i = t.next(i + 1) {
			if n := t.size(i); n > 0 {
				packed += int64(n)
			} else {
				plain++
			}
		}
		if plain > t.plain || packed > t.packed {
			l.tables = append(l.tables, t)
		}
	}
	l1 := clusters(l.entries(), tableEntries)
	rest := l1 + int64(len(l.tables)) + plain + clusters(packed, encodeCluster)
	// The blocks count themselves and their table too. Each round only adds.
	blocks, counts := int64(1), int64(1)
	for {
		total := 1 + counts + blocks + rest
		b := clusters(total, refcountEntries)
		c := clusters(b, tableEntries)
		if b == blocks && c == counts {
			break
		}
		blocks, counts = b, c
	}
	l.blocks = (1 + counts) << encodeBits
	l.l1 = l.blocks + blocks<<encodeBits
	l.l2 = l.l1 + l1<<encodeBits
	l.plain = l.l2 + int64(len(l.tables))<<encodeBits
	l.packed = l.plain + plain<<encodeBits
	l.size = l.packed + clusters(packed, encodeCluster)<<encodeBits
	return l
}

// entries returns the number of entries of the L1 table.
func (l *layout) entries() int64 { return clusters(l.virtual, tableBytes) }

// putMetadata fills b, which is zeros, with the cluster of the file that is no data.
func (l *layout) putMetadata(b []byte, cluster int64) {
	switch off := cluster << encodeBits; {
	case cluster == 0:
		l.putHeader(b)
	case off < l.blocks:
		for i := range min(tableEntries, (l.l1-l.blocks)>>encodeBits-(cluster-1)*tableEntries) {
			putEntry(b, i, uint64(l.blocks+((cluster-1)*tableEntries+i)<<encodeBits))
		}
	case off < l.l1:
		l.putCounts(b, (off-l.blocks)>>encodeBits*refcountEntries)
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
		RefcountClusters: uint32(l.blocks>>encodeBits - 1),
		RefcountOrder:    4,
		Length:           v3HeaderLength,
	}
	// The compression type lies behind the length, and is 0 as the extensions' end is.
	if _, err := binary.Encode(b, binary.BigEndian, h); err != nil {
		panic("qcow2: " + err.Error())
	}
}

// putCounts fills a block of reference counts, from a cluster of the file on.
func (l *layout) putCounts(b []byte, first int64) {
	last := min(first+refcountEntries, l.packed>>encodeBits)
	for c := first; c < last; c++ {
		binary.BigEndian.PutUint16(b[(c-first)*2:], 1)
	}
	if first+refcountEntries > l.packed>>encodeBits {
		l.putPackedCounts(b, first)
	}
}

// putPackedCounts counts, for each cluster of the file, the packed clusters that it has a
// part of.
func (l *layout) putPackedCounts(b []byte, first int64) {
	begin, end := first<<encodeBits-l.packed, (first+refcountEntries)<<encodeBits-l.packed
	for c, ok := l.firstPacked(begin); ok && c.packed < end; c, ok = l.nextPacked(c) {
		for at := c.packed &^ (encodeCluster - 1); at < c.packed+int64(c.t.size(c.i)); at += encodeCluster {
			if at >= begin && at < end {
				count := b[(at-begin)>>encodeBits*2:]
				binary.BigEndian.PutUint16(count, binary.BigEndian.Uint16(count)+1)
			}
		}
	}
}

// copied says that a table or cluster has one reference.
const copied = 1 << 63

func (l *layout) putL1(b []byte, first int64) {
	i := sort.Search(len(l.tables), func(i int) bool { return l.tables[i].index >= first })
	for ; i < len(l.tables) && l.tables[i].index < first+tableEntries; i++ {
		putEntry(b, l.tables[i].index-first, copied|uint64(l.l2+int64(i)<<encodeBits))
	}
}

func (l *layout) putL2(b []byte, t *table) {
	c := cursor{plain: t.plain, packed: t.packed}
	for i := t.next(0); i < tableEntries; i = t.next(i + 1) {
		n := t.size(i)
		if n == 0 {
			putEntry(b, int64(i), copied|uint64(l.plain+c.plain<<encodeBits))
			c.plain++
			continue
		}
		off := l.packed + c.packed
		sectors := (off+int64(n)-1)/sector - off/sector
		putEntry(b, int64(i), l2Compressed|uint64(sectors)<<(62-(encodeBits-8))|uint64(off))
		c.packed += int64(n)
	}
}

// table says what an L2 table to be will hold.
type table struct {
	index int64                     // in the L1 table
	used  [tableEntries / 64]uint64 // a bit for each cluster with data
	sizes []uint16                  // with compression: of each cluster, packed; 0: it stays as it is

	plain  int64 // plain clusters in the tables before
	packed int64 // bytes of packed clusters in the tables before
}

func (t *table) drop(i int) { t.used[i/64] &^= 1 << (i % 64) }

// size returns the bytes of cluster i, packed; 0 means that it is plain, if it is at all.
func (t *table) size(i int) int {
	if t.sizes == nil {
		return 0
	}
	return int(t.sizes[i])
}

// next returns the first cluster from i on that the table has, or tableEntries.
func (t *table) next(i int) int {
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

// survey asks src for its ranges, and returns the tables that have any, in order.
func survey(src Source) ([]*table, error) {
	var tables []*table
	for off := int64(0); off < src.Size(); {
		start, end, err := src.NextData(off)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if start < off || end <= start || end > src.Size() {
			return nil, fmt.Errorf("range from %d to %d, asked for what follows %d", start, end, off)
		}
		for c := start >> encodeBits; c <= (end-1)>>encodeBits; c++ {
			index := c / tableEntries
			if n := len(tables); n == 0 || tables[n-1].index != index {
				tables = append(tables, &table{index: index})
			}
			i := c % tableEntries
			tables[len(tables)-1].used[i/64] |= 1 << (i % 64)
		}
		off = end
	}
	return tables, nil
}

// cursor is a cluster of the disk, and how much of its kind lies before it in the file.
type cursor struct {
	t      *table
	table  int // of the layout's
	i      int // in the table
	plain  int64
	packed int64
}

// offset returns where the cluster begins on the disk.
func (c cursor) offset() int64 { return c.t.index*tableBytes + int64(c.i)<<encodeBits }

// start returns a cursor before the first cluster of table n.
func (l *layout) start(n int) cursor {
	t := l.tables[n]
	return cursor{t: t, table: n, i: -1, plain: t.plain - 1, packed: t.packed}
}

// seekPlain returns the plain cluster n, which is there; from is where one was found.
func (l *layout) seekPlain(from cursor, n int64) cursor {
	c := from
	if c.t == nil || c.plain > n || n >= c.t.plain+tableEntries {
		c = l.start(sort.Search(len(l.tables), func(i int) bool { return l.tables[i].plain > n }) - 1)
	}
	for c.plain < n {
		next, ok := l.nextPlain(c)
		if !ok {
			panic("qcow2: fewer clusters than were counted")
		}
		c = next
	}
	return c
}

// nextPlain returns the plain cluster that follows c.
func (l *layout) nextPlain(c cursor) (cursor, bool) {
	c, ok := l.next(c, false)
	c.plain++
	return c, ok
}

// firstPacked returns the packed cluster with byte at, counted from where packed clusters
// begin, or the first one if at is before that.
func (l *layout) firstPacked(at int64) (cursor, bool) {
	n := sort.Search(len(l.tables), func(i int) bool { return l.tables[i].packed > at }) - 1
	if len(l.tables) == 0 {
		return cursor{}, false
	}
	c, ok := l.next(l.start(max(0, n)), true)
	for ok && c.packed+int64(c.t.size(c.i)) <= at {
		c, ok = l.nextPacked(c)
	}
	return c, ok
}

// nextPacked returns the packed cluster that follows c.
func (l *layout) nextPacked(c cursor) (cursor, bool) {
	c.packed += int64(c.t.size(c.i))
	return l.next(c, true)
}

// next returns the first packed, or plain, cluster behind c.
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
