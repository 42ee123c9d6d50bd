package delta

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/caibx"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// update has an old and a new version of an image of 2 MiB, which differ in three places.
func update() (old, next []byte) {
	old = noise(1, 2<<20)
	next = bytes.Clone(old)
	copy(next[100_000:], noise(2, 50_000))
	copy(next[1_200_000:], noise(3, 1000))
	return old, append(next, noise(4, 30_000/512*512)...)
}

// newUpdate returns a site that has the old version on its disk, and serves the new one.
func newUpdate(t *testing.T, h caibx.Header) (s *site, r fetch.Request, old, next []byte) {
	s = newSite(t)
	old, next = update()
	s.put(oldID, old)
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, h)
	return s, s.request("v2", next), old, next
}

// wantWhole fails the test unless the download succeeds with one warning, and transfers at most a chunk twice.
func wantWhole(t *testing.T, s *site, err error, next []byte, warning string) {
	t.Helper()
	if err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if len(s.warnings) != 1 || !strings.Contains(s.warnings[0], warning) {
		t.Errorf("want one warning with %q: %s", warning, describe(s))
	}
	if most := int64(len(next) + len(s.files["v2.caibx"]) + 84<<10); s.sent.Load() > most {
		t.Errorf("more than the file, its index and a chunk were sent, %d bytes: %s", most, describe(s))
	}
}

func TestBrokenIndexes(t *testing.T) {
	files, err := filepath.Glob("../../disk/caibx/testdata/broken/*.caibx")
	if err != nil || len(files) < 20 {
		t.Fatal(err, len(files))
	}
	for _, name := range files {
		t.Run(filepath.Base(name), func(t *testing.T) {
			s, r, _, next := newUpdate(t, small)
			if s.files["v2.caibx"], err = os.ReadFile(name); err != nil {
				t.Fatal(err)
			}
			var damaged atomic.Int64
			err := s.download(r, s.seed(oldID, &damaged))
			wantWhole(t, s, err, next, "")
		})
	}
}

func TestUnusableIndexes(t *testing.T) {
	_, next := update()
	index := indexOf(t, next, small)
	other := bytes.Clone(next)
	copy(other, noise(9, len(other)))
	for _, c := range []struct {
		name    string
		index   []byte
		warning string
	}{
		{"missing", nil, "404"},
		{"empty", []byte{}, "empty"},
		{"web page", []byte("<!doctype html><title>Log in</title>"), "web page"},
		{"cut off", index[:len(index)/2], "not a caibx index"},
		{"of an empty file", indexOf(t, nil, small), "empty file"},
		{"of a longer file", indexOf(t, append(bytes.Clone(next), noise(5, 5000)...), small), "other bytes than the index"},
		{"of a shorter file", indexOf(t, next[:len(next)-5000], small), "other bytes than the index"},
		{"of another file", indexOf(t, other, small), "other bytes than the index"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r, _, next := newUpdate(t, small)
			if s.files["v2.caibx"] = c.index; c.index == nil {
				delete(s.files, "v2.caibx")
			}
			var damaged atomic.Int64
			err := s.download(r, s.seed(oldID, &damaged))
			wantWhole(t, s, err, next, c.warning)
		})
	}
}

// TestIndexOfASimilarFile has an index of a file that differs from the declared one after the first changes: the rest is
// downloaded, and the chunks before are kept.
func TestIndexOfASimilarFile(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	other := bytes.Clone(next)
	copy(other[1_190_000:], noise(8, 20_000))
	s.files["v2.caibx"] = indexOf(t, other, small)
	var damaged atomic.Int64
	err := s.download(r, s.seed(oldID, &damaged))
	wantWhole(t, s, err, next, "other bytes than the index")
	if s.sent.Load() > int64(len(next)*2/3) {
		t.Error("the chunks before the difference were downloaded, too:", describe(s))
	}
}

