package qcow2

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// encode encodes src to a file.
func encode(t testing.TB, src Source, o Options) (path string) {
	t.Helper()
	e, err := Encode(src, o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "encoded"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, e, make([]byte, 1<<20))
	if err != nil || n != e.Size() {
		t.Fatalf("%d bytes and %v; want %d", n, err, e.Size())
	}
	return f.Name()
}

var encodeSeeds = flag.Uint64("encode.seeds", 11, "how many random disks TestEncode encodes")

func TestEncode(t *testing.T) {
	for seed := range *encodeSeeds {
		if race.Enabled && seed%3 != 1 {
			continue
		}
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(3, seed))
			src := randomPatches((1+r.Int64N(1<<(4+seed%11)))*512, r)
			want := make([]byte, src.size)
			src.ReadAt(want, 0)
			raw := filepath.Join(t.TempDir(), "raw")
			if err := os.WriteFile(raw, want, 0o600); err != nil {
				t.Fatal(err)
			}
			for _, o := range []Options{{}, {Compress: true}} {
				path := encode(t, src, o)
				run(t, "qemu-img", "check", "-q", "-f", "qcow2", path)
				run(t, "qemu-img", "compare", "-q", "-f", "qcow2", "-F", "raw", path, raw)
				checkSource(t, openFile(t, path), want)
				checkSeek(t, src, o, path, r)
			}
		})
	}
}

