package qcow2

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// run runs a program of QEMU.
func run(t testing.TB, name string, args ...string) {
	t.Helper()
	if out, err := need.Command(t, name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

// openFile opens an image by its path.
func openFile(t testing.TB, path string) *Image {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	m, err := Open(f, info.Size())
	if err != nil {
		t.Fatalf("open %s: %v", filepath.Base(path), err)
	}
	return m
}

// disk returns the bytes of the disk in an image, as qemu-img reads it.
func disk(t testing.TB, image string) []byte {
	t.Helper()
	raw := filepath.Join(t.TempDir(), "raw")
	run(t, "qemu-img", "convert", "-f", "qcow2", "-O", "raw", image, raw)
	b, err := os.ReadFile(raw)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// checkSource checks that src has the content want: it reads it completely, in pieces and by ranges.
func checkSource(t testing.TB, src Source, want []byte) {
	t.Helper()
	if src.Size() != int64(len(want)) {
		t.Fatalf("Size = %d; want %d", src.Size(), len(want))
	}
	got := bytes.Repeat([]byte{0xee}, len(want))
	if n, err := src.ReadAt(got, 0); n != len(want) || err != nil {
		t.Fatalf("ReadAt = %d, %v", n, err)
	}
	checkBytes(t, "at once", got, want)
	step := len(want)/100 + 13
	for off := 0; off < len(want); off += step {
		p := bytes.Repeat([]byte{0xee}, min(step, len(want)-off))
		if n, err := src.ReadAt(p, int64(off)); n != len(p) || err != nil {
			t.Fatalf("ReadAt(%d, %d) = %d, %v", len(p), off, n, err)
		}
		checkBytes(t, "in pieces", p, want[off:off+len(p)])
	}
	clear(got)
	for _, r := range ranges(t, src) {
		if _, err := src.ReadAt(got[r[0]:r[1]], r[0]); err != nil {
			t.Fatalf("ReadAt: %v", err)
		}
	}
	checkBytes(t, "by ranges", got, want)
	if n, err := src.ReadAt(make([]byte, 10), int64(len(want)-4)); n != 4 || !errors.Is(err, io.EOF) {
		t.Errorf("ReadAt across the end = %d, %v; want 4, EOF", n, err)
	}
}

// ranges returns all ranges of src, and checks them against the contract of NextData.
func ranges(t testing.TB, src Source) [][2]int64 {
	t.Helper()
	var all [][2]int64
	for off := int64(0); ; {
		start, end, err := src.NextData(off)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil || start < off || end <= start || end > src.Size() {
			t.Fatalf("NextData(%d) = %d, %d, %v", off, start, end, err)
		}
		if within, _, err := src.NextData(start + (end-start)/2); err != nil || within != start+(end-start)/2 {
			t.Fatalf("NextData in the middle of %d to %d = %d, %v", start, end, within, err)
		}
		all = append(all, [2]int64{start, end})
		off = end
	}
}

func checkBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x; want %#x", what, i, len(want), got[i], want[i])
		}
	}
}
