package delta

import (
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

// Local finds bytes of an image in copies on this node, at any place, by the indexes of the image and of the copies. It
// is for one goroutine.
type Local struct {
	planner
}

// OpenLocal returns a Local for the image that part becomes. It closes the index if it returns an error, which is one of
// ctx. The caller closes the Local.
func OpenLocal(ctx context.Context, part *disk.Part, index *caibx.Table, seeds []Seed) (*Local, error) {
	opened, err := openSeeds(ctx, part, seeds, index.Header())
	if err != nil {
		_ = index.Close() // it was only read
		return nil, err
	}
	return &Local{newPlanner(index, opened, false)}, nil
}

// Close closes the indexes.
func (l *Local) Close() {
	closeSeeds(l.seeds)
	_ = l.index.Close() // it was only read
}

// Has reports whether the copies have all bytes from an offset on.
func (l *Local) Has(offset, length int64) (has bool) {
	err := caibx.CatchFaults(func() error {
		has = l.has(offset, length)
		return nil
	})
	return has && err == nil
}

func (l *Local) has(offset, length int64) bool {
	for n, end := itemAt(l.index, offset), offset+length; offset < end; n++ {
		if n == l.index.Len() {
			return false
		}
		i := l.index.Item(n)
		if !l.isZero(n, i) && !l.inSeed(i) {
			return false
		}
		offset, l.before = i.End(), i
	}
	return true
}

func (l *Local) inSeed(i caibx.Item) bool {
	for _, s := range l.seeds {
		if _, has := s.find(i); has {
			return true
		}
	}
	return false
}

// Read reads bytes for which Has was true. disk.ErrDamaged: they are not there after all, or cannot be read. The bytes have to be verified,
// because nobody has compared the index with the image.
func (l *Local) Read(p []byte, offset int64) error {
	if err := caibx.CatchFaults(func() error { return l.read(p, offset) }); err != nil {
		return errors.Join(disk.ErrDamaged, err)
	}
	return nil
}

func (l *Local) read(p []byte, offset int64) error {
	for n := itemAt(l.index, offset); len(p) > 0; n++ {
		i := l.index.Item(n)
		piece := p[:min(int64(len(p)), i.End()-offset)]
		if l.isZero(n, i) {
			clear(piece)
		} else if err := l.readItem(piece, i, offset-i.Offset); err != nil {
			return err
		}
		p, offset, l.before = p[len(piece):], offset+int64(len(piece)), i
	}
	return nil
}

// readItem reads a part of an item from the first seed that has it.
func (l *Local) readItem(p []byte, i caibx.Item, skip int64) error {
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
