package qcow2

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// TestInspectAcceptsImagesOfQEMU checks that each image that qemu-img creates and changes is accepted
// after each step, and that it is then opened as well.
func TestInspectAcceptsImagesOfQEMU(t *testing.T) {
	need.Programs(t, "qemu-img", "qemu-io")
	steps := []string{
		"qemu-io -f qcow2 -c 'write -q -P 1 0 100k' -c 'write -q -P 2 1M 300k' -c 'write -q -z 64k 32k' IMAGE",
		"qemu-img snapshot -c one IMAGE",
		"qemu-io -f qcow2 -c 'write -q -P 3 32k 1M' -c 'discard -q 1M 128k' IMAGE",
		"qemu-img snapshot -c two IMAGE",
		"qemu-io -f qcow2 -c 'write -q -P 4 1500k 64k' IMAGE",
		"qemu-img snapshot -a one IMAGE",
		"qemu-img snapshot -d one IMAGE",
		"qemu-io -f qcow2 -c 'write -q -P 5 2M 64k' IMAGE",
		"qemu-img snapshot -d two IMAGE",
		"qemu-img resize -q -f qcow2 IMAGE 9M",
		"qemu-io -f qcow2 -c 'write -q -P 6 8M 1M' IMAGE",
		"qemu-img resize -q -f qcow2 --shrink IMAGE 2M",
		"qemu-img check -q -f qcow2 -r all IMAGE",
		"qemu-img amend -q -f qcow2 -o lazy_refcounts=on IMAGE",
		"qemu-img convert -c -f qcow2 -O qcow2 IMAGE PACKED",
		"qemu-io -f qcow2 -c 'write -q -P 7 700k 200k' IMAGE",
	}
	for _, options := range []string{
		"compat=0.10", "compat=1.1", "cluster_size=512", "cluster_size=2M",
		"extended_l2=on,cluster_size=16k", "extended_l2=on,cluster_size=2M",
		"compression_type=zstd", "lazy_refcounts=on", "refcount_bits=1", "refcount_bits=64,cluster_size=512",
		"preallocation=metadata", "preallocation=falloc,cluster_size=512", "preallocation=metadata,extended_l2=on,cluster_size=32k",
	} {
		t.Run(options, func(t *testing.T) {
			t.Parallel()
			image := filepath.Join(t.TempDir(), "image")
			run(t, "qemu-img", "create", "-q", "-f", "qcow2", "-o", options, image, "3M")
			checkAccepted(t, "create", image)
			for _, step := range steps {
				if !supported(step, options) {
					continue
				}
				packed := image + ".packed"
				script := strings.NewReplacer("IMAGE", image, "PACKED", packed).Replace(step)
				if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", step, err, out)
				}
				checkAccepted(t, step, image)
				if strings.Contains(step, "PACKED") {
					checkAccepted(t, step, packed)
				}
			}
		})
	}
}

// supported reports whether an image with the options supports a step.
func supported(step, options string) bool {
	switch {
	case strings.Contains(step, "lazy_refcounts"):
		return !strings.Contains(options, "0.10")
	case strings.Contains(step, "snapshot"):
		return !strings.Contains(options, "refcount_bits=1")
	}
	return true
}

func checkAccepted(t *testing.T, step, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(f, info.Size()); err != nil {
		t.Errorf("after %s: %v", step, err)
	}
	if _, err := Open(f, info.Size()); err != nil {
		t.Errorf("after %s: Open: %v", step, err)
	}
}

