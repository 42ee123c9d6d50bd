package peer

import (
	"context"
	"errors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/delta"
)

// MaxSeeds limits the seeds of a pull.
const MaxSeeds = 4

// localChunks are the chunks with data that a pull reads from its seeds: for each chunk of the image, 1 +
// the index of the seed, moved, or 0. It may be shorter than the image.
type localChunks []uint8

// moved is the value for a chunk whose bytes are in seeds, but not at the same place.
const moved = 255

// has reports whether a seed has chunk n.
func (l localChunks) has(n int64) bool { return n < int64(len(l)) && l[n] > 0 }

// findLocalChunks returns the chunks of the image with manifest m, from index first on, that the seeds
// have. It compares the hashes of the manifests: if they are of another algorithm, it finds nothing. Its
// memory is bounded by the seeds, because peers can claim an image of any size.
func findLocalChunks(ctx context.Context, seeds []delta.Seed, m *disk.Manifest, first int64) (localChunks, error) {
	seeds = seeds[:min(len(seeds), MaxSeeds)]
	length := int64(0)
	for _, seed := range seeds {
		length = max(length, min(m.Chunks(), seed.Manifest.Chunks()))
	}
	local := make(localChunks, length)
	for i, seed := range seeds {
		for n := first; n < min(m.Chunks(), seed.Manifest.Chunks()); n++ {
			if err := ctx.Err(); err != nil {
				return nil, context.Cause(ctx)
			}
			zero, err := m.IsZero(n)
			if zero || local.has(n) {
				continue
			}
			want, hashErr := m.Hash(n)
			if err := errors.Join(err, hashErr); err != nil {
				return nil, &manifestError{err}
			}
			if hash, err := seed.Manifest.Hash(n); err == nil && hash == want {
				local[n] = uint8(i + 1)
			}
		}
	}
	return local, nil
}

// putLocal appends chunk n from its seed. It returns false if the seed does not have the chunk after all:
// then a lane requests it.
func (t *transfer) putLocal(n int64) (bool, error) {
	i := t.window.local[n]
	var err error
	if i == moved {
		err = t.appendMoved(n)
	} else if err = t.appendFrom(t.pull.Seeds[i-1].Reader, n); errors.Is(err, disk.ErrDamaged) {
		t.seedDamaged(int(i - 1))
	}
	if errors.Is(err, disk.ErrDamaged) {
		t.window.endLocal(n, true)
		return false, nil
	}
	t.window.endLocal(n, false)
	return true, err
}

// seedDamaged reports once that a seed does not have the bytes of its manifest.
func (t *transfer) seedDamaged(i int) {
	if !t.damagedSeeds[i] {
		t.pull.Seeds[i].Damaged()
	}
	t.damagedSeeds[i] = true
}
