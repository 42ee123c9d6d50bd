package fetch

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// BenchmarkDownload fetches, hashes and commits from a server in this process,
// which takes a share of the processors itself: one MiB of data in every MiB
// (dense), or in every eight (sparse).
func BenchmarkDownload(b *testing.B) {
	const size = 512 << 20
	for _, body := range []struct {
		name   string
		period []byte
	}{
		{"dense", fetchtest.Random(1, 8<<20)},
		{"sparse", append(fetchtest.Random(1, 1<<20), make([]byte, 7<<20)...)},
	} {
		b.Run(body.name, func(b *testing.B) {
			r := newFixture(b)
			url := r.server.Serve("/image.raw", fetchtest.Repeated(body.period, size))
			b.SetBytes(size)
			for b.Loop() {
				if err := r.download(Request{URL: url}); err != nil {
					b.Fatal(err)
				}
				if err := r.disk.Remove(testID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHash is what a download cannot be faster than.
func BenchmarkHash(b *testing.B) {
	data := fetchtest.Random(1, 64<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		digest(data)
	}
}

// BenchmarkUnpack unpacks, as bytes that come out.
func BenchmarkUnpack(b *testing.B) {
	// Half of it cannot be packed, half is text of a kind.
	image := fetchtest.Random(1, 32<<20)
	for i := range image[:16<<20] {
		image[i] = "the quick brown fox jumps over the lazy dog\n"[int(image[i])%44]
	}
	for _, p := range []packing{packedGz, packedZst, packedXz} {
		packed := pack(b, p, image)
		b.Run(string(p), func(b *testing.B) {
			r := newFixture(b)
			url := r.server.Serve("/image.raw."+string(p), fetchtest.Bytes(packed))
			b.SetBytes(int64(len(image)))
			for b.Loop() {
				if err := r.download(Request{URL: url}); err != nil {
					b.Fatal(err)
				}
				if err := r.disk.Remove(testID); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
