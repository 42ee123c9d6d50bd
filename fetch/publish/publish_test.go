package publish

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// testImage returns random bytes that pack 2:1, with a run of zeros and a repetition. They are a whole
// number of sectors.
func testImage(seed uint64, sectors int) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, sectors*512)
	for i := range b {
		b[i] = byte(random.IntN(16)) + 'a'
	}
	quarter := len(b) / 4
	clear(b[quarter : 2*quarter])
	copy(b[3*quarter:], b[:quarter/2])
	return b
}

func openTestImage(t testing.TB, content []byte) *Image {
	t.Helper()
	path := filepath.Join(t.TempDir(), "parrot.raw")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	im, err := OpenImage(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { im.Close() })
	return im
}

func cut(t testing.TB, im *Image, h caibx.Header) *caibx.Table {
	t.Helper()
	var done atomic.Int64
	table, err := im.Cut(t.Context(), h, &done)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { table.Close() })
	if done.Load() != im.Size {
		t.Errorf("the progress is %d of %d bytes", done.Load(), im.Size)
	}
	return table
}

func openFolder(t testing.TB) (d *Destination, path string) {
	t.Helper()
	path = t.TempDir()
	d, err := Open(&fetch.Client{AllowAnyFile: true}, path, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d, path
}

var smallSizes = caibx.Sizes{Min: 500, Avg: 2000, Max: 9000}

// TestCutIsSequential compares the index with one that a single goroutine makes.
func TestCutIsSequential(t *testing.T) {
	for _, h := range []caibx.Header{{Sizes: caibx.DefaultSizes}, {Sizes: smallSizes, Digest: caibx.SHA256}, {Sizes: caibx.Blocks(1 << 20)}, {Sizes: caibx.Blocks(200)}} {
		content := testImage(1, 20001)
		var want bytes.Buffer
		buffered := bufio.NewWriter(&want)
		w, err := caibx.NewWriter(buffered, h)
		if err != nil {
			t.Fatal(err)
		}
		chunker, err := caibx.NewChunker(h.Sizes)
		if err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(content); {
			n, _ := chunker.Next(content, at)
			if err := w.Append(int64(n), h.Digest.ID(content[at:at+n])); err != nil {
				t.Fatal(err)
			}
			at += n
		}
		if err := errors.Join(w.Close(), buffered.Flush()); err != nil {
			t.Fatal(err)
		}
		if got := cut(t, openTestImage(t, content), h).Index(); !bytes.Equal(got, want.Bytes()) {
			t.Errorf("%s: the index differs", h.Sizes)
		}
	}
}

// TestCutOfASparseFile compares the index of a file with holes with that of a file without holes.
func TestCutOfASparseFile(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 9))
	for range 8 {
		content := make([]byte, (1+random.IntN(4000))*512)
		dense := openTestImage(t, content)
		sparse := openTestImage(t, content)
		if err := errors.Join(os.Truncate(sparse.Name(), 0), os.Truncate(sparse.Name(), sparse.Size)); err != nil {
			t.Fatal(err)
		}
		data := testImage(random.Uint64(), 20)
		for range random.IntN(6) {
			at := random.IntN(len(content))
			for _, im := range []*Image{dense, sparse} {
				if err := writeAt(im.Name(), data[:min(len(data), len(content)-at)], int64(at)); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, h := range []caibx.Header{{Sizes: smallSizes}, {Sizes: caibx.DefaultSizes}, {Sizes: caibx.Blocks(4096)}, {Sizes: caibx.Sizes{Min: 40, Avg: 5251, Max: 9000}}} {
			if !bytes.Equal(cut(t, sparse, h).Index(), cut(t, dense, h).Index()) {
				t.Errorf("%s: the index of %d bytes differs", h.Sizes, len(content))
			}
		}
	}
}

func writeAt(path string, data []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, at)
	return errors.Join(err, f.Close())
}

// TestPutChunksRepairsTheStore damages chunks of a store. The next run must replace exactly these.
func TestPutChunksRepairsTheStore(t *testing.T) {
	content := testImage(2, 600)
	im := openTestImage(t, content)
	table := cut(t, im, caibx.Header{Sizes: smallSizes})
	d, dir := openFolder(t)
	put := func() (chunks int64) {
		t.Helper()
		var done atomic.Int64
		stored, err := d.PutChunks(t.Context(), im, table, 3, &done)
		if err != nil {
			t.Fatal(err)
		}
		if done.Load() != im.Size {
			t.Errorf("the progress is %d of %d bytes", done.Load(), im.Size)
		}
		return stored.Chunks.Load()
	}
	all := put()
	files, err := filepath.Glob(filepath.Join(dir, StoreName, "*", "*"))
	if err != nil || int64(len(files)) != all || all >= table.Len() {
		t.Fatalf("%d files of %d stored chunks and %d items, error %v", len(files), all, table.Len(), err)
	}
	if n := put(); n != 0 {
		t.Errorf("%d chunks were written again", n)
	}
	damage := []func(path string) error{
		os.Remove,
		func(path string) error { return os.Truncate(path, 10) },
		func(path string) error { return os.Truncate(path, 0) },
		func(path string) error { return os.Truncate(path, 1<<20) },
		func(path string) error { return os.WriteFile(path, []byte("<html>"), 0o600) },
	}
	for i, f := range damage {
		if err := f(files[i]); err != nil {
			t.Fatal(err)
		}
	}
	if n := put(); n != int64(len(damage)) {
		t.Errorf("%d chunks were written, want %d", n, len(damage))
	}
	checkStore(t, dir, table, content)
}

