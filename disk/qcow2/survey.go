package qcow2

import (
	"errors"
	"fmt"
	"io"
	"math/bits"
)

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
