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
	ChunkSize     caibx.Sizes `json:"chunkSize"`
	IndexBytes    int64       `json:"indexBytes"`
	MissingChunks int64       `json:"missingChunks"`
	MissingBytes  int64       `json:"missingBytes"`
	Ranges        int64       `json:"ranges"`      // of the file, where neighbours are joined
	PackedBytes   int64       `json:"packedBytes"` // the missing chunks in the store
	FromFile      int64       `json:"fromFile"`    // the index and the ranges
	FromStore     int64       `json:"fromStore"`   // the index and the packed chunks
}

// Estimate returns what the image with the index t costs a client that has the image with the index old. If the indexes
// have different headers, all chunks count as missing.
func (im *Image) Estimate(ctx context.Context, t, old *caibx.Table) (Cost, error) {
	c := Cost{ChunkSize: t.Header().Sizes, IndexBytes: int64(len(t.Index()))}
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
		c.MissingChunks, c.MissingBytes, c.PackedBytes = c.MissingChunks+1, c.MissingBytes+i.Length, c.PackedBytes+int64(len(packed))
		if i.Offset != end {
			c.Ranges++
		}
		end = i.End()
	}
	c.FromFile, c.FromStore = c.IndexBytes+c.MissingBytes, c.IndexBytes+c.PackedBytes
	return c, nil
}
