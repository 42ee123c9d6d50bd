package qcow2

import "encoding/binary"

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
