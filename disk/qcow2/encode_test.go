package qcow2

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/iotest"

	"github.com/seed-26586806/backing-image-manager/disk/race"
)

// encode writes the image of src to a file.
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

// checkSeek holds that a file is the same in pieces of any size, and from any offset on.
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

// QEMU packs with a window of 4 KiB, so that nothing may refer to what lies further back.
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
		t.Errorf("%d bytes for two times %d of 4 bits", n, len(far))
	}
}

// Packed clusters are taken up anywhere.
func TestEncodeSeekPacked(t *testing.T) {
	src := &patches{size: 3 * packBatch << 16}
	for i := range int64(3 * packBatch) {
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
	for off := e.layout.packed; off < e.Size(); off += 1 + (off - e.layout.packed) {
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
				t.Errorf("not zeros, or %v", err)
			}
			if o.Compress && len(ranges(t, m)) != 0 {
				t.Error("written zeros are data after all")
			}
		}
	}
}
