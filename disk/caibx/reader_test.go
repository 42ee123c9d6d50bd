package caibx

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
)

// TestReaderRejectsDamagedIndexes has a part of the reason for each file of testdata/broken. A valid
// index of other bytes is accepted: only the bytes show the difference.
func TestReaderRejectsDamagedIndexes(t *testing.T) {
	reasons := map[string]string{
		"archive-index":       "index of an archive",
		"avg-above-max":       "sizes of chunks 16384:262145:262144",
		"chunk-above-max":     "but a chunk has at most 65536",
		"cut-between-items":   "of its tail is",
		"cut-in-header":       "less than 104 bytes",
		"cut-in-item":         "a multiple of 40",
		"cut-in-tail":         "a multiple of 40",
		"digest-flag-cleared": "",
		"empty-file":          "less than 104 bytes",
		"end-2-63":            "the file may have at most",
		"end-wraps":           "the file may have at most",
		"first-end-zero":      "item 0 ends at 0",
		"gzip":                "packed with gzip",
		"html":                "web page",
		"max-2-63":            "sizes of chunks",
		"max-above-limit":     "sizes of chunks",
		"min-above-avg":       "sizes of chunks",
		"min-zero":            "sizes of chunks",
		"no-tail":             "of its tail is",
		"one-wrong-id":        "",
		"other-file":          "",
		"shorter-file":        "",
		"swapped-ids":         "",
		"table-size-not-max":  "header of its table has the size",
		"tail-as-item":        "ends at 0",
		"tail-index-offset":   "field 2 of its tail",
		"tail-size-huge":      "field 3 of its tail",
		"tail-size-too-small": "field 3 of its tail",
		"trailing-byte":       "bytes follow it",
		"unknown-flag":        "feature flags",
		"unordered":           "the item before it",
		"wrong-header-size":   "its header has the size",
		"wrong-magic":         "its header has the type",
		"wrong-table-magic":   "header of its table has the type",
		"wrong-tail-marker":   "field 4 of its tail",
		"zero-length-chunk":   "the item before it",
	}
	files, err := filepath.Glob("testdata/broken/*.caibx")
	if err != nil || len(files) != len(reasons) {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".caibx")
		index, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, _, err = readAll(index, limits)
		reason, known := reasons[name]
		switch wrong := (*FormatError)(nil); {
		case !known:
			t.Errorf("%s: no reason is known", name)
		case reason == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case reason != "" && (!errors.As(err, &wrong) || !strings.Contains(wrong.Reason, reason)):
			t.Errorf("%s: error %v, want %q", name, err, reason)
		}
	}
}

// TestReaderWithoutSize reads indexes of unknown size, one byte at a time.
func TestReaderWithoutSize(t *testing.T) {
	files, err := filepath.Glob("testdata/*/*.caibx")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(files, "testdata/empty.raw.caibx", "testdata/desync-make.caibx", "testdata/desync-cut.caibx") {
		index, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, items, want := readAll(index, limits)
		r, err := NewReader(iotest.OneByteReader(bytes.NewReader(index)), -1, limits)
		n := 0
		for err == nil {
			if _, err = r.Next(); err == nil {
				n++
			}
		}
		wrong := (*FormatError)(nil)
		if want == nil && (err != io.EOF || n != len(items)) || want != nil && !errors.As(err, &wrong) {
			t.Errorf("%s: %d items, error %v, want %d items, error %v", file, n, err, len(items), want)
		}
	}
}

func TestReaderReturnsReadErrors(t *testing.T) {
	index := fixture(t, "repeat.raw.caibx")
	broken := errors.New("the connection broke")
	for _, at := range []int{0, 10, 64, 80, 104, 500, len(index) - 1, len(index)} {
		r, err := NewReader(io.MultiReader(bytes.NewReader(index[:at]), iotest.ErrReader(broken)), -1, limits)
		for err == nil {
			_, err = r.Next()
		}
		if !errors.Is(err, broken) {
			t.Errorf("after %d bytes: error %v", at, err)
		}
	}
}

