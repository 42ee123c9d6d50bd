package assemble

import (
	"context"
	"errors"
	"os"
	"sync/atomic"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Seed is a ready copy on this node. It is only read.
type Seed struct {
	ID       ident.ID
	Reader   *disk.Reader
	Manifest *disk.Manifest // of the same copy
	// Index is the index of the copy; nil: none. A plan may close it.
	Index *os.File
	// Cut allows a plan to compute an index from the bytes, if Index is nil or has chunks of other sizes than the index of
	// the new image. This reads and hashes the whole copy.
	Cut bool
	// Damaged is called once if the copy does not have the bytes of its manifest. It must not block.
	Damaged func()
}

// seed is a Seed that a plan uses.
type seed struct {
	Seed
	table    *caibx.Table          // nil: its index is not known
	verified *disk.VerifyingReader // nil without table
	bad      map[int64]bool        // numbers of damaged chunks
}

// verifiedChunks is the number of chunks of a seed in memory. Content that moved may be read from two chunks in turn.
const verifiedChunks = 2

func newSeeds(all []Seed) (seeds []*seed) {
	for _, s := range all {
		seeds = append(seeds, &seed{Seed: s, bad: map[int64]bool{}})
	}
	return seeds
}

// openIndexes opens the index of each seed, if it has the header h. If not, and if mayCut is true, it cuts a seed with Cut. If
// both fail, the seed has no table. An error is the cause of ctx.
func openIndexes(ctx context.Context, part *disk.Part, seeds []*seed, h caibx.Header, mayCut bool) error {
	for _, s := range seeds {
		s.Cut = s.Cut && mayCut
		table, err := openSeedIndex(ctx, part, s.Seed, h)
		if ctx.Err() != nil {
			closeSeeds(seeds)
			return context.Cause(ctx)
		}
		if err == nil && table != nil {
			s.table, s.verified = table, disk.NewVerifyingReader(s.ID, s.Reader, s.Manifest, verifiedChunks)
		}
	}
	return nil
}

// openSeedIndex returns the index with the header h of a seed. nil means that the seed has no such index.
func openSeedIndex(ctx context.Context, part *disk.Part, s Seed, h caibx.Header) (*caibx.Table, error) {
	size := s.Reader.Size()
	room, err := part.Room()
	if err != nil {
		return nil, err
	}
	if s.Index != nil {
		t, err := storedTable(part, s.Index, size, room/IndexShare)
		if err == nil && t.Header() == h && t.ImageSize() == size {
			return t, nil
		}
		if err == nil {
			err = t.Close()
		}
		if err != nil && !s.Cut {
			return nil, err
		}
	}
	if !s.Cut || h.Avg < minMeanItem && uint64(size)/h.Avg > fewItems {
		return nil, nil
	}
	if limits := (caibx.Limits{Image: size, Chunk: int64(h.Min)}); limits.MaxSize() > room/IndexShare {
		return nil, nil
	}
	temp, err := part.TempFile()
	if err != nil {
		return nil, err
	}
	t, err := caibx.Cut(ctx, s.Reader, size, h, temp, new(atomic.Int64))
	if err == nil {
		err = s.Reader.Unchanged()
	}
	if err != nil && t != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, err
}

// storedTable returns the table of the index in f, which has at most limit bytes, and closes f.
func storedTable(part *disk.Part, f *os.File, imageSize, limit int64) (*caibx.Table, error) {
	info, err := f.Stat()
	if err == nil && info.Size() > limit {
		err = errors.New("there is no space for the index of a seed")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return newTable(f, caibx.Limits{Image: imageSize, Chunk: 1}, part.TempFile)
}

func closeSeeds(seeds []*seed) {
	for _, s := range seeds {
		if s.table != nil {
			_ = s.table.Close() // it was only read
		}
	}
}

// hasAt reports whether the seed has the item i at the same offset.
func (s *seed) hasAt(i caibx.Item) bool {
	n := s.table.At(i.Offset)
	return n < s.table.Len() && s.table.Item(n) == i && s.isGood(i.Offset, i.Length)
}

// find returns the offset of an item with the same bytes as i in the seed.
func (s *seed) find(i caibx.Item) (offset int64, found bool) {
	n, found := s.table.Find(i.ID)
	if !found {
		return 0, false
	}
	own := s.table.Item(n)
	return own.Offset, own.Length == i.Length && s.isGood(own.Offset, own.Length)
}

// isGood reports whether no chunk of the manifest in a range is known as damaged.
func (s *seed) isGood(offset, length int64) bool {
	if len(s.bad) == 0 {
		return true
	}
	for n := offset / disk.ChunkSize; n*disk.ChunkSize < offset+length; n++ {
		if s.bad[n] {
			return false
		}
	}
	return true
}

// damaged records that a chunk of the manifest is damaged or cannot be read.
func (s *seed) damaged(n int64) {
	if len(s.bad) == 0 {
		s.Damaged()
	}
	s.bad[n] = true
}
