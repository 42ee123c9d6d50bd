package qcow2

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The disk of the benchmarks has 4 GiB, with 1 GiB of data.
const (
	benchDisk  = 4 << 30
	benchData  = 1 << 30
	benchPiece = 16 << 20
)

// rawFile is a Source that reads a file with holes.
type rawFile struct {
	*os.File
	size int64
}

func (f rawFile) Size() int64 { return f.size }

func (f rawFile) NextData(off int64) (start, end int64, err error) {
	start, err = f.Seek(off, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return 0, 0, io.EOF
	}
	if err == nil {
		end, err = f.Seek(start, unix.SEEK_HOLE)
	}
	return start, end, err
}

// benchRaw writes the disk of the benchmarks with random bytes below letters. Bytes of a smaller
// range are easier to compress.
func benchRaw(b *testing.B, letters byte) rawFile {
	b.Helper()
	f, err := os.Create(filepath.Join(b.TempDir(), "raw"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { f.Close() })
	if err := f.Truncate(benchDisk); err != nil {
		b.Fatal(err)
	}
	p := make([]byte, benchPiece)
	r := rand.NewChaCha8([32]byte{5})
	for i := range int64(benchData / benchPiece) {
		r.Read(p)
		for j := range p {
			p[j] %= letters
		}
		if _, err := f.WriteAt(p, i*benchPiece*(benchDisk/benchData)); err != nil {
			b.Fatal(err)
		}
	}
	return rawFile{f, benchDisk}
}

// BenchmarkRead reads all data of an image that is in the page cache. Compare it with qemu-img, which
// also discards the data.
func BenchmarkRead(b *testing.B) {
	for _, k := range []struct {
		name    string
		letters byte
		args    []string
	}{
		{"plain", 255, nil},
		{"extended", 255, []string{"-o", "extended_l2=on"}},
		{"zlib", 16, []string{"-c"}},
		{"zstd", 16, []string{"-c", "-o", "compression_type=zstd"}},
	} {
		raw := benchRaw(b, k.letters)
		image := filepath.Join(b.TempDir(), "image")
		run(b, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, k.args...), raw.Name(), image)...)
		os.Remove(raw.Name())
		b.Run(k.name, func(b *testing.B) {
			b.SetBytes(benchData)
			p := make([]byte, 1<<20)
			for b.Loop() {
				m := openFile(b, image)
				for off := int64(0); ; {
					start, end, err := m.NextData(off)
					if errors.Is(err, io.EOF) {
						break
					}
					for off = start; off < end && err == nil; off += int64(len(p)) {
						_, err = m.ReadAt(p[:min(int64(len(p)), end-off)], off)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
			}
		})
		b.Run(k.name+"/qemu-img", func(b *testing.B) {
			b.SetBytes(benchData)
			for b.Loop() {
				run(b, "qemu-img", "convert", "-n", "-f", "qcow2", "--target-image-opts", image,
					fmt.Sprintf("driver=null-co,size=%d", int64(benchDisk)))
			}
		})
		os.Remove(image)
	}
}

// BenchmarkEncode writes an image to a file. Compare it with qemu-img.
func BenchmarkEncode(b *testing.B) {
	for _, k := range []struct {
		name    string
		letters byte
		options Options
		args    []string
	}{
		{"plain", 255, Options{}, nil},
		{"compress", 16, Options{Compress: true}, []string{"-c"}},
	} {
		raw := benchRaw(b, k.letters)
		b.Run(k.name, func(b *testing.B) {
			b.SetBytes(benchData)
			for b.Loop() {
				b.ReportMetric(float64(size(b, encode(b, raw, k.options)))/benchData, "size/data")
			}
		})
		b.Run(k.name+"/qemu-img", func(b *testing.B) {
			b.SetBytes(benchData)
			for b.Loop() {
				image := filepath.Join(b.TempDir(), "image")
				run(b, "qemu-img", append(append([]string{"convert", "-f", "raw", "-O", "qcow2"}, k.args...), raw.Name(), image)...)
				b.ReportMetric(float64(size(b, image))/benchData, "size/data")
			}
		})
		os.Remove(raw.Name())
	}
}

// size returns the size of a file and removes it.
func size(b *testing.B, path string) int64 {
	info, err := os.Stat(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		b.Fatal(err)
	}
	return info.Size()
}

// BenchmarkInspect checks images of 100 GiB that use all of it. Their tables are in the page cache.
func BenchmarkInspect(b *testing.B) {
	for _, options := range []string{"cluster_size=64k", "cluster_size=2M", "cluster_size=64k,extended_l2=on"} {
		b.Run(options, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "image")
			run(b, "qemu-img", "create", "-q", "-f", "qcow2", "-o", options+",preallocation=metadata", path, "100G")
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			info, err := f.Stat()
			if err != nil {
				b.Fatal(err)
			}
			r := &countingReader{r: f}
			b.ReportAllocs()
			for b.Loop() {
				r.bytes = 0
				if _, err := Inspect(r, info.Size()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(r.bytes)/(1<<20), "MiB-read/op")
		})
	}
}
