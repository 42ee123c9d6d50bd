package qcow2

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
)

// Image is the disk in a qcow2 file. It implements Source, and is not safe for concurrent use.
type Image struct {
	file          file
	header        *header
	tables        tableCache
	decompression decompression
}

// Open checks the qcow2 file of size bytes as Inspect does. A *FormatError means that the file is not
// accepted; any other error is a read error of r. The Image reads from r at arbitrary offsets. The
// content of r must not change.
//
// Open does not detect damaged compressed clusters: ReadAt returns a *FormatError for them.
func Open(r io.ReaderAt, size int64) (*Image, error) {
	f := file{r, size}
	h, err := f.check()
	if err != nil {
		return nil, err
	}
	return &Image{file: f, header: h, tables: tableCache{file: f}, decompression: newDecompression(h)}, nil
}

// Size returns the size of the disk in bytes, as a guest sees it.
func (m *Image) Size() int64 { return int64(m.header.Size) }

// ReadAt implements io.ReaderAt, except that it is not safe for concurrent use.
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

// run returns the extent at off, extended by the following extents of the same kind that are adjacent
// both on the disk and in the file, up to limit bytes.
func (m *Image) run(off, limit int64) (extent, error) {
	e, err := m.lookup(off)
	for err == nil && e.length < limit && e.kind != compressed {
		var next extent
		if next, err = m.lookup(off + e.length); next.kind != e.kind || e.kind == standard && next.host != e.host+e.length {
			break
		}
		e.length += next.length
	}
	e.length = min(e.length, limit)
	return e, err
}

