package caibx

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestBuzhashTableIsThatOfCasync(t *testing.T) {
	var table []byte
	for _, n := range buzhashTable {
		table = binary.LittleEndian.AppendUint32(table, n)
	}
	const want = "5b52080d38287da9d2e278466e3e0db7ec98e5e8b226f50612a56fa012b1f660"
	if got := sha256.Sum256(table); hex.EncodeToString(got[:]) != want {
		t.Errorf("the SHA-256 of the table is %x, want %s", got, want)
	}
}

func TestBuzhashVectors(t *testing.T) {
	count := func(first byte) (w [windowSize]byte) {
		for i := range w {
			w[i] = first + byte(i)
		}
		return w
	}
	ones := [windowSize]byte(bytes.Repeat([]byte{0xff}, windowSize))
	for _, c := range []struct {
		window [windowSize]byte
		want   uint32
	}{{[windowSize]byte{}, 0x9e489e48}, {count(0), 0x6b67dec6}, {count(1), 0xa3fc25f1}, {ones, 0xfdc4023b}} {
		if got := buzhash(&c.window); got != c.want {
			t.Errorf("the hash of %x is %#x, want %#x", c.window, got, c.want)
		}
	}
}

func TestDiscriminatorVectors(t *testing.T) {
	for avg, want := range map[uint64]uint32{
		4096: 3075, 16384: 12318, 65536: 49535, 262144: 202440, 1 << 20: 886711, 4 << 20: 5721670,
	} {
		if got := discriminator(SizesOf(avg)); got != want {
			t.Errorf("the discriminator of %d is %d, want %d", avg, got, want)
		}
	}
	if got := discriminator(Sizes{15000, 16000, 90000}); got != 15000 {
		t.Errorf("the discriminator is %d and not the least size", got)
	}
	if got := discriminator(Sizes{1, 4 << 20, 4<<20 + 1}); got != 4<<20+1 {
		t.Errorf("the discriminator is %d and not the greatest size", got)
	}
}

// TestChunkerMakesTheIndexesOfCasync compares whole indexes, byte by byte.
func TestChunkerMakesTheIndexesOfCasync(t *testing.T) {
	small := fixture(t, "small-new.raw.zst")
	random := noise(1, 409600)
	for name, file := range map[string][]byte{
		"small-new.raw.caibx": small, "small-new.raw.sha256.caibx": small,
		"repeat.raw.caibx": fixture(t, "repeat.raw.zst"), "sparse-new.raw.caibx": fixture(t, "sparse-new.raw.zst"),
		"below-min.raw.caibx": fixture(t, "below-min.raw.zst"), "one-byte.raw.caibx": []byte("Q"), "empty.raw.caibx": nil,
		"noise.clamped.caibx": random, "noise.blocks.caibx": random,
	} {
		want := fixture(t, name)
		h, _, err := readAll(want, limits)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !bytes.Equal(makeIndex(t, file, h, 64<<10), want) {
			t.Errorf("%s: the index differs", name)
		}
	}
}

// reference cuts a file by the definition of the chunks.
func reference(file []byte, s Sizes) (all []int) {
	d, first := discriminator(s), int(max(s.Min, windowSize))
	for at := 0; at < len(file); {
		end := min(at+int(s.Max), len(file))
		for p := at + first; p < end; p++ {
			window := [windowSize]byte(file[p-windowSize:])
			if buzhash(&window)%d == d-1 {
				end = p
				break
			}
		}
		all, at = append(all, end), end
	}
	return all
}

