package delta

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// fixture returns the files of an archive of testdata, by their names.
func fixture(t testing.TB, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := zstd.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string][]byte{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[h.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCasyncIndexes updates images by the indexes that casync made. The ranges that the server sends are those that
// another program counted.
func TestCasyncIndexes(t *testing.T) {
	for _, c := range []struct {
		archive, old, next string
		suffix             string // of both indexes
		seedSuffix         string // of the index of the seed, if it is another one
		missing            [][2]int64
	}{
		{"small", "small-old.raw", "small-new.raw", ".caibx", "", [][2]int64{{89_995, 131_581}}},
		{"small", "small-old.raw", "small-new.raw", ".sha256.caibx", "", [][2]int64{{89_510, 142_830}}},
		{"small", "small-old.raw", "small-new.raw", ".sha256.caibx", ".v.caibx", [][2]int64{{89_510, 142_830}}},
		{"clamp", "clamp-old.raw", "clamp-new.raw", ".caibx", "", [][2]int64{{89_870, 157_730}}},
		{"qcow2", "q-old.qcow2", "q-new.qcow2", ".caibx", "", [][2]int64{
			{131_072, 196_608}, {262_144, 327_680}, {713_405, 801_802}, {1_569_039, 1_627_136},
		}},
	} {
		files := fixture(t, c.archive+".tar.zst")
		for _, stored := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s%s-%s-stored=%v", c.next, c.suffix, c.seedSuffix, stored), func(t *testing.T) {
				s := newSite(t)
				old, next := files[c.old], files[c.next]
				s.put(oldID, old)
				s.files["v2"], s.files["v2.caibx"] = next, files[c.next+c.suffix]
				ranges := recordRanges(s)
				var damaged atomic.Int64
				seed := s.seed(oldID, &damaged)
				if stored { // else it is cut
					name := c.old + c.suffix
					if c.seedSuffix != "" {
						name = c.old + c.seedSuffix
					}
					seed.Index = tempFile(t, files[name])
				}
				r := s.request("v2", next)
				part := s.part(r)
				defer part.Close()
				if err := s.fill(t.Context(), part, r, seed); err != nil {
					t.Fatal(err, describe(s))
				}
				got := make([]byte, len(next)) // not every size is that of a disk image, which Commit requires
				if _, err := part.ReadAt(got, 0); err != nil || !bytes.Equal(got, next) {
					t.Fatalf("the image differs, error %v", err)
				}
				if got := ranges(); !slices.Equal(got, c.missing) || len(s.warnings) > 0 {
					t.Errorf("got the ranges %v, want %v: %s", got, c.missing, describe(s))
				}
				missing := int64(0)
				for _, r := range c.missing {
					missing += r[1] - r[0]
				}
				if s.survey.Missing != missing || s.sent.Load() != missing+int64(len(s.files["v2.caibx"])) {
					t.Errorf("want %d missing bytes: %s", missing, describe(s))
				}
			})
		}
	}
}

// tempFile returns an open file with the bytes.
func tempFile(t testing.TB, data []byte) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	return f
}

// recordRanges returns a function that returns the ranges of v2 that were requested so far. Ranges that touch are
// joined.
func recordRanges(s *site) func() [][2]int64 {
	var mu sync.Mutex
	var all [][2]int64
	s.handle = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v2" {
			return false
		}
		var first, last int64
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last); err != nil {
			s.t.Errorf("a request of the range %q: %v", r.Header.Get("Range"), err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, [2]int64{first, last + 1})
		return false
	}
	return func() (joined [][2]int64) {
		mu.Lock()
		defer mu.Unlock()
		slices.SortFunc(all, func(a, b [2]int64) int { return int(a[0] - b[0]) })
		for _, r := range all {
			if n := len(joined); n > 0 && joined[n-1][1] == r[0] {
				joined[n-1][1] = r[1]
			} else {
				joined = append(joined, r)
			}
		}
		return joined
	}
}
