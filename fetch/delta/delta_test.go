package delta

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk/caibx"
)

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// edit returns a new version of an image: with bytes that were changed, inserted, moved or cut off, and with holes.
func edit(random *rand.Rand, old []byte) []byte {
	next := bytes.Clone(old)
	for range 1 + random.IntN(4) {
		if len(next) < 4096 {
			return append(next, noise(9, 8192)...)
		}
		at := random.IntN(len(next) - 2048)
		length := 1 + random.IntN(min(len(next)-at, 200_000))
		switch random.IntN(6) {
		case 0:
			copy(next[at:at+length], noise(byte(random.Uint32()), length))
		case 1:
			next = slices.Insert(next, at, noise(byte(random.Uint32()), 1+random.IntN(3000))...)
		case 2:
			moved := bytes.Clone(next[at : at+length])
			next = slices.Delete(next, at, at+length)
			next = slices.Insert(next, random.IntN(len(next)+1), moved...)
		case 3:
			next = next[:max(4096, len(next)-length)]
		case 4:
			clear(next[at : at+length])
		case 5:
			next = append(next, next[at:at+length]...)
		}
	}
	return next[:len(next)/512*512]
}

// TestRandomUpdates downloads new versions of random images.
func TestRandomUpdates(t *testing.T) {
	for i := range uint64(60) {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			random := rand.New(rand.NewPCG(i, 1))
			old := noise(byte(i), (1+random.IntN(40))<<16)
			if i%3 == 0 {
				clear(old[random.IntN(len(old)):])
			}
			next := edit(random, old)
			h := small
			switch random.IntN(3) {
			case 0:
				h.Sizes = caibx.Blocks(4096)
			case 1:
				h = caibx.Header{Sizes: caibx.DefaultSizes, Digest: caibx.SHA256}
			}
			s := newSite(t)
			s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, h)
			r := s.request("v2", next)
			if random.IntN(2) == 0 {
				packer := caibx.NewPacker()
				s.putStore("store", next, h, func(chunk []byte) []byte { return packer.Pack(nil, chunk) })
				r.Store = s.url + "/store"
			}
			s.put(oldID, old)
			var damaged atomic.Int64
			if err := s.download(r, s.seed(oldID, &damaged)); err != nil {
				t.Fatal(err, describe(s))
			}
			s.wantImage(next)
			if r.Store == "" && s.sent.Load() != s.survey.Missing+int64(len(s.files["v2.caibx"])) {
				t.Error("other bytes were sent than are missing:", describe(s))
			}
			if s.sent.Load() > int64(len(next)+len(s.files["v2.caibx"])) {
				t.Error("more was sent than the file and its index:", describe(s))
			}
			if len(s.warnings) > 0 || damaged.Load() > 0 {
				t.Error(describe(s))
			}
			if got := s.progress.Done.Load(); got != int64(len(next)) {
				t.Errorf("progress is %d of %d", got, len(next))
			}
		})
	}
}
