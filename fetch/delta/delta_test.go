package delta

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/internal/testx/imagetest"
)

var (
	pairs     = flag.Uint64("delta.pairs", 60, "number of pairs of images that TestRandomUpdates has")
	firstPair = flag.Uint64("delta.first", 0, "number of the first pair")
)

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// missingOf returns the bytes of the distinct chunks of an index that another index does not have, except for zeros.
func missingOf(t *testing.T, index, seed []byte) (missing int64) {
	t.Helper()
	known := map[caibx.ID]bool{}
	for _, i := range itemsOf(t, seed) {
		known[i.ID] = true
	}
	h := headerOf(t, index)
	for _, i := range itemsOf(t, index) {
		if !known[i.ID] && i.ID != h.Digest.ZeroID(i.Length) {
			missing += i.Length
		}
		known[i.ID] = true
	}
	return missing
}

func headerOf(t *testing.T, index []byte) caibx.Header {
	t.Helper()
	r, err := caibx.NewReader(bytes.NewReader(index), int64(len(index)), caibx.Limits{Image: 1 << 40, Chunk: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r.Header()
}

func itemsOf(t *testing.T, index []byte) (items []caibx.Item) {
	t.Helper()
	r, err := caibx.NewReader(bytes.NewReader(index), int64(len(index)), caibx.Limits{Image: 1 << 40, Chunk: 1})
	for err == nil {
		var i caibx.Item
		if i, err = r.Next(); err == nil {
			items = append(items, i)
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return items
}

// TestRandomUpdates downloads new versions of random images, by the index and by a chunk store. Exactly the chunks that
// the old version does not have are transferred.
func TestRandomUpdates(t *testing.T) {
	for n := *firstPair; n < *firstPair+*pairs; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			random, old, next := imagetest.Pair(t, n)
			h := small
			switch random.IntN(3) {
			case 0:
				h.Sizes = caibx.Blocks(4096)
			case 1:
				h = caibx.Header{Sizes: caibx.DefaultSizes, Digest: caibx.SHA256}
			}
			index, oldIndex := indexOf(t, next, h), indexOf(t, old, h)
			missing := missingOf(t, index, oldIndex)
			for _, store := range []bool{false, true} {
				s := newSite(t)
				s.files["v2"], s.files["v2.caibx"] = next, index
				r := s.request("v2", next)
				if store {
					packer := caibx.NewPacker()
					s.putStore("store", next, h, func(chunk []byte) []byte { return packer.Pack(nil, chunk) })
					r.Store = s.url + "/store"
				}
				s.put(oldID, old)
				var damaged atomic.Int64
				seed := s.seed(oldID, &damaged)
				if n%2 == 0 {
					seed.Index = tempFile(t, oldIndex)
				}
				if err := s.download(r, seed); err != nil {
					t.Fatal(err, describe(s))
				}
				s.wantImage(next)
				estimate, err := Estimate(t.Context(), AtHand{Index: tempFile(t, index), Seeds: []SeedIndex{{tempFile(t, oldIndex), true}}})
				if estimate != s.survey || err != nil {
					t.Errorf("estimate %+v, error %v: %s", estimate, err, describe(s))
				}
				if s.survey.Missing != missing {
					t.Errorf("store %v: %d bytes are missing: %s", store, missing, describe(s))
				}
				sent := s.sent.Load() - int64(len(index))
				if !store && sent != missing || store && sent > missing+missing/50+int64(len(itemsOf(t, index))*16) {
					t.Errorf("store %v: %d bytes were sent for %d missing ones: %s", store, sent, missing, describe(s))
				}
				if len(s.warnings) > 0 || damaged.Load() > 0 {
					t.Errorf("store %v: %d seeds are damaged: %s", store, damaged.Load(), describe(s))
				}
				if got := s.progress.Done.Load(); got != int64(len(next)) {
					t.Errorf("store %v: progress is %d of %d", store, got, len(next))
				}
			}
		})
	}
}