func TestReaderLimits(t *testing.T) {
	index := fixture(t, "repeat.raw.caibx") // 72 items, 1013333 bytes
	for _, c := range []struct {
		Limits
		reason string
	}{
		{Limits{1013333, 1 << 13}, ""},
		{Limits{1013332, 1 << 13}, "at most 1013332 bytes"},
		{Limits{1013333, 1 << 14}, "more than 62 items"},
		{Limits{1 << 62, 1}, ""},
	} {
		for _, size := range []int64{int64(len(index)), -1} {
			r, err := NewReader(bytes.NewReader(index), size, c.Limits)
			for err == nil {
				_, err = r.Next()
			}
			if c.reason == "" && err != io.EOF || c.reason != "" && !strings.Contains(err.Error(), c.reason) {
				t.Errorf("%+v, size %d: error %v, want %q", c.Limits, size, err, c.reason)
			}
		}
	}
}

// endless has the items of a large image in chunks of 64 KiB. It has no memory.
type endless struct{ at int64 }

func (e *endless) Read(p []byte) (int, error) {
	clear(p[:40])
	e.at += 64 << 10
	binary.LittleEndian.PutUint64(p, uint64(e.at))
	return 40, nil
}

// TestReaderHasFlatMemory reads an index of 160 MiB, that of an image of 256 GiB.
func TestReaderHasFlatMemory(t *testing.T) {
	const image, chunk = 256 << 30, 64 << 10
	head := fixture(t, "sparse-new.raw.caibx")[:headerSize]
	var tail bytes.Buffer
	if err := put(&tail, 0, 0, indexSize, tableSize(image/chunk), tailMagic); err != nil {
		t.Fatal(err)
	}
	index := io.MultiReader(bytes.NewReader(head), io.LimitReader(&endless{}, image/chunk*itemSize), &tail)
	r, err := NewReader(index, minSize+image/chunk*itemSize, Limits{image, chunk})
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	end := int64(0)
	for {
		i, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		end = i.End()
	}
	runtime.ReadMemStats(&after)
	if end != image {
		t.Errorf("the last chunk ends at %d, want %d", end, int64(image))
	}
	if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

func TestDesyncIndexes(t *testing.T) {
	file := fixture(t, "small-new.raw.zst")
	for name, want := range map[string]int{"desync-cut.caibx": 1056, "desync-make.caibx": 68} {
		h, items, err := readAll(fixture(t, name), limits)
		if err != nil || len(items) != want {
			t.Errorf("%s: %d items, want %d, error %v", name, len(items), want, err)
			continue
		}
		for _, i := range items {
			if h.Digest.ID(file[i.Offset:i.End()]) != i.ID {
				t.Errorf("%s: the id at %d differs", name, i.Offset)
			}
		}
	}
}

func TestZeroID(t *testing.T) {
	for n, want := range map[int64]string{
		262144: "1c8109946feed9f9e9fe4b5144d90f05a50fb3275e848cb72f4b9546d8c533f2",
		65536:  "7f40d757cf2f63d4f32bd5b802f7bf2bafeb3d38f5f38e436ab8828f814f7d8e",
	} {
		if got := SHA512_256.ZeroID(n); got.String() != want {
			t.Errorf("the id of %d zeros is %s, want %s", n, got, want)
		}
	}
	for _, n := range []int{0, 1, 1000, 100000} {
		for _, d := range []Digest{SHA512_256, SHA256} {
			if d.ZeroID(int64(n)) != d.ID(make([]byte, n)) {
				t.Errorf("the id of %d zeros differs", n)
			}
		}
	}
}

// FuzzReader writes each index that it accepts again.
func FuzzReader(f *testing.F) {
	for _, pattern := range []string{"testdata/*.caibx", "testdata/broken/*.caibx"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			index, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(index)
		}
	}
	const flags = 16 // the last byte of the flags has bits that have no meaning for this program
	f.Fuzz(func(t *testing.T, index []byte) {
		h, items, err := readAll(index, limits)
		if err != nil {
			return
		}
		var again bytes.Buffer
		w, err := NewWriter(&again, h)
		for _, i := range items {
			err = errors.Join(err, w.Append(i.Length, i.ID))
		}
		if err := errors.Join(err, w.Close()); err != nil {
			t.Fatal(err)
		}
		got := again.Bytes()
		copy(got[flags:flags+8], index[flags:])
		if !bytes.Equal(got, index) {
			t.Error("the index differs after it was read and written")
		}
	})
}
