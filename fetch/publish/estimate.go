package publish

import (
	"context"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

// Cost is what a download of an image costs if an older version of it is there. The download gets the
// index, and then the missing chunks: as ranges of the image file, or packed from the chunk store. A
// chunk that occurs several times is transferred once, and a chunk of zeros never.
type Cost struct {
	Sizes  caibx.Sizes // of the chunks
	Index  int64       // bytes of the index
	Bytes  int64       // bytes of the missing chunks
	Chunks int64       // missing chunks
	Ranges int64       // of the file, where neighbours are joined
	Packed int64       // bytes of the missing chunks in the store
}

// FromFile returns the bytes of the index and of the ranges of the file.
func (c Cost) FromFile() int64 { return c.Index + c.Bytes }

// FromStore returns the bytes of the index and of the packed chunks.
func (c Cost) FromStore() int64 { return c.Index + c.Packed }

// Estimate returns what the image costs with its index t, for who has the file of the index old. The indexes must have
// the same header; otherwise all chunks count as missing.
func (im *Image) Estimate(ctx context.Context, t, old *caibx.Table) (Cost, error) {
	c := Cost{Sizes: t.Header().Sizes, Index: int64(len(t.Index()))}
	digest, packer, end := t.Header().Digest, caibx.NewPacker(), int64(-1)
	var chunk, packed []byte
	for n := range assemble.ByIndexes(t, old).Missing() {
		i := t.Item(n)
		if err := ctx.Err(); err != nil {
			return c, err
		}
		var err error
		if chunk, err = im.readChunk(chunk, i, digest); err != nil {
			return c, err
		}
		packed = packer.Pack(packed[:0], chunk)
		c.Chunks, c.Bytes, c.Packed = c.Chunks+1, c.Bytes+i.Length, c.Packed+int64(len(packed))
		if i.Offset != end {
			c.Ranges++
		}
		end = i.End()
	}
	return c, nil
}