// readSome reads from the extent at off.
func (m *Image) readSome(p []byte, off int64) (int, error) {
	e, err := m.run(off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	if e.kind == compressed {
		return m.readCompressed(p, off, e)
	}
	p = p[:e.length]
	if e.kind == unallocated {
		clear(p)
		return len(p), nil
	}
	n := max(0, min(e.length, m.file.size-e.host))
	clear(p[n:])
	return len(p), m.file.read(p[:n], e.host)
}

// nextLimit limits the number of extents (mostly clusters) that NextData adds to the first extent with
// data, so that the cost of a call does not depend on the amount of data.
const nextLimit = 4096

// NextData implements Source. It uses only the tables and reads no data.
func (m *Image) NextData(off int64) (start, end int64, err error) {
	off = max(0, off)
	for off < m.Size() {
		e, err := m.lookup(off)
		if err != nil {
			return 0, 0, err
		}
		if e.kind != unallocated {
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
		if e.kind == unallocated {
			break
		}
		off += e.length
	}
	return off, nil
}

// kind is the kind of an extent.
type kind uint8

const (
	unallocated kind = iota // zeros without bytes in the file
	standard                // its bytes are in the file
	compressed              // one compressed cluster, or a part of it
)

// extent is a piece of the disk. Unless it is unallocated, it is within one cluster.
type extent struct {
	kind   kind
	length int64

	host  int64 // standard: offset in the file
	entry uint64
	skip  int64 // compressed: offset of the extent in its cluster
}

// Fields of an L2 entry: the offset of a cluster, flags and reserved bits. Entries of compressed
// clusters have another format: see compressedRange.
const (
	l2OffsetMask   = l1OffsetMask
	l2Compressed   = 1 << 62
	l2Zero         = 1
	l2ReservedMask = 1<<62 - 1 - l2OffsetMask - l2Zero

	subclusters = 32
)

// lookup returns the extent that begins at off, which must be on the disk. The extent ends with its
// cluster, or before the first subcluster of another kind. If the L2 table is missing, the extent is
// the whole range of the table.
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
	l1, err := m.tables.l1(int64(h.L1Offset) + off>>tableBits*8)
	if err != nil {
		return extent{}, err
	}
	if err := h.checkL1Entry(l1, m.file.size); err != nil {
		return extent{}, err
	}
	table := int64(l1 & l1OffsetMask)
	if table == 0 {
		return extent{kind: unallocated, length: 1<<tableBits - off&(1<<tableBits-1)}, nil
	}
	index := off & (1<<tableBits - 1) >> h.ClusterBits
	entry, err := m.tables.entry(table + index<<h.entryBits())
	if err != nil {
		return extent{}, err
	}
	skip := off & (1<<h.ClusterBits - 1)
	rest := 1<<h.ClusterBits - skip
	if entry&l2Compressed != 0 {
		return extent{kind: compressed, length: rest, entry: entry, skip: skip}, nil
	}
	host, err := h.standardOffset(entry)
	if err != nil {
		return extent{}, err
	}
	e := extent{kind: standard, length: rest, host: host + skip}
	if h.entryBits() == 4 {
		if e, err = m.subcluster(e, table+index<<4+8, host, skip); err != nil {
			return extent{}, err
		}
	} else if host == 0 || entry&l2Zero != 0 {
		return extent{kind: unallocated, length: rest}, nil
	}
	if e.kind == standard && host >= m.file.size {
		return extent{}, errClusterOutside
	}
	return e, nil
}

var errClusterOutside = refuse(hintDamaged, "a cluster of the qcow2 image lies outside the file")

// standardOffset returns the offset of the standard cluster of an L2 entry, 0 if the entry has none.
func (h *header) standardOffset(entry uint64) (int64, error) {
	reserved := uint64(l2ReservedMask)
	if h.Version == 2 || h.entryBits() == 4 {
		reserved |= l2Zero
	}
	host := entry & l2OffsetMask
	switch {
	case entry&reserved != 0:
		return 0, refuse(hintDamaged, "an L2 entry of the qcow2 image has reserved bits set")
	case host%h.clusterSize() != 0:
		return 0, refuse(hintDamaged, "an L2 entry of the qcow2 image has an offset within a cluster")
	}
	return int64(host), nil
}

// subcluster shortens extent e, so that it ends before the first subcluster of another kind. The argument e is the end of a
// cluster: it begins skip bytes after the start of the cluster. The bitmap at offset determines the kinds: its low 32 bits
// are the subclusters with data, its high 32 bits the subclusters of zeros.
func (m *Image) subcluster(e extent, offset, host, skip int64) (extent, error) {
	bitmap, err := m.tables.entry(offset)
	if err != nil {
		return extent{}, err
	}
	if err := checkSubclusters(bitmap, host); err != nil {
		return extent{}, err
	}
	data := uint32(bitmap)
	bits := m.header.ClusterBits - 5
	first := skip >> bits
	last := first + 1
	for last < subclusters && data>>last&1 == data>>first&1 {
		last++
	}
	e.length = last<<bits - skip
	if data>>first&1 == 0 {
		e.kind = unallocated
	}
	return e, nil
}

// checkSubclusters checks the bitmap of a cluster at the offset host of the file.
func checkSubclusters(bitmap uint64, host int64) error {
	data, zeros := uint32(bitmap), uint32(bitmap>>32)
	switch {
	case data&zeros != 0:
		return refuse(hintDamaged, "a subcluster of the qcow2 image is both zeros and data")
	case data != 0 && host == 0:
		return refuse(hintDamaged, "an L2 entry of the qcow2 image has data without an offset")
	}
	return nil
}

const (
	pageSize  = 16 << 10
	pageCount = 16
)

// tableCache caches pages of tables. Each page has a fixed place, where it replaces another page.
type tableCache struct {
	file  file
	pages [pageCount]cachedPage

	l1Offset int64 // 0: none
	l1Entry  uint64
}

type cachedPage struct {
	offset int64
	b      []byte // empty: none
}

// l1 returns the entry at offset of the L1 table. It caches one entry, because callers often request
// the same entry again.
func (c *tableCache) l1(offset int64) (uint64, error) {
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
func (c *tableCache) entry(offset int64) (uint64, error) {
	start := offset &^ (pageSize - 1)
	p := &c.pages[start/pageSize%pageCount]
	if len(p.b) == 0 || p.offset != start {
		p.offset, p.b = start, slices.Grow(p.b[:0], pageSize)
		b := p.b[:max(0, min(pageSize, c.file.size-start))] // the last page of a file may be shorter
		if err := c.file.read(b, start); err != nil {
			return 0, err
		}
		p.b = b
	}
	if offset-start+8 > int64(len(p.b)) {
		return 0, refuse(hintDamaged, "a table of the qcow2 image lies outside the file")
	}
	return binary.BigEndian.Uint64(p.b[offset-start:]), nil
}
