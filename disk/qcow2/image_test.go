package qcow2

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// kinds are options of images that vendors or QEMU create.
var kinds = []struct {
	name    string
	options string
	size    int64
}{
	{"v2", "compat=0.10", 20 << 20},
	{"v3", "compat=1.1", 20<<20 + 512},
	{"clusters of 512", "cluster_size=512", 3<<20 + 512},
	{"clusters of 4K", "cluster_size=4k", 20<<20 - 512},
	{"clusters of 2M", "cluster_size=2M", 33<<20 + 1024},
	{"extended", "extended_l2=on", 20<<20 + 512},
	{"extended of 16K", "extended_l2=on,cluster_size=16k", 20 << 20},
	{"metadata", "preallocation=metadata,cluster_size=4k", 5 << 20},
	{"lazy", "lazy_refcounts=on,refcount_bits=64", 20 << 20},
}

// scribble runs random writes, zero writes and discards with qemu-io.
func scribble(t *testing.T, image string, size int64, r *rand.Rand) {
	t.Helper()
	args := []string{"-f", "qcow2"}
	for range 40 {
		length := (1 + r.Int64N(1<<r.IntN(11))) * 512
		length = min(length, size/2)
		off := r.Int64N((size-length)/512+1) * 512
		command := "write -q -P " + fmt.Sprint(1+r.IntN(255))
		switch r.IntN(8) {
		case 0:
			command = "write -q -z"
		case 1:
			command = "write -q -z -u"
		case 2:
			command = "discard -q"
		}
		args = append(args, "-c", fmt.Sprintf("%s %d %d", command, off, length))
	}
	run(t, "qemu-io", append(args, image)...)
}

func TestImageReadsAsQEMU(t *testing.T) {
	for seed, k := range kinds {
		if race.Enabled && seed%3 != 0 {
			continue
		}
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, uint64(seed)))
			path := filepath.Join(t.TempDir(), "image")
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", k.options, path, fmt.Sprint(k.size))
			checkSource(t, openFile(t, path), make([]byte, k.size))
			scribble(t, path, k.size, r)
			checkSource(t, openFile(t, path), disk(t, path))
			run(t, "qemu-img", "snapshot", "-c", "before", path)
			scribble(t, path, k.size, r)
			checkSource(t, openFile(t, path), disk(t, path))
		})
	}
}

func TestImageReadsCompressed(t *testing.T) {
	for seed, options := range []string{
		"compression_type=zlib", "compression_type=zstd", "cluster_size=512", "cluster_size=4k,compression_type=zstd",
		"cluster_size=2M,compression_type=zlib", "cluster_size=2M,compression_type=zstd", "extended_l2=on",
	} {
		if race.Enabled && seed%3 != 0 {
			continue
		}
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			size := int64(12<<20 + 512)
			if options == "cluster_size=512" {
				size = 2<<20 + 512
			}
			r := rand.New(rand.NewPCG(2, uint64(seed)))
			plain, path := filepath.Join(t.TempDir(), "plain"), filepath.Join(t.TempDir(), "image")
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=512", plain, fmt.Sprint(size))
			scribble(t, plain, size, r)
			run(t, "qemu-img", "convert", "-f", "qcow2", "-c", "-O", "qcow2", "-o", options, plain, path)
			want := disk(t, plain)
			checkSource(t, openFile(t, path), want)
			// Write, so that there are standard clusters among the compressed ones.
			scribble(t, path, size, r)
			checkSource(t, openFile(t, path), disk(t, path))
		})
	}
}
