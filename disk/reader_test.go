package disk

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

func openImageOf(t *testing.T, d *Disk) *Reader {
	t.Helper()
	r, err := d.Open(testID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

func TestSend(t *testing.T) {
	const size = 3*ChunkSize + 512
	image := sparseImage(size)
	d := newDisk(t)
	readyImage(t, d, image)
	tests := []struct {
		name     string
		from, to int64
		pieces   int // -1: an error is expected
	}{
		{"all", 0, size, 4},
		{"nothing", 5, 5, 0},
		{"a chunk", ChunkSize, 2 * ChunkSize, 1},
		{"a range over a chunk border", ChunkSize - 7, ChunkSize + 9, 2},
		{"the last byte", size - 1, size, 1},
		{"a byte after the end", size, size + 1, -1},
		{"a byte before the start", -1, 5, -1},
		{"backwards", 9, 8, -1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := openImageOf(t, d)
			pieces := 0
			var got bytes.Buffer
			err := r.Send(&got, test.from, test.to, func() error { pieces++; return nil })
			if test.pieces < 0 {
				if err == nil || pieces > 0 {
					t.Fatalf("error %v after %d pieces", err, pieces)
				}
				return
			}
			if err != nil || pieces != test.pieces || !bytes.Equal(got.Bytes(), image[test.from:test.to]) {
				t.Errorf("Send wrote %d bytes in %d pieces, error %v", got.Len(), pieces, err)
			}
			if err := r.Send(&got, 0, 512, nil); err != nil || !bytes.Equal(got.Bytes()[test.to-test.from:], image[:512]) {
				t.Errorf("second Send: error %v", err)
			}
		})
	}
	boom := errors.New("boom")
	if err := openImageOf(t, d).Send(io.Discard, 0, size, func() error { return boom }); !errors.Is(err, boom) {
		t.Errorf("error is %v, want the error of the function before", err)
	}
}

// readOverHTTP reads the image as a peer does.
func readOverHTTP(t *testing.T, d *Disk) []byte {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r, err := d.Open(testID)
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		w.Header().Set("Content-Length", strconv.FormatInt(r.Size(), 10))
		if err := errors.Join(r.Send(w, 0, r.Size(), nil), r.Close()); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close() // waits for the handler
	response, err := server.Client().Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// read reads the image as a job on this node does.
func read(t *testing.T, d *Disk) []byte {
	t.Helper()
	r := openImageOf(t, d)
	got, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	return got
}

// TestReadingKeepsPageCache reads an image while some of its pages are cached. These pages must stay
// in the page cache, and all others must be dropped. Pages that the network stack is still sending
// are dropped by the next reader.
func TestReadingKeepsPageCache(t *testing.T) {
	const size = 24 << 20
	image := bytes.Repeat(randomBlock()[:ChunkSize], size/ChunkSize)
	for name, read := range map[string]func(*testing.T, *Disk) []byte{"sent": readOverHTTP, "read": read} {
		for cached, pages := range map[string]func(int64) bool{
			"nothing":    func(int64) bool { return false },
			"all":        func(int64) bool { return true },
			"some pages": func(n int64) bool { return n%7 == 0 || n%1000 < 100 },
		} {
			if race.Enabled && cached != "some pages" {
				continue
			}
			t.Run(name+"/"+cached, func(t *testing.T) {
				d := newDisk(t)
				readyImage(t, d, image)
				setCached(t, imagePath(d, imageFile), pages)
				before := cachedPagesOf(t, imagePath(d, imageFile))
				if got := read(t, d); !bytes.Equal(got, image) {
					t.Fatal("the bytes differ")
				}
				dropped, added := difference(before, cachedPagesOf(t, imagePath(d, imageFile)))
				t.Logf("of the cached pages, %d of %d were dropped; %d pages were added", dropped, len(before), added)
				few := len(before) / 64 // the kernel itself may drop some pages, or drop some late
				if dropped > few {
					t.Error("too many pages were dropped")
				}
				for began := time.Now(); dropped+added > few; {
					receiveOnAllProcessors(t)
					if err := openImageOf(t, d).Close(); err != nil {
						t.Fatal(err)
					}
					dropped, added = difference(before, cachedPagesOf(t, imagePath(d, imageFile)))
					if time.Since(began) > time.Minute {
						t.Fatalf("of the cached pages, %d of %d were dropped; %d pages were added", dropped, len(before), added)
					}
				}
			})
		}
	}
}

// receiveOnAllProcessors makes each CPU receive data. Until it does, the kernel keeps the last
// received data of this CPU, with its pages.
func receiveOnAllProcessors(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var all sync.WaitGroup
	for range 4 * runtime.NumCPU() {
		all.Go(func() {
			if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
				c.Close()
			}
		})
	}
	all.Wait()
}

// TestSendBoundsPageCache checks that Send of a large image keeps only a bounded number of pages in
// the page cache.
func TestSendBoundsPageCache(t *testing.T) {
	const size = 48 << 20
	d := newDisk(t)
	readyImage(t, d, bytes.Repeat(randomBlock()[:ChunkSize], size/ChunkSize))
	setCached(t, imagePath(d, imageFile), func(int64) bool { return false })
	var most int64
	err := openImageOf(t, d).Send(io.Discard, 0, size, func() error {
		most = max(most, resident(t, imagePath(d, imageFile)))
		return nil
	})
	if err != nil || most > 2*lent || most == 0 {
		t.Errorf("up to %d bytes were in the page cache, error %v", most, err)
	}
}

// setCached makes exactly these pages of a file cached.
func setCached(t *testing.T, name string, pages func(n int64) bool) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := dropCache(f); err != nil {
		t.Fatal(err)
	}
	p := newCachedPages(f, 0, nil) // turns read-ahead off
	size := int64(os.Getpagesize())
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for n := range info.Size() / size {
		if !pages(n) {
			continue
		}
		if _, err := p.f.ReadAt(make([]byte, size), n*size); err != nil {
			t.Fatal(err)
		}
	}
}

