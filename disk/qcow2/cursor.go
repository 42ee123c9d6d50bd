package qcow2

import "sort"

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
