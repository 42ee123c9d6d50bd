package peer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/delta"
)

const (
	// indexGain is how many times the bytes of an index a pull must lack, so that it requests the index.
	indexGain = 4
	// cutGain is the part of an image that must be missing, so that a pull reads a seed without an index to cut it.
	cutGain = 8
)

// findMoved finds the missing chunks whose bytes the seeds have at other places, if a source has an index of the image.
// It returns nil if there is none. The caller closes the result.
func (t *transfer) findMoved(ctx context.Context, part *disk.Part, m *disk.Manifest, local *localChunks, first int64) (*delta.Local, error) {
	missing, err := missingData(ctx, m, *local, first)
	if err != nil || missing == 0 || len(t.pull.Seeds) == 0 {
		return nil, err
	}
	index, err := t.loadIndex(ctx, part, m, missing/indexGain)
	if err != nil || index == nil {
		return nil, err
	}
	seeds := make([]delta.Seed, 0, MaxSeeds)
	for i, s := range t.pull.Seeds[:min(len(t.pull.Seeds), MaxSeeds)] {
		s.Cut = s.Cut && missing > m.Size()/cutGain
		s.Damaged = func() { t.seedDamaged(i) }
		seeds = append(seeds, s)
	}
	found, err := delta.OpenLocal(ctx, part, index, seeds)
	if err != nil {
		return nil, err
	}
	if more := m.Chunks() - int64(len(*local)); more > 0 { // the index has an item for each 16 MiB at least
		*local = append(*local, make(localChunks, more)...)
	}
	err = eachMissing(ctx, m, *local, first, func(n int64) {
		if found.Has(n*disk.ChunkSize, m.ChunkLength(n)) {
			(*local)[n] = moved
		}
	})
	if err != nil {
		found.Close()
		return nil, err
	}
	return found, nil
}

// missingData returns the bytes of the chunks with data that are not local.
func missingData(ctx context.Context, m *disk.Manifest, local localChunks, first int64) (missing int64, err error) {
	err = eachMissing(ctx, m, local, first, func(n int64) { missing += m.ChunkLength(n) })
	return missing, err
}

// eachMissing calls f for the chunks with data that are not local, from first on.
func eachMissing(ctx context.Context, m *disk.Manifest, local localChunks, first int64, f func(n int64)) error {
	for n := first; n < m.Chunks(); n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		zero, err := m.IsZero(n)
		if err != nil {
			return &manifestError{err}
		}
		if !zero && !local.has(n) {
			f(n)
		}
	}
	return nil
}

// loadIndex returns the index of the image: that of an earlier attempt, or that of a source, if it has at most limit
// bytes. nil: there is none that can be used. The error is one of ctx or of the disk.
func (t *transfer) loadIndex(ctx context.Context, part *disk.Part, m *disk.Manifest, limit int64) (*caibx.Table, error) {
	index, err := delta.LoadIndex(part, m.Size())
	if errors.Is(err, fs.ErrNotExist) {
		if err = t.receiveIndex(ctx, part, m, limit); err == nil {
			index, err = delta.LoadIndex(part, m.Size())
		}
	}
	if err == nil && index.ImageSize() == m.Size() {
		return index, nil
	}
	if index != nil {
		_ = index.Close() // it was only read
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Without an index, all missing chunks are requested. Errors of the disk occur again when they are written.
	return nil, part.DropIndex()
}

// receiveIndex stores the index of the image from the first source that has one.
func (t *transfer) receiveIndex(ctx context.Context, part *disk.Part, m *disk.Manifest, limit int64) error {
	room, err := part.Room()
	if err != nil {
		return err
	}
	limit = min(limit, room/8)
	err = fs.ErrNotExist
	for _, s := range t.shuffledSources() {
		if s.contents() != (contents{m.Digest(), m.Size()}) || !t.pull.health.of(s.name()).available() {
			continue
		}
		err = part.StoreIndex(func(f *os.File) error { return t.receiveIndexFrom(ctx, s, f, limit) })
		if err == nil || ctx.Err() != nil || errors.Is(err, syscall.ENOSPC) {
			break
		}
	}
	return err
}

var errLargeIndex = errors.New("the index is large, compared with what is missing")

func (t *transfer) receiveIndexFrom(ctx context.Context, s Source, f *os.File, limit int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, length, err := t.pull.Client.openIndex(ctx, s)
	if err != nil {
		return err
	}
	defer body.Close()
	if length > limit {
		return errLargeIndex
	}
	limited := fetch.RateLimitReader(ctx, fetch.StallReader(body, stallTimeout, cancel), t.limiter)
	_, err = io.CopyN(f, fetch.CountReader(ctx, limited, &t.progress.PeerBytes), length)
	return err
}

// appendMoved appends a chunk whose bytes are in seeds, but not at the same place. disk.ErrDamaged: they are not.
func (t *transfer) appendMoved(n int64) error {
	length := t.window.manifest.ChunkLength(n)
	hash, err := t.window.manifest.Hash(n)
	if err != nil {
		return err
	}
	if t.movedBuffer == nil {
		t.movedBuffer = disk.NewChunkBuffer()
	}
	if err := t.movedChunks.Read(t.movedBuffer[:length], n*disk.ChunkSize); err != nil {
		return err
	}
	if !hash.Matches(t.movedBuffer[:length]) {
		return disk.ErrDamaged // the index is wrong
	}
	t.movedBuffer, err = t.appendChunk(t.movedBuffer, n)
	return err
}
