package delta

import (
	"context"
	"errors"
	"os"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

// AtHand are the files from which Estimate computes what a download by an index costs. Estimate closes them.
type AtHand struct {
	Index *os.File // of the image
	Seeds []SeedIndex
	// Offset is the number of bytes in a partial file of an image with PartSize bytes. These bytes count only if the image
	// of Index has this size.
	Offset, PartSize int64
	// MaxSize is fetch.Request.MaxSize.
	MaxSize int64
}

// SeedIndex is the index of an assemble.Seed.
type SeedIndex struct {
	File *os.File // nil: it is not at hand
	Cut  bool     // see assemble.Seed
}

// ErrUnknown means that a node has older generations, but that it is not known which chunks they have.
var ErrUnknown = errors.New("the chunks of the older generations are not known")

// Estimate returns what a download costs, without a request. Missing is exact if the indexes of all seeds are at hand, and
// otherwise the maximum. If there are seeds with Cut, but no index of them has the same header as Index, the error is
// ErrUnknown, and Missing is not valid. The error is a *caibx.FormatError if Index is not the index of an image.
func Estimate(ctx context.Context, a AtHand) (s assemble.Survey, err error) {
	var tables []*caibx.Table
	defer func() {
		for _, t := range tables {
			err = errors.Join(err, t.Close())
		}
	}()
	index, err := openAtHand(a.Index, a.MaxSize)
	if err != nil {
		a.close()
		return s, err
	}
	tables = append(tables, index)
	older, known := false, false
	for _, seed := range a.Seeds {
		older = older || seed.Cut
		if seed.File == nil {
			continue
		}
		t, err := openAtHand(seed.File, 0)
		if err != nil {
			continue // the download does the same
		}
		tables = append(tables, t)
		known = known || seed.Cut && t.Header() == index.Header()
	}
	if index.ImageSize() != a.PartSize {
		a.Offset = 0
	}
	s, err = assemble.ByIndexes(index, tables[1:]...).Survey(ctx, a.Offset)
	s.Index = int64(len(index.Index()))
	if err == nil && older && !known {
		err = ErrUnknown
	}
	return s, err
}

// close closes the indexes of the seeds.
func (a AtHand) close() {
	for _, seed := range a.Seeds {
		if seed.File != nil {
			seed.File.Close() // it was only read
		}
	}
}

// openAtHand returns the table of an index in a local file, and closes the file.
func openAtHand(f *os.File, maxSize int64) (*caibx.Table, error) {
	return assemble.ReadIndex(f, maxSize, func() (*os.File, error) { return caibx.TempFile("") })
}
