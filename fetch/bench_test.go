package fetch

import (
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// BenchmarkDownload downloads, hashes and commits an image from a server in the same process, which
// shares the CPUs. In the dense image every MiB is data, in the sparse image one of eight.
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
				if err := r.disk.Remove(testID, disk.Mark{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkHash measures SHA-512, the upper bound of the rate of a download.
func BenchmarkHash(b *testing.B) {
	data := fetchtest.Random(1, 64<<20)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		digest(data)
	}
}

// BenchmarkUnpack measures the rate of unpacked bytes.
func BenchmarkUnpack(b *testing.B) {
	// Half of the image does not compress, half is text.
	image := fetchtest.Random(1, 32<<20)
	for i := range image[:16<<20] {
		image[i] = "the quick brown fox jumps over the lazy dog\n"[int(image[i])%44]
	}
	for _, p := range []packing{packedGz, packedZst, packedXz} {
		packed := packWith(b, p, image)
		b.Run(string(p), func(b *testing.B) {
			r := newFixture(b)
			url := r.server.Serve("/image.raw."+string(p), fetchtest.Bytes(packed))
			b.SetBytes(int64(len(image)))
			for b.Loop() {
				if err := r.download(Request{URL: url}); err != nil {
					b.Fatal(err)
				}
				if err := r.disk.Remove(testID, disk.Mark{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