// TestMisleadingIndex has an index that says that the image is another one that the node has: the checksum tells.
func TestMisleadingIndex(t *testing.T) {
	s, _, old, _ := newUpdate(t, small)
	s.files["v2"] = bytes.Clone(old)
	s.files["v2"][77] ^= 1
	r := s.request("v2", s.files["v2"])
	s.files["v2.caibx"] = indexOf(t, old, small)
	var damaged atomic.Int64
	err := s.download(r, s.seed(oldID, &damaged))
	if _, wrong := errors.AsType[*disk.ChecksumError](err); !wrong || !s.progress.Joined.Load() {
		t.Errorf("got error %v, joined %v, want a wrong checksum of joined pieces", err, s.progress.Joined.Load())
	}
	if got := s.sent.Load(); got != int64(len(s.files["v2.caibx"])) {
		t.Error("more than the index was sent:", describe(s))
	}
	part, err := s.disk.OpenPart(t.Context(), newID, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if _, err := part.Index(); !errors.Is(err, os.ErrNotExist) {
		t.Error("the misleading index is kept:", err)
	}
}

// TestRangeFaults lets the server send other bytes than the requested ranges.
func TestRangeFaults(t *testing.T) {
	isImage := func(r *http.Request) bool { return r.URL.Path == "/v2" }
	for _, c := range []struct {
		name    string
		handle  func(s *site, next []byte) func(http.ResponseWriter, *http.Request) bool
		warning string
	}{
		{"the whole file", func(s *site, next []byte) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, r *http.Request) bool {
				if !isImage(r) {
					return false
				}
				w.Header().Set("Content-Length", fmt.Sprint(len(next)))
				if r.Header.Get("Range") != "" {
					w.WriteHeader(http.StatusOK) // the connection ends before the body
					return true
				}
				_, _ = w.Write(next)
				return true
			}
		}, "does not send parts"},
		{"another range", func(s *site, next []byte) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, r *http.Request) bool {
				if !isImage(r) || r.Header.Get("Range") == "" {
					return false
				}
				r.Header.Set("Range", "bytes=5-4000")
				return false
			}
		}, "does not have the bytes"},
		{"416", func(s *site, next []byte) func(http.ResponseWriter, *http.Request) bool {
			return func(w http.ResponseWriter, r *http.Request) bool {
				if !isImage(r) || r.Header.Get("Range") == "" {
					return false
				}
				w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
				return true
			}
		}, "does not have the bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r, _, next := newUpdate(t, small)
			s.handle = c.handle(s, next)
			var damaged atomic.Int64
			err := s.download(r, s.seed(oldID, &damaged))
			wantWhole(t, s, err, next, c.warning)
		})
	}
}

// TestFileChangesDuringTheTransfer replaces the file at the server after the first range.
func TestFileChangesDuringTheTransfer(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	var ranges atomic.Int64
	s.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/v2" {
			return false
		}
		w.Header().Set("ETag", `"1"`)
		if ranges.Add(1) > 1 {
			w.Header().Set("ETag", `"2"`)
		}
		return false
	}
	var damaged atomic.Int64
	err := s.download(r, s.seed(oldID, &damaged))
	if failed, ok := errors.AsType[*fetch.Error](err); !ok || failed.Class != fetch.Network || !strings.Contains(err.Error(), "changed at its source") {
		t.Fatal(err, describe(s))
	}
	s.handle = nil
	if err := s.download(r, s.seed(oldID, &damaged)); err != nil { // the next attempt
		t.Fatal(err)
	}
	s.wantImage(next)
}

// TestMirrorHasRightBytes has an URL with another file of the same size.
func TestMirrorHasRightBytes(t *testing.T) {
	s, r, _, next := newUpdate(t, small)
	s.files["mirror"] = next
	s.files["v2"] = noise(7, len(next))
	r.Mirrors = []string{s.url + "/mirror"}
	var damaged atomic.Int64
	if err := s.download(r, s.seed(oldID, &damaged)); err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if len(s.warnings) > 0 || s.sent.Load() > s.survey.Missing+int64(len(s.files["v2.caibx"])+16<<10) {
		t.Error(describe(s))
	}
}

