package replica

import (
	"fmt"
	"sort"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// layer is one file of the chain. A raw backing image is the oldest layer.
type layer struct {
	name string
	file *disk.File
}

// segment is a piece of the volume whose bytes are in one layer. It consists of whole sectors.
type segment struct {
	start, end int64
	layer      int // index in the layers, newest first; len(layers): the qcow2 backing image, or zeros
	zero       bool
}

// resolver finds the layer of each segment. Sequential calls are cheap.
type resolver struct {
	layers []layer
	size   int64 // of the volume, rounded up to sectors
	known  []knownExtents
	fiemap *fiemap
}

// knownExtents are the extents of one layer in the range [from, to).
type knownExtents struct {
	extents  []extent
	from, to int64
}

func newResolver(layers []layer, size int64) *resolver {
	return &resolver{layers: layers, size: size, known: make([]knownExtents, len(layers)), fiemap: new(fiemap)}
}

// segmentAt returns the segment that begins at offset. offset must be a multiple of sector.
func (w *resolver) segmentAt(offset int64) (segment, error) {
	s := segment{start: offset, end: w.size, layer: len(w.layers)}
	for i := range w.layers {
		e, err := w.extentAt(i, offset)
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

// extentAt returns the extent of a layer that contains the byte offset, or else the next extent. If
// there is none, it returns an empty extent at maxOffset.
func (w *resolver) extentAt(i int, offset int64) (extent, error) {
	c := &w.known[i]
	for at := offset; at < w.size; at = c.to {
		if at < c.from || at >= c.to {
			var err error
			c.extents, c.to, err = w.fiemap.read(w.layers[i].file, at, c.extents[:0])
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
	return extent{start: maxOffset, end: maxOffset}, nil
}
