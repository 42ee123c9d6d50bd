package assemble

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

// items is the list of the items of an index.
type items struct {
	*caibx.Table
	seeds []*seed

	located  int64              // 1 + the number of the last located item
	before   caibx.Item         // the last located item
	previous location           // of the last located item
	zeroIDs  map[int64]caibx.ID // ids of zeros, by length: for lengths that items of zeros may have
}

// maxZeroIDs is the number of lengths for which the id of zeros is computed. An index needs two or three.
const maxZeroIDs = 8

// ByIndex returns the plan by an index of the image that part becomes. An item is zeros, in a seed, repeated, or missing. A
// seed without an index is left out. An error is the cause of ctx. The caller closes the Plan and the index.
func ByIndex(ctx context.Context, part *disk.Part, index *caibx.Table, all []Seed) (*Plan, error) {
	seeds := newSeeds(all)
	if err := openIndexes(ctx, part, seeds, index.Header(), true); err != nil {
		return nil, err
	}
	return &Plan{list: newItems(index, seeds), seeds: seeds}, nil
}

// ByIndexes returns the plan by an index with the indexes of seeds, without their bytes. The plan supports only Survey and
// Missing. ByIndexes ignores tables with another header than the index.
func ByIndexes(index *caibx.Table, tables ...*caibx.Table) *Plan {
	var seeds []*seed
	for _, t := range tables {
		if t.Header() == index.Header() {
			seeds = append(seeds, &seed{table: t})
		}
	}
	return &Plan{list: newItems(index, seeds)}
}

func newItems(index *caibx.Table, seeds []*seed) *items {
	indexed := slices.DeleteFunc(slices.Clone(seeds), func(s *seed) bool { return s.table == nil })
	return &items{Table: index, seeds: indexed, zeroIDs: map[int64]caibx.ID{}}
}

func (l *items) len() int64 { return l.Len() }

func (l *items) at(offset int64) int64 { return l.At(offset) }

func (l *items) extent(n int64) Segment {
	i := l.Item(n)
	return Segment{Offset: i.Offset, Length: i.Length}
}

func (l *items) hash(n int64) (Hash, error) { return itemHash{l.Header().Digest, l.Item(n).ID}, nil }

// itemHash is the id of an item.
type itemHash struct {
	digest caibx.Digest
	id     caibx.ID
}

// Matches implements Hash.
func (h itemHash) Matches(segment []byte) bool { return h.digest.Check(segment, h.id) == nil }

// locate prefers the same offset in a seed, because blocks can be shared there. The second choice is the item in a seed that
// follows the previously located item, because the seed is then read in order.
func (l *items) locate(n int64, _ Segment) (location, error) {
	if n != l.located-1 { // equal: the item did not continue the previous run, and is located again
		i := l.Item(n)
		l.located, l.previous, l.before = n+1, l.find(n, i), i
	}
	return l.previous, nil
}

func (l *items) find(n int64, i caibx.Item) location {
	if l.isZero(n, i) {
		return location{place: zeros}
	}
	for _, s := range l.seeds {
		if s.hasAt(i) {
			return location{fromSeed, s, i.Offset}
		}
	}
	var found location
	for _, s := range l.seeds {
		from, has := s.find(i)
		if !has {
			continue
		}
		if here := (location{fromSeed, s, from}); found.seed == nil || l.follows(here) {
			found = here
		}
	}
	if found.seed != nil {
		return found
	}
	if first, has := l.Find(i.ID); has && first < n && l.Item(first).Length == i.Length {
		return location{place: repeated, from: l.Item(first).Offset}
	}
	return location{place: missing}
}

// follows reports whether the location here directly follows the last located item in the same seed.
func (l *items) follows(here location) bool {
	return l.previous.seed == here.seed && l.previous.from+l.before.Length == here.from
}

// isZero reports whether the item i is zeros. To compute the id of zeros costs as much as to hash them. Therefore isZero
// computes it only for lengths in runs of zeros: the greatest length, the length of two equal items in a row, and the length
// of the last item.
func (l *items) isZero(n int64, i caibx.Item) bool {
	h := l.Header()
	id, known := l.zeroIDs[i.Length]
	switch {
	case known:
		return i.ID == id
	case uint64(i.Length) == h.Max, n == l.Len()-1, i.ID == l.before.ID && i.Length == l.before.Length && len(l.zeroIDs) < maxZeroIDs:
		id = h.Digest.ZeroID(i.Length)
		l.zeroIDs[i.Length] = id
	default:
		return false
	}
	return i.ID == id
}

const (
	// maxImage is more bytes than any image has.
	maxImage = 1 << 60
	// minMeanItem is the least mean length of items. It limits the size of an index, which has 40 bytes for each item, and
	// the time to use the index.
	minMeanItem = 512
	// fewItems is the number of items that an index may have in addition to that.
	fewItems = 1 << 16
	// IndexShare: the file of an index may take 1/IndexShare of the free space. Its table, another file, takes up to a third
	// more than the index. Both reduce the free space for the next index, of the image or of a seed.
	IndexShare = 8
)

// IndexLimits returns the limits of the index of an image of at most size bytes; 0 means any size.
func IndexLimits(size int64) caibx.Limits {
	return caibx.Limits{Image: cmp.Or(size, maxImage), Chunk: minMeanItem}
}

// LoadIndex returns the table of the index of a partial file. The image may have at most size bytes; 0 means any size. The
// error is fs.ErrNotExist, a *caibx.FormatError for an index that cannot be used, or an error of the disk. The caller
// closes the table.
func LoadIndex(part *disk.Part, size int64) (*caibx.Table, error) {
	f, err := part.Index()
	if err != nil {
		return nil, err
	}
	return ReadIndex(f, size, part.TempFile)
}

// ReadIndex returns the table of the index in f, as LoadIndex does, and closes f. The table is in a file that temp returns.
func ReadIndex(f *os.File, size int64, temp func() (*os.File, error)) (*caibx.Table, error) {
	t, err := newTable(f, IndexLimits(size), temp)
	if err != nil {
		return nil, err
	}
	reason := ""
	switch h := t.Header(); {
	case h.Max > caibx.MaxCut: // casync accepts it, but it would take too much memory here
		reason = fmt.Sprintf("chunks of up to %d bytes are not supported: the limit is %d bytes", h.Max, caibx.MaxCut)
	case t.Len() > t.ImageSize()/minMeanItem+fewItems:
		reason = fmt.Sprintf("chunks of less than %d bytes on average are not supported", minMeanItem)
	case t.Len() == 0:
		reason = "it describes an empty file"
	default:
		return t, nil
	}
	return nil, errors.Join(&caibx.FormatError{Reason: reason}, t.Close())
}

// newTable returns the table of the index in f, and closes f.
func newTable(f *os.File, limits caibx.Limits, temp func() (*os.File, error)) (*caibx.Table, error) {
	defer f.Close() // it was only read
	to, err := temp()
	if err != nil {
		return nil, err
	}
	return caibx.NewTable(to, f, limits)
}