func difference(before, after []bool) (dropped, added int) {
	for i := range before {
		switch {
		case before[i] && !after[i]:
			dropped++
		case !before[i] && after[i]:
			added++
		}
	}
	return dropped, added
}

// TestCloseKeepsRetainedPages checks that Close of one reader keeps the list of pages that another
// reader could not drop.
func TestCloseKeepsRetainedPages(t *testing.T) {
	d := newDisk(t)
	readyImage(t, d, make([]byte, 4096))
	first, second := openImageOf(t, d), openImageOf(t, d)
	first.retain([]Span{{0, 4096}})
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if left := d.metadata.takePages(testID, first.chunks.before.Inode); len(left) != 1 {
		t.Errorf("retained pages are %v, want one span", left)
	}
}

func TestVerifyingReaderRefusesDamagedChunk(t *testing.T) {
	d := newDisk(t)
	image := sparseImage(6*ChunkSize + 1024)
	readyImage(t, d, image)
	r, err := d.Open(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	m, err := d.Manifest(testID)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	size := int64(len(image))
	all, err := io.ReadAll(io.NewSectionReader(NewVerifyingReader(testID, r, m, 2), 0, size))
	if err != nil || !bytes.Equal(all, image) {
		t.Fatalf("%d bytes, error %v", len(all), err)
	}
	f, err := os.OpenFile(imagePath(d, imageFile), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at, zero := int64(4*ChunkSize+17), int64(5*ChunkSize+17)
	for _, damaged := range []int64{at, zero} {
		if _, err := f.WriteAt([]byte{^image[damaged]}, damaged); err != nil {
			t.Fatal(err)
		}
	}
	c, b := NewVerifyingReader(testID, r, m, 2), make([]byte, 512)
	if _, err := c.ReadAt(b, at); !errors.Is(err, ErrDamaged) {
		t.Errorf("error is %v", err)
	}
	if n, err := c.ReadAt(b, 4*ChunkSize-256); n != 256 || !errors.Is(err, ErrDamaged) {
		t.Errorf("read %d bytes before the damage, error %v", n, err)
	}
	if n, err := c.ReadAt(b, zero); err != nil || !bytes.Equal(b[:n], image[zero:zero+512]) {
		t.Errorf("read %x of a chunk of zeros, error %v", b[:n], err)
	}
	if n, err := c.ReadAt(b, size-100); n != 100 || err != io.EOF {
		t.Errorf("read %d bytes at the end, error %v", n, err)
	}
}