// TestDroppedConnections closes each connection after some bytes.
func TestDroppedConnections(t *testing.T) {
	s := newSite(t)
	next := noise(1, 3<<20)
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, small)
	s.handle = func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2" {
			http.ServeContent(&brokenWriter{w, 100_000}, r, "", time.Unix(1e9, 0), bytes.NewReader(next))
			return true
		}
		return false
	}
	if err := s.download(s.request("v2", next)); err != nil {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
	if most := int64(len(next)) + 40*32<<10; s.sent.Load() > most {
		t.Errorf("want at most %d bytes: %s", most, describe(s))
	}
}

// TestRepeatedChunksAreFetchedOnce has an image of equal chunks.
func TestRepeatedChunksAreFetchedOnce(t *testing.T) {
	for _, size := range []uint64{4096, 64 << 10, 2 << 20, 3<<20 + 512} {
		s := newSite(t)
		block := noise(1, int(size))
		next := slices.Concat(block, block, block, noise(2, int(size)), block, block[:512])
		s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, caibx.Header{Sizes: caibx.Blocks(size)})
		if err := s.download(s.request("v2", next)); err != nil {
			t.Fatal(err, describe(s))
		}
		s.wantImage(next)
		if want := int64(2*size) + 512 + int64(len(s.files["v2.caibx"])); s.sent.Load() != want {
			t.Errorf("want %d bytes: %s", want, describe(s))
		}
	}
}

// TestDamagedSeed damages chunks of the seed after they were verified: they are fetched, and nothing else is.
func TestDamagedSeed(t *testing.T) {
	for _, whole := range []bool{true, false} { // whole chunks of the seed, or parts of them at other places
		s := newSite(t)
		old := noise(1, 5<<20)
		next := bytes.Clone(old)
		if !whole {
			next = slices.Insert(next, 10_000, noise(2, 1024)...)
		}
		s.put(oldID, old)
		s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, small)
		var damaged atomic.Int64
		seed := s.seed(oldID, &damaged)
		index, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := index.Write(indexOf(t, old, small)); err != nil {
			t.Fatal(err)
		}
		if _, err := index.Seek(0, 0); err != nil {
			t.Fatal(err)
		}
		seed.Index = index // of the bytes before
		backing, err := os.OpenFile(filepath.Join(s.disk.Path(), "backing-images", oldID.String(), "backing"), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer backing.Close()
		for _, at := range []int64{2<<20 + 5, 4 << 20} {
			if _, err := backing.WriteAt([]byte{old[at] ^ 1}, at); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.download(s.request("v2", next), seed); err != nil {
			t.Fatal(err, describe(s))
		}
		s.wantImage(next)
		most := int64(2<<20+4*16<<10) + s.survey.Missing + int64(len(s.files["v2.caibx"]))
		if damaged.Load() != 1 || len(s.warnings) > 0 || s.sent.Load() < 2<<20 || s.sent.Load() > most {
			t.Errorf("whole %v: damaged %d, want at most %d bytes: %s", whole, damaged.Load(), most, describe(s))
		}
	}
}

func TestStores(t *testing.T) {
	packer := caibx.NewPacker()
	pack := func(chunk []byte) []byte { return packer.Pack(nil, chunk) }
	plain := func(chunk []byte) []byte { return chunk }
	isChunk := func(name string) bool { return strings.HasPrefix(name, "store/") }
	for _, c := range []struct {
		name     string
		pack     func([]byte) []byte
		change   func(s *site)
		warnings int
	}{
		{"packed", pack, func(*site) {}, 0},
		{"plain", nil, func(*site) {}, 0},
		{"not packed, with the suffix", plain, func(*site) {}, 1},
		{"missing", pack, func(s *site) {
			for name := range s.files {
				if isChunk(name) {
					delete(s.files, name)
				}
			}
		}, 1},
		{"one of three is missing", pack, func(s *site) {
			for name := range s.files {
				if isChunk(name) && name[8]%3 == 0 {
					delete(s.files, name)
				}
			}
		}, 0},
		{"damaged", pack, func(s *site) {
			for name, chunk := range s.files {
				if isChunk(name) {
					s.files[name] = bytes.Clone(chunk)
					s.files[name][len(chunk)/2] ^= 0x10
				}
			}
		}, 1},
		{"exchanged", pack, func(s *site) {
			last := ""
			for name := range s.files {
				if isChunk(name) && last != "" {
					s.files[name], s.files[last] = s.files[last], s.files[name]
				}
				if isChunk(name) {
					last = name
				}
			}
		}, 1},
		{"bombs", pack, func(s *site) {
			bomb := pack(make([]byte, 16<<20))
			for name := range s.files {
				if isChunk(name) {
					s.files[name] = bomb
				}
			}
		}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r, _, next := newUpdate(t, small)
			s.putStore("store", next, small, c.pack)
			c.change(s)
			r.Store = s.url + "/store"
			var damaged atomic.Int64
			if err := s.download(r, s.seed(oldID, &damaged)); err != nil {
				t.Fatal(err, describe(s))
			}
			s.wantImage(next)
			if len(s.warnings) != c.warnings && c.name != "one of three is missing" {
				t.Errorf("want %d warnings: %s", c.warnings, describe(s))
			}
			if s.sent.Load() > int64(len(next)+len(s.files["v2.caibx"])) {
				t.Error("more was sent than the file and its index:", describe(s))
			}
		})
	}
}

