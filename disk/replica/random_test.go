package replica

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

var (
	chains    = flag.Int("chains", race.Fewer(20, 5), "number of random chains of TestRandomChains")
	firstSeed = flag.Uint64("chains.first", 1, "seed of the first random chain")
)

// TestRandomChains compares volumes with the bytes that were written to them. The volumes are chains
// of 2 to 60 layers that were expanded, reverted, preallocated or punched, on backing images of any
// format and size.
func TestRandomChains(t *testing.T) {
	for seed := *firstSeed; seed < *firstSeed+uint64(*chains); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			randomChain(t, seed)
		})
	}
}

func randomChain(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	m, dir := newModel(t, seed, sector*(1+r.Int64N(1500)))
	if kind := r.IntN(3); kind > 0 {
		// The backing image may be larger or smaller than the initial volume.
		m.useBackingImage([]string{"", "raw", "qcow2"}[kind], 512*(1+r.Int64N(m.size/512+100)))
	}
	layers := 2 + r.IntN(1+r.IntN(59))
	for n := range layers {
		head := m.begin()
		for range r.IntN(12) {
			m.change(head)
		}
		m.must(head.Close())
		if n == layers-1 {
			break
		}
		m.snapshot(fmt.Sprintf("s-%d.%d", n, r.Uint32()))
		switch r.IntN(20) {
		case 0:
			m.size += 512 * (1 + r.Int64N(4000))
		case 1: // revert to an older snapshot
			name := slices.Sorted(maps.Keys(m.taken))[r.IntN(len(m.taken))]
			m.parent, m.layers = snapshotPrefix+name+imageSuffix, m.taken[name].layers
		}
	}
	if r.IntN(3) == 0 {
		m.linked("linked")
	}
	names := append(slices.Sorted(maps.Keys(m.taken)), "")
	r.Shuffle(len(names), func(i, k int) { names[i], names[k] = names[k], names[i] })
	d := openDisk(t, dir)
	for _, name := range names[:min(4, len(names))] {
		layers := m.layers
		if name != "" {
			layers = m.taken[name].layers
		}
		s, err := Open(Location{Disk: d, Folder: testReplica, Snapshot: name, AllowRemoved: true})
		if err != nil {
			t.Fatalf("seed %d: %q: %v", seed, name, err)
		}
		compare(t, r, s, flatten(layers, m.base, m.size))
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Fatalf("seed %d: snapshot %q of %v", seed, name, m.parent)
		}
	}
}

// compare reads s completely, in pieces and by ranges, and compares the bytes with want.
func compare(t *testing.T, r *rand.Rand, s *Source, want []byte) {
	t.Helper()
	if s.Size() != int64(len(want)) {
		t.Fatalf("size %d, want %d", s.Size(), len(want))
	}
	got := make([]byte, len(want))
	if _, err := s.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	differs(t, got, want, 0)
	for range 20 {
		at := r.Int64N(s.Size())
		piece := got[:1+r.Int64N(s.Size()-at)]
		if _, err := s.ReadAt(piece, at); err != nil {
			t.Fatal(err)
		}
		differs(t, piece, want[at:][:len(piece)], at)
	}
	clear(got)
	for at := int64(0); ; {
		start, end, err := s.NextData(at)
		if err != nil {
			break
		}
		copy(got[start:end], want[start:end])
		at = end
	}
	differs(t, got, want, 0) // all bytes outside the ranges must be zeros
	if err := s.Unchanged(); err != nil {
		t.Error(err)
	}
}

func differs(t *testing.T, got, want []byte, at int64) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("byte %d is %d, want %d", at+int64(i), got[i], want[i])
			return
		}
	}
}
