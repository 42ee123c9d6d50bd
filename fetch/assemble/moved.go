package assemble

import (
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

// FindMoved lets a plan by a chunk manifest find bytes in the seeds at any place, by the index of the image that part becomes,
// and those of the seeds. cut: a seed without an index may be read to cut it. It closes the index if it returns an error,
// which is one of ctx.
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

// readMoved reads the bytes of a chunk for which hasMoved was true. disk.ErrDamaged: they are not there after all, or cannot
// be read. They have to be verified, because nobody has compared the index with the image.
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

// each calls f for the items that are not zeros of a segment, with the bytes that are in it, until there is an error.
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
