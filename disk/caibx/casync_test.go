package caibx

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// TestCasyncMakesTheSameIndex compares the indexes of random files, with runs of zeros and repeated
// bytes, for random sizes of chunks.
func TestCasyncMakesTheSameIndex(t *testing.T) {
	need.Programs(t, "casync")
	random := rand.New(rand.NewPCG(5, 6))
	dir := t.TempDir()
	image, index := filepath.Join(dir, "image"), filepath.Join(dir, "image.caibx")
	for seed := range byte(8) {
		file := noise(seed, 300<<10+random.IntN(300<<10))
		copy(file[200<<10:], file[:50<<10])
		clear(file[100<<10 : 100<<10+random.IntN(100<<10)])
		avg := 256 + random.Uint64N(10<<10)
		s := Sizes{1 + random.Uint64N(avg-1), avg, avg + 1 + random.Uint64N(8*avg)}
		if seed%4 == 0 {
			s = Blocks(avg)
		}
		h := Header{s, Digest(seed % 2)}
		digest := map[Digest]string{SHA512_256: "sha512-256", SHA256: "sha256"}[h.Digest]
		if err := os.WriteFile(image, file, 0o600); err != nil {
			t.Fatal(err)
		}
		casync := need.Command(t, "casync", "make", "--digest="+digest, "--chunk-size="+s.String(), "--store="+filepath.Join(dir, "store"), index, image)
		if out, err := casync.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", casync, err, out)
		}
		want, err := os.ReadFile(index)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(makeIndex(t, file, h, 64<<10), want) {
			t.Errorf("seed %d, %s %s: the index differs", seed, s, digest)
		}
	}
}
