package replica

import (
	"fmt"
	"sort"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// layer is one file of the chain. A raw image below the volume is one as well, the
// oldest: what is in none of its extents is zeros, as below every chain.
type layer struct {
	name string
	file *disk.File
}

// segment is a piece of the volume that one layer gives, in whole sectors.
type segment struct {
	start, end int64
	layer      int // index into the layers, newest first; len(layers): what is below them
	zero       bool
}

// walk finds out which layer gives what. It is cheap for who goes from front to back.
type walk struct {
	layers  []layer
	size    int64 // of the volume, in whole sectors
	cursors []cursor
	mapping *mapping
}

// cursor is what is known of the extents of one layer: those in [from, to).
type cursor struct {
	extents  []extent
	from, to int64
}

func newWalk(layers []layer, size int64) *walk {
	return &walk{layers: layers, size: size, cursors: make([]cursor, len(layers)), mapping: new(mapping)}
}

// at returns the segment that begins at offset, which is that of a sector.
func (w *walk) at(offset int64) (segment, error) {
	s := segment{start: offset, end: w.size, layer: len(w.layers)}
	for i := range w.layers {
		e, err := w.next(i, offset)
		if err != nil {
			return segment{}, fmt.Errorf("layer %s: %w", w.layers[i].name, err)
		}
		if e.start <= offset {
			s.end, s.layer, s.zero = min(s.end, e.end), i, e.zero
			return s, nil
		}
		s.end = min(s.end, e.start)
	}
	return s, nil
}

// next returns the extent of a layer that offset is in, or the next one behind it:
// where there is none, an empty one behind everything.
func (w *walk) next(i int, offset int64) (extent, error) {
	c := &w.cursors[i]
	for at := offset; at < w.size; at = c.to {
		if at < c.from || at >= c.to {
			var err error
			c.extents, c.to, err = w.mapping.read(w.layers[i].file, at, c.extents[:0])
			if err != nil {
				c.from, c.to = 0, 0
				return extent{}, err
			}
			c.from = at
		}
		n := sort.Search(len(c.extents), func(n int) bool { return c.extents[n].end > offset })
		if n < len(c.extents) {
			return c.extents[n], nil
		}
	}
	return extent{start: largest, end: largest}, nil
}
