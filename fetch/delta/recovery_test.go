package delta

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// TestUnreadableSeed has a seed that fails when it is read, as on a disk with bad sectors: its chunks are fetched.
func TestUnreadableSeed(t *testing.T) {
	s := newSite(t)
	old := noise(1, 5<<20)
	next := slices.Insert(bytes.Clone(old), 3<<20, noise(2, 1024)...)
	s.put(oldID, old)
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, small)
	var damaged atomic.Int64
	seed := s.seed(oldID, &damaged)
	seed.Index = indexFile(t, indexOf(t, old, small))
	if err := seed.Reader.Close(); err != nil { // each further read fails
		t.Fatal(err)
	}
	if err := s.download(s.request("v2", next), seed); err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if damaged.Load() != 1 || len(s.warnings) > 0 {
		t.Errorf("damaged %d: %s", damaged.Load(), describe(s))
	}
}

// TestWrongIndexResumes has an index of another file, and connections that break. Each attempt continues after the bytes
// that the earlier ones have.
func TestWrongIndexResumes(t *testing.T) {
	next := noise(1, 40<<20)
	longer, similar := append(bytes.Clone(next), noise(5, 512)...), bytes.Clone(next)
	copy(similar[5<<20:], noise(6, 100_000))
	for _, c := range []struct {
		name  string
		index []byte
	}{
		{"of a longer file", indexOf(t, longer, small)},
		{"of another file", indexOf(t, noise(3, len(next)), small)},
		{"of a file that is similar at the beginning", indexOf(t, similar, small)},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t)
			s.files["v2"], s.files["v2.caibx"] = next, c.index
			r := s.request("v2", next)
			s.handle = failAfter(s, next, 12<<20)
			attempts := 1
			for s.download(r) != nil {
				if attempts++; attempts > 20 {
					t.Fatal("no end after 20 attempts:", describe(s))
				}
				s.handle = failAfter(s, next, 12<<20)
			}
			s.wantImage(next)
			// Each attempt may lose what was in the pipeline and in the buffers of the connection.
			if most := int64(len(next) + attempts*(len(c.index)+8<<20)); attempts < 3 || s.sent.Load() > most {
				t.Errorf("%d attempts, want at most %d bytes: %s", attempts, most, describe(s))
			}
			if index, err := s.disk.Index(newID); !errors.Is(err, fs.ErrNotExist) {
				t.Error("an index of other bytes is kept as that of the image:", index, err)
			}
		})
	}
}

// failAfter serves an image until it has sent limit bytes of it; then it refuses all requests for it.
func failAfter(s *site, image []byte, limit int64) func(http.ResponseWriter, *http.Request) bool {
	begun := s.sent.Load()
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v2" {
			return false
		}
		left := begun + limit - s.sent.Load()
		if left <= 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		http.ServeContent(&brokenWriter{w, int(left)}, r, "", time.Unix(1e9, 0), bytes.NewReader(image))
		return true
	}
}

