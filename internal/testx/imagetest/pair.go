package imagetest

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// Pair returns two versions of an image of up to some MiB. The new one has bytes that were changed, inserted, moved or
// cut off, and zeros. One of 16 pairs is of qcow2 images, plain or packed, which skips the test without qemu-img.
// random continues the numbers that the pair was made with.
func Pair(t testing.TB, n uint64) (random *rand.Rand, old, next []byte) {
	t.Helper()
	random = rand.New(rand.NewPCG(n, 1))
	old = noise(random, (1+random.IntN(40))<<16)
	if n%3 == 0 {
		clear(old[random.IntN(len(old)):])
	}
	next = edit(random, old)
	if n%16 == 15 {
		packed := n%32 == 31
		return random, qcow2(t, old, packed), qcow2(t, next, packed)
	}
	return random, old, next
}

func noise(random *rand.Rand, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0], key[1], key[2] = byte(random.Uint32()), byte(random.Uint32()), byte(random.Uint32())
	_, _ = rand.NewChaCha8(key).Read(b) // never fails
	return b
}

// edit returns a new version of an image. Its size is a multiple of 512.
func edit(random *rand.Rand, old []byte) []byte {
	next := bytes.Clone(old)
	for range 1 + random.IntN(4) {
		if len(next) < 4096 {
			next = append(next, noise(random, 8192)...)
		}
		at := random.IntN(len(next) - 2048)
		length := 1 + random.IntN(min(len(next)-at, 200_000))
		switch random.IntN(6) {
		case 0:
			copy(next[at:at+length], noise(random, length))
		case 1:
			next = slices.Insert(next, at, noise(random, 1+random.IntN(3000))...)
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

// qcow2 returns a raw image as a qcow2 image.
func qcow2(t testing.TB, raw []byte, packed bool) []byte {
	t.Helper()
	from, to := filepath.Join(t.TempDir(), "image.raw"), filepath.Join(t.TempDir(), "image.qcow2")
	if err := os.WriteFile(from, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"convert", "-f", "raw", "-O", "qcow2"}
	if packed {
		args = append(args, "-c")
	}
	if out, err := need.Command(t, "qemu-img", append(args, from, to)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	image, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return image
}