// checkSeek checks that reads of any size from any offset return the same bytes.
func checkSeek(t *testing.T, src Source, o Options, path string, r *rand.Rand) {
	t.Helper()
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Encode(src, o)
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		off := r.Int64N(e.Size() + 1)
		if _, err := e.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, r.Int64N(e.Size()-off+1))
		if _, err := io.ReadFull(e, got); err != nil {
			t.Fatal(err)
		}
		checkBytes(t, fmt.Sprintf("from %d on", off), got, want[off:off+int64(len(got))])
	}
	if _, err := e.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if e.Size() < 1<<20 {
		if err := iotest.TestReader(e, want); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEncodeWindow: QEMU decompresses with a window of 4 KiB, so no reference may be longer.
func TestEncodeWindow(t *testing.T) {
	far := make([]byte, 10<<10)
	rand.NewChaCha8([32]byte{6}).Read(far)
	for i := range far {
		far[i] %= 16
	}
	src := &patches{size: 64 << 10, pieces: []patch{{0, slices.Concat(far, far)}}}
	e, err := Encode(src, Options{Compress: true})
	if err != nil {
		t.Fatal(err)
	}
	if n := e.layout.tables[0].size(0); n < len(far) {
		t.Errorf("two times %[2]d bytes of 4 bits were encoded to %[1]d bytes", n, len(far))
	}
}

// TestEncodeSeekCompressed checks that a read of compressed clusters can start at any offset.
func TestEncodeSeekCompressed(t *testing.T) {
	src := &patches{size: 3 * batchClusters << 16}
	for i := range int64(3 * batchClusters) {
		src.pieces = append(src.pieces, patch{i << 16, bytes.Repeat([]byte{byte(i), byte(i * i), 7}, int(100*i+1))})
	}
	e, err := Encode(src, Options{Compress: true})
	if err != nil {
		t.Fatal(err)
	}
	file, err := io.ReadAll(e)
	if err != nil {
		t.Fatal(err)
	}
	for off := e.layout.compressed; off < e.Size(); off += 1 + (off - e.layout.compressed) {
		if _, err := e.Seek(off, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		e.blockOffset = -1 // as after a restart
		got := make([]byte, min(100, e.Size()-off))
		if _, err := io.ReadFull(e, got); err != nil {
			t.Fatal(err)
		}
		checkBytes(t, fmt.Sprintf("from %d on", off), got, file[off:off+int64(len(got))])
	}
}

func TestEncodeEmpty(t *testing.T) {
	for _, o := range []Options{{}, {Compress: true}} {
		for _, pieces := range [][]patch{nil, {{0, make([]byte, 200<<10)}}} {
			path := encode(t, &patches{size: 1 << 30, pieces: pieces}, o)
			run(t, "qemu-img", "check", "-q", "-f", "qcow2", path)
			m := openFile(t, path)
			got := make([]byte, 1<<20)
			if _, err := m.ReadAt(got, 0); err != nil || !bytes.Equal(got, make([]byte, 1<<20)) {
				t.Errorf("the disk is not zero, or error %v", err)
			}
			if o.Compress && len(ranges(t, m)) != 0 {
				t.Error("written zeros became data")
			}
		}
	}
}

// failing is a Source that violates its contract or returns an error.
type failing struct {
	*patches
	reads  int // after this number of reads all bytes differ
	err    error
	ranges func(off int64) (start, end int64)
}

func (s *failing) ReadAt(p []byte, off int64) (int, error) {
	if s.reads--; s.err != nil && s.reads < 0 {
		return 0, s.err
	}
	n, err := s.patches.ReadAt(p, off)
	if s.reads < 0 {
		rand.NewChaCha8([32]byte{}).Read(p[:n])
	}
	return n, err
}

func (s *failing) NextData(off int64) (start, end int64, err error) {
	if s.ranges == nil {
		return s.patches.NextData(off)
	}
	start, end = s.ranges(off)
	return start, end, nil
}

func TestEncodeFails(t *testing.T) {
	src := func() *patches {
		return &patches{size: 1 << 20, pieces: []patch{{0, bytes.Repeat([]byte("text"), 10<<10)}}}
	}
	for _, size := range []int64{0, -512, 100, maxVirtualSize + 512} {
		if _, err := Encode(&patches{size: size}, Options{}); err == nil {
			t.Errorf("Encode of %d bytes succeeded", size)
		}
	}
	for _, ranges := range []func(int64) (int64, int64){
		func(off int64) (int64, int64) { return off, off },
		func(off int64) (int64, int64) { return 0, 100 },
		func(off int64) (int64, int64) { return off + 10, off },
		func(off int64) (int64, int64) { return off, 1<<20 + 1 },
	} {
		if _, err := Encode(&failing{patches: src(), ranges: ranges}, Options{}); err == nil {
			t.Error("Encode of wrong ranges succeeded")
		}
	}
	broken := errors.New("bad sector")
	if _, err := Encode(&failing{patches: src(), err: broken}, Options{Compress: true}); !errors.Is(err, broken) {
		t.Errorf("Encode: %v; want %v", err, broken)
	}
	for _, c := range []struct {
		err  error
		o    Options
		want error
	}{{broken, Options{}, broken}, {broken, Options{Compress: true}, broken}, {nil, Options{Compress: true}, errChanged}} {
		s := &failing{patches: src(), reads: 1}
		if !c.o.Compress {
			s.reads = 0
		}
		s.err = c.err
		e, err := Encode(s, c.o)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, e); !errors.Is(err, c.want) || n >= e.Size() {
			t.Errorf("%d of %d bytes, %v; want %v", n, e.Size(), err, c.want)
		}
	}
}

// metadata writes only the metadata to a sparse file with the size of the image. qemu-img can then
// check images that are larger than the available disk.
func metadata(t *testing.T, e *Encoder) (path string) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "metadata"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := io.CopyN(f, e, e.layout.standard); err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(e.Size()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// vast is a Source that has data everywhere, but fails to return it.
type vast struct{ size int64 }

func (s vast) Size() int64 { return s.size }

func (s vast) ReadAt([]byte, int64) (int, error) { return 0, errors.New("there is no data") }

func (s vast) NextData(off int64) (start, end int64, err error) { return off, s.size, nil }

// TestEncodeManyClusters checks an image with several refcount blocks for standard and for compressed
// clusters.
func TestEncodeManyClusters(t *testing.T) {
	src := vast{5<<30 + 512}
	e, err := Encode(src, Options{})
	if err != nil {
		t.Fatal(err)
	}
	run(t, "qemu-img", "check", "-q", "-f", "qcow2", metadata(t, e))

	tables, err := planTables(src)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(4, 0))
	for _, table := range tables {
		table.sizes = make([]uint16, tableEntries)
		for i := range table.sizes {
			if r.IntN(9) > 0 {
				table.sizes[i] = uint16(100 + r.IntN(maxCompressed-100))
			}
		}
	}
	e = &Encoder{src: src, layout: newLayout(src.size, tables), blockOffset: -1}
	if blocks := (e.layout.l1 - e.layout.refcountBlocks) >> encodeBits; blocks < 2 {
		t.Errorf("%d blocks are too few for this test", blocks)
	}
	run(t, "qemu-img", "check", "-q", "-f", "qcow2", metadata(t, e))
}

// TestEncodeLargeDisks checks that a large disk with little data needs a small file and little
// memory.
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
