package delta

import (
	"bytes"
	"cmp"
	"errors"
	"os"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
)

// TestEstimateNeedsTheIndexesOfOlderGenerations estimates an update of 2 of 16 blocks, with and without the indexes of
// copies on the node.
func TestEstimateNeedsTheIndexesOfOlderGenerations(t *testing.T) {
	blocks := caibx.Header{Sizes: caibx.Blocks(4096)}
	old := noise(1, 16*4096)
	next := bytes.Clone(old)
	next[3*4096] ^= 1
	next[9*4096] ^= 1
	clear(next[14*4096:])
	index, older, others := indexOf(t, next, blocks), indexOf(t, old, blocks), indexOf(t, old, small)
	size := int64(len(next))
	whole := assemble.Survey{Index: int64(len(index)), Size: size, Data: 14 * 4096, Missing: 14 * 4096}
	update := whole
	update.Missing = 2 * 4096
	open := func(content []byte) *os.File { return tempFile(t, content) }
	for _, tt := range []struct {
		name   string
		seeds  []SeedIndex
		offset int64
		// partSize is the size of the image according to the partial file; 0: the right one.
		partSize int64
		want     assemble.Survey
		err      error
	}{
		{name: "no copies", want: whole},
		{name: "older generation", seeds: []SeedIndex{{open(older), true}}, want: update},
		{name: "two older generations", seeds: []SeedIndex{{nil, true}, {open(older), true}}, want: update},
		{name: "index of another image", seeds: []SeedIndex{{open(older), false}}, want: update},
		{name: "index with other sizes of another image", seeds: []SeedIndex{{open(others), false}}, want: whole},
		{name: "damaged index of another image", seeds: []SeedIndex{{open(older[:100]), false}}, want: whole},
		{name: "older generation without index", seeds: []SeedIndex{{nil, true}, {open(older), false}}, err: ErrUnknown},
		{name: "older generation with other sizes", seeds: []SeedIndex{{open(others), true}}, err: ErrUnknown},
		{name: "older generation with a damaged index", seeds: []SeedIndex{{open(older[:100]), true}}, err: ErrUnknown},
		{name: "partial file up to a chunk", seeds: []SeedIndex{{open(older), true}}, offset: 4 * 4096, want: assemble.Survey{Index: update.Index, Size: size, Data: update.Data, Missing: 4096}},
		{name: "partial file within a chunk", seeds: []SeedIndex{{open(older), true}}, offset: 9*4096 + 10, want: assemble.Survey{Index: update.Index, Size: size, Data: update.Data, Missing: 4096}},
		{name: "partial file of another image", offset: 9 * 4096, partSize: size + 512, want: whole},
		{name: "complete partial file", offset: size, want: assemble.Survey{Index: update.Index, Size: size, Data: update.Data, Missing: 0}},
	} {
		got, err := Estimate(t.Context(), AtHand{Index: open(index), Seeds: tt.seeds, Offset: tt.offset, PartSize: cmp.Or(tt.partSize, size)})
		if !errors.Is(err, tt.err) || err == nil && got != tt.want || got.Size != size {
			t.Errorf("%s: got %+v, error %v, want %+v", tt.name, got, err, tt.want)
		}
	}
	for name, a := range map[string]AtHand{
		"damaged":   {Index: open(index[:len(index)-1])},
		"too large": {Index: open(index), MaxSize: size - 1},
	} {
		a.Seeds = []SeedIndex{{open(older), true}, {nil, true}}
		_, err := Estimate(t.Context(), a)
		if _, ok := errors.AsType[*caibx.FormatError](err); !ok {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