// TestPackedFile has an address of a packed file: there are no ranges.
func TestPackedFile(t *testing.T) {
	s, r, old, next := newUpdate(t, small)
	s.files["v2.gz"] = gzipped(t, next)
	r.URL = s.url + "/v2.gz"
	var damaged atomic.Int64
	err := s.download(r, s.seed(oldID, &damaged))
	wantWhole(t, s, err, next, "packed")

	s = newSite(t)
	s.put(oldID, old)
	s.files["v2.gz"], s.files["v2.caibx"] = gzipped(t, next), indexOf(t, next, small)
	s.putStore("store", next, small, nil)
	r.URL, r.Index, r.Store = s.url+"/v2.gz", s.url+"/v2.caibx", s.url+"/store"
	if err := s.download(r, s.seed(oldID, &damaged)); err != nil || len(s.warnings) > 0 {
		t.Fatal(err, describe(s))
	}
	s.wantImage(next)
}

// TestStoppedDownloadIsResumed stops a download again and again. At most what was in the window and in the pipeline of
// the partial file is transferred twice, and the index only once.
func TestStoppedDownloadIsResumed(t *testing.T) {
	const size = 40 << 20
	s := newSite(t)
	next := noise(1, size)
	h := caibx.Header{Sizes: caibx.DefaultSizes}
	s.files["v2"], s.files["v2.caibx"] = next, indexOf(t, next, h)
	r := s.request("v2", next)
	stops, indexes := 0, 0
	for {
		ctx, cancel := context.WithCancel(t.Context())
		limit := s.sent.Load() + 12<<20
		s.handle = func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, ".caibx") {
				indexes++
			} else if s.sent.Load() > limit {
				cancel()
			} else {
				http.ServeContent(&stoppingWriter{w, s, limit, cancel}, r, "", time.Unix(1e9, 0), bytes.NewReader(next))
				return true
			}
			return false
		}
		err := s.downloadContext(ctx, r)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err, describe(s))
		}
		stops++
	}
	s.wantImage(next)
	twice := s.sent.Load() - size - int64(len(s.files["v2.caibx"]))
	if stops < 2 || indexes != 1 || twice > int64(stops)*8<<20 {
		t.Errorf("%d stops, %d bytes were transferred twice, the index %d times: %s", stops, twice, indexes, describe(s))
	}
}