// TestIndexOfASimilarFileIsNotKept has an index of a file that differs from the declared one in the middle.
func TestIndexOfASimilarFileIsNotKept(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	other := bytes.Clone(next)
	copy(other[1_190_000:], noise(8, 20_000))
	s.files["v2.caibx"] = indexOf(t, other, small)
	var damaged atomic.Int64
	if err := s.download(r, s.seed(oldID, &damaged)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.disk.Index(newID); !errors.Is(err, fs.ErrNotExist) {
		t.Error("an index of other bytes is kept as that of the image:", err)
	}
}

// TestIndexOfAHugeFile has an index of a file that no disk has space for.
func TestIndexOfAHugeFile(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	h := caibx.Header{Sizes: caibx.Blocks(caibx.MaxCut)}
	var b bytes.Buffer
	w, err := caibx.NewWriter(&b, h)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 1 << 20 { // 16 TiB
		if err := w.Append(caibx.MaxCut, caibx.ID{1: byte(n), 2: byte(n >> 8), 3: byte(n >> 16)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.files["v2.caibx"] = b.Bytes()
	err = s.download(r)
	wantWhole(t, s, err, next, "space")
}

// TestNoRangesAndWrongIndex has a server that only sends whole files, and an index of another file.
func TestNoRangesAndWrongIndex(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	s.files["v2.caibx"] = indexOf(t, noise(7, len(next)), small)
	s.handle = func(w http.ResponseWriter, r *http.Request) bool {
		r.Header.Del("Range")
		return false
	}
	if err := s.download(r); err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if len(s.warnings) != 1 {
		t.Error(describe(s))
	}
}

// TestFewConnections has servers that reject requests while they serve others.
func TestFewConnections(t *testing.T) {
	for _, most := range []int64{1, 3} {
		s := newSite(t)
		old := noise(1, 20<<20)
		next := bytes.Clone(old)
		for at := 0; at < len(next)-100_000; at += 400_000 {
			copy(next[at:], noise(byte(at), 90_000))
		}
		s.put(oldID, old)
		s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, small)
		var serving, rejected, served atomic.Int64
		overlap := make(chan struct{}) // closed when a request is rejected
		s.handle = func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/v2" {
				return false
			}
			end := sync.OnceFunc(func() { serving.Add(-1) })
			context.AfterFunc(r.Context(), end) // the client has closed the connection
			defer end()
			if serving.Add(1) > most {
				if rejected.Add(1) == 1 {
					close(overlap)
				}
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			if served.Add(1) > 1 { // the first request has to be answered before others are sent
				<-overlap
			}
			http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(next))
			return true
		}
		var damaged atomic.Int64
		if err := s.download(s.request("v2", next), s.seed(oldID, &damaged)); err != nil {
			t.Fatal(err, describe(s))
		}
		s.wantImage(next)
		if rejected.Load() == 0 || len(s.warnings) > 0 {
			t.Errorf("%d requests were rejected: %s", rejected.Load(), describe(s))
		}
	}
}

// TestProgressWithWrongIndex has an index of a shorter file: the progress is that of the file.
func TestProgressWithWrongIndex(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	s.files["v2.caibx"] = indexOf(t, next[:len(next)/4], small)
	if err := s.download(r); err != nil {
		t.Fatal(err)
	}
	if done, total := s.progress.Done.Load(), s.progress.Total.Load(); done != int64(len(next)) || total != done {
		t.Errorf("progress is %d of %d, want %d of %d", done, total, len(next), len(next))
	}
}

// TestStoreIsNotUsedForAnotherFile has a store that has chunks of the index, but another file than the index.
func TestStoreIsNotUsedForAnotherFile(t *testing.T) {
	s := newSite(t)
	next := noise(1, 6<<20)
	other := bytes.Clone(next)
	copy(other[1<<20:], noise(2, 100))
	copy(other[1<<20+200_000:], noise(3, 300_000))
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, other, small)
	s.putStore("store", other, small, nil)
	items, err := caibx.NewReader(bytes.NewReader(s.files["v2.caibx"]), -1, caibx.Limits{Image: 1 << 40, Chunk: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i := (caibx.Item{}); err == nil; i, err = items.Next() { // one chunk that is in both files, and the first difference
		if i.Offset <= 500_000 && i.End() > 500_000 || i.Offset < 1<<20+100 && i.End() > 1<<20 {
			delete(s.files, "store/"+i.ID.PlainPath())
		}
	}
	r := s.request("v2", next)
	r.Store = s.url + "/store"
	if err := s.download(r); err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if len(s.warnings) != 1 || s.sent.Load() > int64(len(next)+2<<20) {
		t.Error(describe(s))
	}
}

// TestFailingAddressIsTriedOnce has an address that rejects all requests, and a mirror.
func TestFailingAddressIsTriedOnce(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	s.files["mirror"] = next
	r.Mirrors = []string{s.url + "/mirror"}
	var failed atomic.Int64
	s.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2" {
			failed.Add(1)
			w.WriteHeader(http.StatusBadGateway)
		}
		return r.URL.Path == "/v2"
	}
	var damaged atomic.Int64
	if err := s.download(r, s.seed(oldID, &damaged)); err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if failed.Load() != 1 {
		t.Errorf("the failing address got %d requests, want 1: %s", failed.Load(), describe(s))
	}
}

