package qcow2

import (
	"encoding/binary"
	"errors"
	"io"
)

// Image is the disk in a qcow2 file. It is a Source.
type Image struct {
	file      file
	header    *header
	pages     pages
	unpacking unpacking
}

// Open reads the tables of the qcow2 file of size bytes, or refuses the file with a
// *FormatError. r is read at any offset and length, and must stay what it is.
//
// A wrong compressed cluster is found when it is read: that too is a *FormatError.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	f := file{r, size}
	h, err := f.inspect()
	if err != nil {
		return nil, err
	}
	m := &Image{file: f, header: h, pages: pages{file: f}, unpacking: newUnpacking(h)}
	if err := m.checkL2(); err != nil {
		return nil, err
	}
	return m, nil
}

// Size returns the bytes of the disk that a guest sees.
func (m *Image) Size() int64 { return int64(m.header.Size) }

// ReadAt reads the disk. It is not for concurrent use.
func (m *Image) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, errors.New("read qcow2 image: negative offset")
	}
	want := len(p)
	p = p[:max(0, min(int64(want), m.Size()-off))]
	for n := 0; n < len(p); {
		k, err := m.readSome(p[n:], off+int64(n))
		if err != nil {
			return n, err
		}
		n += k
	}
	if len(p) < want {
		return len(p), io.EOF
	}
	return len(p), nil
}

// run returns the extent at off, up to limit bytes of it, with all that follows it in
// the file as on the disk.
func (m *Image) run(off, limit int64) (extent, error) {
	e, err := m.lookup(off)
	for err == nil && e.length < limit && e.kind != packed {
		var next extent
		if next, err = m.lookup(off + e.length); next.kind != e.kind || e.kind == plain && next.host != e.host+e.length {
			break
		}
		e.length += next.length
	}
	e.length = min(e.length, limit)
	return e, err
}

// readSome reads what is alike at off.
func (m *Image) readSome(p []byte, off int64) (int, error) {
	e, err := m.run(off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	if e.kind == packed {
		return m.readPacked(p, off, e)
	}
	p = p[:e.length]
	if e.kind == zero {
		clear(p)
		return len(p), nil
	}
	n := max(0, min(e.length, m.file.size-e.host))
	clear(p[n:])
	return len(p), m.file.read(p[:n], e.host)
}

// nextLimit is how many extents, most of them clusters, NextData looks at beyond the
// first with data, so that its cost does not depend on how much follows.
const nextLimit = 4096

// NextData returns the next range from off on that the tables do not call zeros.
func (m *Image) NextData(off int64) (start, end int64, err error) {
	off = max(0, off)
	for off < m.Size() {
		e, err := m.lookup(off)
		if err != nil {
			return 0, 0, err
		}
		if e.kind != zero {
			end, err := m.endOfData(off + e.length)
			return off, end, err
		}
		off += e.length
	}
	return 0, 0, io.EOF
}

func (m *Image) endOfData(off int64) (int64, error) {
	for range nextLimit {
		if off == m.Size() {
			break
		}
		e, err := m.lookup(off)
		if err != nil {
			return 0, err
		}
		if e.kind == zero {
			break
		}
		off += e.length
	}
	return off, nil
}

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

const (
	pageSize  = 16 << 10
	pageCount = 16
)

// pages keeps the pieces of tables that were read last.
type pages struct {
	file file
	last *page
	all  [pageCount]page
	now  uint64

	l1Offset int64 // 0: none
	l1Entry  uint64
}

type page struct {
	offset int64
	used   uint64 // when, by count; 0: never
	b      []byte
}

// l1 returns the entry at offset of the L1 table. It is asked for again and again.
func (c *pages) l1(offset int64) (uint64, error) {
	if c.l1Offset == offset {
		return c.l1Entry, nil
	}
	entry, err := c.entry(offset)
	if err == nil {
		c.l1Offset, c.l1Entry = offset, entry
	}
	return entry, err
}

// entry returns the 8 bytes at offset, which is a multiple of 8.
func (c *pages) entry(offset int64) (uint64, error) {
	p := c.last
	if start := offset &^ (pageSize - 1); p == nil || p.offset != start {
		var err error
		if p, err = c.page(start); err != nil {
			return 0, err
		}
		c.last = p
	}
	at := offset - p.offset
	if at+8 > int64(len(p.b)) {
		return 0, refuse(hintDamaged, "a table of the qcow2 image lies outside the file")
	}
	return binary.BigEndian.Uint64(p.b[at:]), nil
}

// page returns the page that begins at start. The last one of a file is shorter.
func (c *pages) page(start int64) (*page, error) {
	c.now++
	oldest := &c.all[0]
	for i := range c.all {
		p := &c.all[i]
		if p.used > 0 && p.offset == start {
			p.used = c.now
			return p, nil
		}
		if p.used < oldest.used {
			oldest = p
		}
	}
	oldest.used, oldest.offset = 0, -1
	if oldest.b == nil {
		oldest.b = make([]byte, pageSize)
	}
	oldest.b = oldest.b[:max(0, min(pageSize, c.file.size-start))]
	if err := c.file.read(oldest.b, start); err != nil {
		return nil, err
	}
	oldest.offset, oldest.used = start, c.now
	return oldest, nil
}
