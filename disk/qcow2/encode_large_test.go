package qcow2

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// metadata writes what lies before the clusters to a sparse file as large as the image, so
// that qemu-img can check much more than there is room for.
func metadata(t *testing.T, e *Encoder) (path string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "metadata"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, e, e.layout.plain); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(e.Size()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// vast is a disk that is all data, without having it.
type vast struct{ size int64 }

func (s vast) Size() int64                                      { return s.size }
func (s vast) ReadAt([]byte, int64) (int, error)                { return 0, errors.New("there is no data") }
func (s vast) NextData(off int64) (start, end int64, err error) { return off, s.size, nil }

// Several blocks of reference counts, of plain clusters and of packed ones.
func TestEncodeManyClusters(t *testing.T) {
	src := vast{5<<30 + 512}
	e, err := Encode(src, Options{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "check", "-q", "-f", "qcow2", metadata(t, e))

	tables, err := survey(src)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(4, 0))
	for _, table := range tables {
		table.sizes = make([]uint16, tableEntries)
		for i := range table.sizes {
			if r.IntN(9) > 0 {
				table.sizes[i] = uint16(100 + r.IntN(packLimit-100))
			}
		}
	}
	e = &Encoder{src: src, layout: newLayout(src.size, tables), blockOffset: -1}
	if blocks := (e.layout.l1 - e.layout.blocks) >> encodeBits; blocks < 2 {
		t.Errorf("%d blocks are too few for this test", blocks)
	}
	run(t, "qemu-img", "check", "-q", "-f", "qcow2", metadata(t, e))
}

// A vast disk with little data costs a small file and little memory.
func TestEncodeLargeDisks(t *testing.T) {
	for _, size := range []int64{16 << 40, maxVirtualSize} {
		src := &patches{size: size, pieces: []patch{
			{1 << 20, bytes.Repeat([]byte{1}, 1<<20)}, {size/2 - 100, bytes.Repeat([]byte{2}, 200)}, {size - 512, bytes.Repeat([]byte{3}, 512)},
		}}
		for _, o := range []Options{{}, {Compress: true}} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			path := encode(t, src, o)
			runtime.ReadMemStats(&after)
			if got := after.TotalAlloc - before.TotalAlloc; got > 16<<20 {
				t.Errorf("%d bytes allocated", got)
			}
			run(t, "qemu-img", "check", "-q", "-f", "qcow2", path)
			if info, err := os.Stat(path); err != nil || info.Size() > 4<<20 {
				t.Errorf("%d bytes, %v", info.Size(), err)
			}
			m := openFile(t, path)
			if m.Size() != size {
				t.Errorf("Size = %d; want %d", m.Size(), size)
			}
			for _, want := range src.pieces {
				got := make([]byte, len(want.b))
				if _, err := m.ReadAt(got, want.off); err != nil {
					t.Fatal(err)
				}
				checkBytes(t, "piece", got, want.b)
			}
			if n := len(ranges(t, m)); n != 3 {
				t.Errorf("%d ranges; want 3", n)
			}
		}
	}
}