// TestPartOfAPlainDownload has a partial file without an index: its bytes are kept, if they are those of the index.
func TestPartOfAPlainDownload(t *testing.T) {
	s := newSite(t)
	next := noise(1, 9<<20)
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, small)
	r := s.request("v2", next)
	plain := r
	plain.Index = ""
	part, err := s.disk.OpenPart(t.Context(), newID, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.handle = failAfter(s, next, 7<<20)
	if err := s.client.Download(t.Context(), plain, part, &s.progress); err == nil {
		t.Fatal("the download did not fail")
	}
	if err := part.Close(); err != nil {
		t.Fatal(err)
	}
	s.handle = nil
	s.sent.Store(0)
	if err := s.download(r); err != nil {
		t.Fatal(err)
	}
	s.wantImage(next)
	if s.sent.Load() > 4<<20 || len(s.warnings) > 0 {
		t.Error("the bytes of the partial file were transferred again:", describe(s))
	}
	if f, err := s.disk.Index(newID); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}

// TestZerosOfManyLengths has an index whose chunks have many lengths, each twice: it would take hours to compute the ids of
// zeros of all these lengths.
func TestZerosOfManyLengths(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	var b bytes.Buffer
	w, err := caibx.NewWriter(&b, caibx.Header{Sizes: caibx.Sizes{Min: 1, Avg: 1, Max: caibx.MaxCut}})
	if err != nil {
		t.Fatal(err)
	}
	for n := range int64(20_000) {
		for k := range byte(2) {
			if err := w.Append(caibx.MaxCut-n, caibx.ID{1: byte(n), 2: byte(n >> 8), 3: k, 4: 1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.files["v2.caibx"] = b.Bytes()
	begun := time.Now()
	err = s.download(r)
	wantWhole(t, s, err, next, "")
	if took := time.Since(begun); took > time.Minute {
		t.Errorf("it took %v", took)
	}
}

// TestTinyChunks has an index with chunks of one byte, into which no seed is cut.
func TestTinyChunks(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	var index bytes.Buffer
	w, err := caibx.NewWriter(&index, caibx.Header{Sizes: caibx.Blocks(1)})
	if err != nil {
		t.Fatal(err)
	}
	for range 1 << 17 {
		if err := w.Append(1, caibx.ID{1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s.files["v2.caibx"] = index.Bytes()
	var damaged atomic.Int64
	err = s.download(r, s.seed(oldID, &damaged))
	wantWhole(t, s, err, next, "on average")
}

// TestFailingTempFile has a disk that loses the temporary file of an index: the download fails, and not the process.
func TestFailingTempFile(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may open the files of mappings")
	}
	s := newSite(t)
	next := noise(1, 32<<20) // more than is planned before the first request
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, small)
	s.handle = func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2" {
			truncateMapped(t, s.disk.Path())
		}
		return false
	}
	if err := s.download(s.request("v2", next)); !errors.Is(err, syscall.EIO) {
		t.Errorf("got error %v, want %v", err, syscall.EIO)
	}
}

// truncateMapped empties the mapped files of this process below a folder.
func truncateMapped(t *testing.T, folder string) {
	const mapped = "/proc/self/map_files"
	maps, err := os.ReadDir(mapped)
	if err != nil {
		t.Error(err)
	}
	truncated := 0
	for _, m := range maps {
		path := filepath.Join(mapped, m.Name())
		if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, folder) {
			if err := os.Truncate(path, 0); err != nil {
				t.Error(err)
			}
			truncated++
		}
	}
	if truncated == 0 {
		t.Error("no file of the folder is mapped")
	}
}

// TestMirrorWithoutRanges has an address that fails for a while, and a mirror that only sends whole files: the bytes that
// were transferred are kept until the address works again.
func TestMirrorWithoutRanges(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	s.files["mirror"] = next
	r.Mirrors = []string{s.url + "/mirror"}
	var requests, mirrored atomic.Int64
	s.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/mirror" {
			mirrored.Add(1)
			r.Header.Del("Range")
		}
		if r.URL.Path == "/v2" && requests.Add(1) > 1 {
			w.WriteHeader(http.StatusBadGateway)
			return true
		}
		return false
	}
	var damaged atomic.Int64
	err := s.download(r, s.seed(oldID, &damaged))
	if failed, ok := errors.AsType[*fetch.Error](err); !ok || failed.Class != fetch.Network {
		t.Fatalf("got error %v, want one of the network: %s", err, describe(s))
	}
	if mirrored.Load() > maxRequests { // all at the same time
		t.Errorf("the mirror got %d requests: %s", mirrored.Load(), describe(s))
	}
	s.handle = nil
	if err := s.download(r, s.seed(oldID, &damaged)); err != nil {
		t.Fatal(err)
	}
	s.wantImage(next)
	if len(s.warnings) > 0 {
		t.Error(describe(s))
	}
}