// checkStore verifies that a chunk store has all chunks of an image.
func checkStore(t testing.TB, dir string, table *caibx.Table, content []byte) {
	t.Helper()
	u := caibx.NewUnpacker()
	for n := range table.Len() {
		i := table.Item(n)
		packed, err := os.ReadFile(filepath.Join(dir, StoreName, i.ID.PackedPath()))
		chunk := make([]byte, i.Length)
		if err == nil {
			err = u.Unpack(chunk, packed, table.Header().Digest, i.ID)
		}
		if err != nil || !bytes.Equal(chunk, content[i.Offset:i.End()]) {
			t.Fatalf("chunk %d: error %v, or other bytes", n, err)
		}
	}
}

func TestPutChunksDetectsAChangedImage(t *testing.T) {
	content := testImage(3, 600)
	im := openTestImage(t, content)
	table := cut(t, im, caibx.Header{Sizes: smallSizes})
	content[10] ^= 1
	if err := os.WriteFile(im.Name(), content, 0o600); err != nil {
		t.Fatal(err)
	}
	d, _ := openFolder(t)
	var done atomic.Int64
	if _, err := d.PutChunks(t.Context(), im, table, 2, &done); !errors.Is(err, disk.ErrModified) {
		t.Errorf("PutChunks: error %v", err)
	}
	if err := os.Truncate(im.Name(), 512); err != nil {
		t.Fatal(err)
	}
	if err := im.Unchanged(); !errors.Is(err, disk.ErrModified) {
		t.Errorf("Unchanged: error %v", err)
	}
	if _, err := im.Cut(t.Context(), table.Header(), &done); err == nil {
		t.Error("Cut accepts a truncated image")
	}
}

func TestPutIndex(t *testing.T) {
	d, dir := openFolder(t)
	one := cut(t, openTestImage(t, testImage(4, 500)), caibx.Header{Sizes: smallSizes})
	two := cut(t, openTestImage(t, testImage(5, 500)), caibx.Header{Sizes: smallSizes})
	const name = "parrot.raw.caibx"
	for _, c := range []struct {
		table   *caibx.Table
		replace bool
		want    Outcome // "": a DifferentError
	}{{one, false, Created}, {one, false, Unchanged}, {two, false, ""}, {two, true, Replaced}, {two, true, Unchanged}, {one, false, ""}} {
		got, err := d.PutIndex(t.Context(), name, c.table, c.replace)
		different := (*DifferentError)(nil)
		if got != c.want || c.want == "" && !errors.As(err, &different) || c.want != "" && err != nil {
			t.Errorf("replace %v: got %q, error %v, want %q", c.replace, got, err, c.want)
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !bytes.Equal(got, two.Index()) {
		t.Errorf("error %v, or another index", err)
	}
	// A longer or a shorter file is a different one.
	for _, content := range [][]byte{nil, one.Index()[:100], append(bytes.Clone(one.Index()), 0)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := d.PutIndex(t.Context(), name, one, true); got != Replaced || err != nil {
			t.Errorf("over %d bytes: got %q, error %v", len(content), got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("entries %v, error %v", entries, err)
	}
}

// TestEstimate compares with a simple computation that has all ids in memory.
func TestEstimate(t *testing.T) {
	content := testImage(6, 1000)
	old := openTestImage(t, content)
	content[1000] ^= 1
	content[300000] ^= 1
	content = append(content[:400000], append(testImage(7, 1), content[400000:]...)...)
	clear(content[460000:490000]) // a chunk of zeros that the old image does not have
	im := openTestImage(t, content)
	for _, h := range []caibx.Header{{Sizes: smallSizes}, {Sizes: caibx.Blocks(4096)}, {Sizes: caibx.SizesOf(4096), Digest: caibx.SHA256}} {
		oldTable, table := cut(t, old, h), cut(t, im, h)
		want := Cost{ChunkSize: h.Sizes, IndexBytes: int64(len(table.Index()))}
		has := map[caibx.ID]bool{}
		for n := range oldTable.Len() {
			has[oldTable.Item(n).ID] = true
		}
		packer, end := caibx.NewPacker(), int64(-1)
		for n := range table.Len() {
			i := table.Item(n)
			if has[i.ID] || i.ID == h.Digest.ZeroID(i.Length) {
				continue
			}
			has[i.ID] = true
			want.MissingChunks, want.MissingBytes = want.MissingChunks+1, want.MissingBytes+i.Length
			want.PackedBytes += int64(len(packer.Pack(nil, content[i.Offset:i.End()])))
			if end != i.Offset {
				want.Ranges++
			}
			end = i.End()
		}
		want.FromFile, want.FromStore = want.IndexBytes+want.MissingBytes, want.IndexBytes+want.PackedBytes
		got, err := im.Estimate(t.Context(), table, oldTable)
		if err != nil || got != want || got.MissingChunks < 3 {
			t.Errorf("got %+v, want %+v, error %v", got, want, err)
		}
	}
}

func TestOnlyImagesAreOpened(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "odd": strings.Repeat("x", 513), "packed": "\x1f\x8b\x08" + strings.Repeat("x", 509)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		refused := (*disk.FormatError)(nil)
		if _, err := OpenImage(path); !errors.As(err, &refused) || !strings.HasPrefix(err.Error(), path+": ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := OpenImage(dir); err == nil {
		t.Error("a folder is accepted")
	}
	if _, err := OpenImage(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v", err)
	}
}