// TestLargeImagesAreCheckedInWindows checks files with more clusters than one window has: references in
// every window are found, and valid files are accepted.
func TestLargeImagesAreCheckedInWindows(t *testing.T) {
	// Clusters of 512 bytes: a window is 8 GiB. The L2 table in each file is at 1 MiB.
	const window, far = windowClusters << 9, windowClusters<<9 + 5<<20
	for _, c := range []struct {
		name    string
		entries map[int64]uint64 // by offset in the file
		reason  string
	}{
		{"valid", map[int64]uint64{}, ""},
		{"data at the border", map[int64]uint64{1<<20 + 8: window - 512, 1<<20 + 16: window, 1<<20 + 24: 2*window - 512}, ""},
		{"data used twice in the second window", map[int64]uint64{1<<20 + 8: far, 1<<20 + 16: far}, fmt.Sprintf("the cluster at %d of", int64(far))},
		{"an L2 table in the second window used as data", map[int64]uint64{atLargeL1 + 8: far, 1<<20 + 16: far}, fmt.Sprintf("the cluster at %d of", int64(far))},
		{"compressed data across the border over data", map[int64]uint64{1<<20 + 8: window, 1<<20 + 16: l2Compressed | 1<<61 | window - 512}, fmt.Sprintf("the cluster at %d of", int64(window))},
		{"an entry of a table in the second window", map[int64]uint64{atLargeL1 + 8: far, far: 1 << 20}, "the cluster at 1048576 of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := largeFile(t, 2*window)
			for offset, entry := range c.entries {
				writeNumber(t, f, offset, entry)
			}
			_, err := Inspect(f, 2*window)
			if c.reason != "" {
				wantRefused(t, err, c.reason)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
}

const atLargeL1 = 3 << 9

// largeFile creates a sparse file of size bytes: a qcow2 image with clusters of 512 bytes and one L2
// table.
func largeFile(t *testing.T, size int64) *os.File {
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	head := edited(image(t, "good/cluster512.qcow2")[:512],
		put64(atSize, 2<<20), put32(atL1Entries, 64), put64(atL1Offset, atLargeL1),
		put64(atRefcountOffset, 1<<9), put32(atRefcountClusters, 1))
	if _, err := f.WriteAt(head, 0); err != nil {
		t.Fatal(err)
	}
	writeNumber(t, f, 1<<9, 2<<9)
	writeNumber(t, f, atLargeL1, copied|1<<20)
	return f
}

func writeNumber(t *testing.T, f *os.File, offset int64, v uint64) {
	b := make([]byte, 8)
	put64(0, v)(b)
	if _, err := f.WriteAt(b, offset); err != nil {
		t.Fatal(err)
	}
}

// TestSharedTablesOfSnapshotsAreReadOnce checks that the cost does not grow with the number of
// snapshots that share an L2 table, and that it is limited if the table is outside the window.
func TestSharedTablesOfSnapshotsAreReadOnce(t *testing.T) {
	const snapshots = 2000
	for _, c := range []struct {
		name   string
		table  int64
		size   int64
		reason string
	}{
		{"in the window", 4 << 20, 64 << 20, ""},
		{"outside the window", windowClusters << 9, windowClusters<<9 + 1<<20, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := largeFile(t, c.size)
			b := make([]byte, snapshots*minSnapshotBytes)
			for i := range snapshots {
				put64(i*minSnapshotBytes, uint64(8<<20+i<<9))(b)
				put32(i*minSnapshotBytes+8, 64)(b)
				writeNumber(t, f, int64(8<<20+i<<9), uint64(c.table))
			}
			if _, err := f.WriteAt(b, 6<<20); err != nil {
				t.Fatal(err)
			}
			writeNumber(t, f, atSnapshotsOffset, 6<<20)
			n := make([]byte, 4)
			put32(0, snapshots)(n)
			if _, err := f.WriteAt(n, atSnapshots); err != nil {
				t.Fatal(err)
			}
			r := &countingReader{r: f}
			if _, err := Inspect(r, c.size); err != nil {
				t.Error(err)
			}
			t.Logf("%d bytes read", r.bytes)
		})
	}
}

// TestTablesAreReadUpToLimit checks that the limit for the bytes of tables holds: an image that exceeds
// it would have many terabytes.
func TestTablesAreReadUpToLimit(t *testing.T) {
	b := image(t, "good/snapshot.qcow2")
	c, err := newChecker(file{bytes.NewReader(b), int64(len(b))})
	if err != nil {
		t.Fatal(err)
	}
	c.left = 10 << 10
	wantRefused(t, c.checkWindow(), "the tables of the qcow2 image refer to each other too often")
}

// countingReader counts the bytes that are read.
type countingReader struct {
	r     io.ReaderAt
	bytes int64
}

func (r *countingReader) ReadAt(b []byte, off int64) (int, error) {
	r.bytes += int64(len(b))
	return r.r.ReadAt(b, off)
}
