package assemble

import (
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

// Moved finds bytes of an image in seeds, at any place, by the indexes of the image and of the seeds. It is for one
// goroutine, that of the Plan.
type Moved struct{ *items }

// OpenMoved returns the Moved for the image that part becomes. It closes the index if it returns an error, which is one
// of ctx. The caller closes the Moved.
func OpenMoved(ctx context.Context, part *disk.Part, index *caibx.Table, seeds []Seed) (*Moved, error) {
	opened, err := openSeeds(ctx, part, seeds, index.Header())
	if err != nil {
		_ = index.Close() // it was only read
		return nil, err
	}
	return &Moved{newItems(index, opened)}, nil
}

// Close closes the indexes.
func (m *Moved) Close() {
	closeSeeds(m.seeds)
	_ = m.Table.Close() // it was only read
}

// has reports whether the seeds have all bytes from an offset on.
func (m *Moved) has(offset, length int64) (has bool) {
	err := caibx.CatchFaults(func() error {
		has = m.covers(offset, length)
		return nil
	})
	return has && err == nil
}

func (m *Moved) covers(offset, length int64) bool {
	for n, end := m.at(offset), offset+length; offset < end; n++ {
		if n == m.Len() {
			return false
		}
		i := m.Item(n)
		if !m.isZero(n, i) && !m.inSeed(i) {
			return false
		}
		offset, m.before = i.End(), i
	}
	return true
}

func (m *Moved) inSeed(i caibx.Item) bool {
	for _, s := range m.seeds {
		if _, has := s.find(i); has {
			return true
		}
	}
	return false
}

// read reads bytes for which has was true. disk.ErrDamaged: they are not there after all, or cannot be read. The bytes
// have to be verified, because nobody has compared the index with the image.
func (m *Moved) read(p []byte, offset int64) error {
	if err := caibx.CatchFaults(func() error { return m.readItems(p, offset) }); err != nil {
		return errors.Join(disk.ErrDamaged, err)
	}
	return nil
}

func (m *Moved) readItems(p []byte, offset int64) error {
	for n := m.at(offset); len(p) > 0; n++ {
		i := m.Item(n)
		piece := p[:min(int64(len(p)), i.End()-offset)]
		if m.isZero(n, i) {
			clear(piece)
		} else if err := m.readItem(piece, i, offset-i.Offset); err != nil {
			return err
		}
		p, offset, m.before = p[len(piece):], offset+int64(len(piece)), i
	}
	return nil
}

// readItem reads a part of an item from the first seed that has it.
func (m *Moved) readItem(p []byte, i caibx.Item, skip int64) error {
	for _, s := range m.seeds {
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
