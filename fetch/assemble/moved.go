package assemble

import (
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

// FindMoved lets a plan by a chunk manifest use chunks at other places of the seeds, too. The indexes of the seeds and of the
// image that part becomes show these places. If cut is true, FindMoved may cut a seed without an index, which reads the whole
// seed. It fails only with the cause of ctx, and then closes index.
func (p *Plan) FindMoved(ctx context.Context, part *disk.Part, index *caibx.Table, cut bool) error {
	if err := openIndexes(ctx, part, p.seeds, index.Header(), cut); err != nil {
		return errors.Join(err, index.Close())
	}
	p.list.(*chunks).moved = newItems(index, p.seeds)
	return nil
}

// hasMoved reports whether the seeds have all bytes of a chunk.
func (c *chunks) hasMoved(s Segment) bool {
	err := caibx.CatchFaults(func() error {
		return c.moved.each(s, func(i caibx.Item, _, _ int64) error {
			for _, s := range c.moved.seeds {
				if _, has := s.find(i); has {
					return nil
				}
			}
			return disk.ErrDamaged
		})
	})
	return err == nil
}

// readMoved reads the bytes of a chunk for which hasMoved was true. It returns disk.ErrDamaged if the bytes are not there
// after all, or cannot be read. The caller verifies the bytes, because nobody has compared the index with the image.
func (c *chunks) readMoved(chunk []byte, s Segment) error {
	clear(chunk)
	err := caibx.CatchFaults(func() error {
		return c.moved.each(s, func(i caibx.Item, from, to int64) error {
			return c.moved.read(chunk[from-s.Offset:to-s.Offset], i, from-i.Offset)
		})
	})
	if err != nil {
		err = errors.Join(disk.ErrDamaged, err)
	}
	return err
}

// each calls f for each item in a segment that is not zeros, with the range of its bytes in the segment. It stops at an error.
func (l *items) each(s Segment, f func(i caibx.Item, from, to int64) error) error {
	n := l.At(s.Offset)
	for at := s.Offset; at < s.End(); n++ {
		if n == l.Len() {
			return disk.ErrDamaged
		}
		i := l.Item(n)
		end := min(i.End(), s.End())
		if !l.isZero(n, i) {
			if err := f(i, at, end); err != nil {
				return err
			}
		}
		at, l.before = end, i
	}
	return nil
}

// read reads a part of an item from the first seed that has it.
func (l *items) read(p []byte, i caibx.Item, skip int64) error {
	for _, s := range l.seeds {
		from, has := s.find(i)
		if !has {
			continue
		}
		n, err := s.verified.ReadAt(p, from+skip)
		if err == nil || n == len(p) {
			return nil
		}
		s.damaged((from + skip + int64(n)) / disk.ChunkSize)
	}
	return disk.ErrDamaged
}