// TestChunksDoNotDependOnThePieces cuts random files, with runs of zeros, in random pieces.
func TestChunksDoNotDependOnThePieces(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for seed := range byte(40) {
		file := noise(seed, random.IntN(30000))
		if n := len(file); n > 0 {
			from := random.IntN(n)
			clear(file[from : from+random.IntN(n-from)])
		}
		least := 1 + random.Uint64N(300)
		avg := least + 1 + random.Uint64N(500)
		s := Sizes{least, avg, max(windowSize, avg+random.Uint64N(2000))}
		want := reference(file, s)
		for _, piece := range []int{1, 7, 47, 48, 49, 100, 1000, len(file) + 1} {
			if got := ends(t, file, s, piece); !slices.Equal(got, want) {
				t.Fatalf("seed %d, %s, pieces of %d: the chunks end at %v, want %v", seed, s, piece, got, want)
			}
		}
	}
}

func TestBlocks(t *testing.T) {
	for _, size := range []uint64{1, 30, 48, 100, 1000} {
		got := ends(t, noise(1, 250), Blocks(size), 33)
		for i, end := range got {
			if want := min((i+1)*int(size), 250); end != want {
				t.Errorf("block %d of %d bytes ends at %d, want %d", i, size, end, want)
			}
		}
	}
}

func TestCutsZerosAtMax(t *testing.T) {
	zeros, other := make([]byte, 10000), 0
	for avg := uint64(5200); avg < 5300; avg++ { // one of the discriminators is 3943, a divisor of the hash of zeros plus one
		s := Sizes{40, avg, avg + 100}
		c, err := NewChunker(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := c.CutsZerosAtMax(), ends(t, zeros, s, 10000)[0] == int(s.Max); got != want {
			t.Errorf("%s: got %v, want %v", s, got, want)
		}
		if !c.CutsZerosAtMax() {
			other++
		}
	}
	if other == 0 {
		t.Error("no sizes cut zeros earlier")
	}
}

func TestChunkerRejectsSizes(t *testing.T) {
	for _, s := range []Sizes{{0, 1, 2}, {3, 2, 4}, {1, 3, 2}, {1, 2, MaxChunk + 1}, {1, 20, 47}, SizesOf(4<<20 + 4), Blocks(MaxChunk + 1)} {
		if _, err := NewChunker(s); err == nil {
			t.Errorf("%s is accepted", s)
		}
	}
}

func TestCutTest(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, d := range []uint32{1, 2, 3, 64, 65, 3075, 12318, 49535, 202440, 5721670, 1 << 27, 1<<27 - 1} {
		cut := newCutTest(d)
		try := func(h uint32) {
			if want := h%d == d-1; want != (cut.maybe(h) && cut.at(h)) {
				t.Errorf("d = %d, h = %d: want %v", d, h, want)
			}
			if cut.maybe(h) && !cut.at(h) && h != 1<<32-1 {
				t.Errorf("d = %d, h = %d: maybe is wrong", d, h)
			}
		}
		for _, h := range []uint32{0, 1, d - 2, d - 1, d, 1<<32 - 1, 1<<32 - 2, 1<<32/2 - 1} {
			try(h)
		}
		for range 10000 {
			h := random.Uint32()
			try(h)
			hi, _ := bits.Mul32(h, 1<<32/2/d)
			try(hi*d + d - 1)
		}
	}
}

func FuzzChunker(f *testing.F) {
	f.Add([]byte("some bytes"), uint16(3), uint16(50), uint16(100), uint8(7))
	f.Add(make([]byte, 3000), uint16(64), uint16(256), uint16(1024), uint8(48))
	f.Fuzz(func(t *testing.T, file []byte, least, avg, most uint16, piece uint8) {
		s := Sizes{uint64(least), uint64(avg), uint64(most)}
		if _, err := NewChunker(s); err != nil || s.IsBlocks() {
			return
		}
		if got, want := ends(t, file, s, int(piece)+1), reference(file, s); !slices.Equal(got, want) {
			t.Errorf("the chunks end at %v, want %v", got, want)
		}
	})
}

func BenchmarkChunker(b *testing.B) {
	file := noise(1, 64<<20)
	b.SetBytes(int64(len(file)))
	for b.Loop() {
		ends(b, file, DefaultSizes, 256<<10)
	}
}
