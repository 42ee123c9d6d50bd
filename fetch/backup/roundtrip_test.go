package backup

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

var (
	trips = flag.Int("backup.trips", race.Fewer(8, 2), "number of random round trips over a folder; a sixth of this number runs over a bucket")
	first = flag.Uint64("backup.first", 0, "first seed")
)

// randomImage returns an image of an odd size: random bytes, holes with some data, repeated blocks,
// or a qcow2 file.
func randomImage(t testing.TB, random *rand.Rand) []byte {
	t.Helper()
	data := make([]byte, 512*(1+random.IntN(6<<11)))
	block := randomBytes(random.Uint64(), blockSize)
	switch kind := random.IntN(5); kind {
	case 0:
		fillRandom(data, random)
	case 1:
		for at := 0; at < len(data); at += 512 * (1 + random.IntN(2<<11)) {
			if random.IntN(3) > 0 {
				copy(data[at:], block)
				continue
			}
			copy(data[at:], bytes.Repeat([]byte(fmt.Sprintln("line", at)), 1000))
		}
	default:
		for range random.IntN(6) {
			at := 512 * random.IntN(len(data)/512)
			fillRandom(data[at:min(len(data), at+1+random.IntN(3<<20))], random)
		}
		if kind > 2 {
			return qcow2File(t, data, random)
		}
	}
	return data
}

func fillRandom(p []byte, random *rand.Rand) { copy(p, randomBytes(random.Uint64(), len(p))) }

func qcow2File(t testing.TB, data []byte, random *rand.Rand) []byte {
	t.Helper()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "raw"), filepath.Join(dir, "qcow2")
	if err := os.WriteFile(from, data, 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"convert", "-f", "raw", "-O", "qcow2", "-o", fmt.Sprintf("cluster_size=%d", 512<<random.IntN(13)), from, to}
	if random.IntN(2) == 0 {
		args = append([]string{"convert", "-c"}, args[1:]...)
	}
	if out, err := need.Command(t, "qemu-img", args...).CombinedOutput(); err != nil {
		t.Fatalf("qemu-img: %v\n%s", err, out)
	}
	file, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	return append(file, make([]byte, -len(file)&511)...)
}

// faultyStore makes one request fail, before or after it takes effect. If cancel is set, it also
// cancels the caller.
type faultyStore struct {
	Store
	left   atomic.Int64
	after  bool
	cancel context.CancelFunc // nil: only the error
}

func (c *faultyStore) do(request func() error) error {
	cut := c.left.Add(-1) == 0
	if cut && c.cancel != nil {
		c.cancel()
	}
	err := error(nil)
	if !cut || c.after {
		err = request()
	}
	if cut && err == nil {
		err = fetch.Errorf(fetch.Refused, "injected fault")
	}
	return err
}

func (c *faultyStore) Open(ctx context.Context, key string) (r io.ReadCloser, err error) {
	err = c.do(func() error { r, err = c.Store.Open(ctx, key); return err })
	if err != nil && r != nil {
		r.Close()
	}
	return r, err
}

func (c *faultyStore) Put(ctx context.Context, key string, data []byte) error {
	return c.do(func() error { return c.Store.Put(ctx, key, data) })
}

func (c *faultyStore) Delete(ctx context.Context, key string) error {
	return c.do(func() error { return c.Store.Delete(ctx, key) })
}

func (c *faultyStore) List(ctx context.Context, folder string) (entries []Entry, err error) {
	err = c.do(func() error { entries, err = c.Store.List(ctx, folder); return err })
	return entries, err
}

// roundTrip backs up and restores two images that share blocks.
type roundTrip struct {
	t      testing.TB
	store  Store
	random *rand.Rand
	cuts   int // maximum number of requests before a fault
}

// insist repeats do with a fault at a random request. The last attempt has no fault.
func (p *roundTrip) insist(what string, do func(context.Context, Store) error) {
	p.t.Helper()
	for cuts := p.random.IntN(p.cuts + 1); ; cuts-- {
		ctx, cancel := context.WithCancel(context.Background())
		c := &faultyStore{Store: p.store, after: p.random.IntN(2) == 0}
		if cuts > 0 {
			c.left.Store(1 + p.random.Int64N(12))
		}
		if p.random.IntN(3) == 0 {
			c.cancel = cancel
		}
		err := do(ctx, c)
		cancel()
		if err == nil {
			return
		}
		if c.left.Load() > 0 || cuts <= 0 {
			p.t.Fatalf("%s: %v", what, err)
		}
	}
}

func (p *roundTrip) run() {
	p.t.Helper()
	from := newDisk(p.t)
	images := map[string][]byte{"first": randomImage(p.t, p.random)}
	images["second"] = randomImage(p.t, p.random)
	if shared := images["first"]; !bytes.HasPrefix(shared, []byte("QFI")) {
		images["second"] = slices.Concat(shared[:512*p.random.IntN(1+len(shared)/512)], images["second"])
	}
	methods := []Compression{LZ4, Gzip, None}
	for _, name := range []string{"first", "second"} {
		makeImage(p.t, from, name, images[name])
		w := Creator{Compression: methods[p.random.IntN(3)], Workers: p.random.IntN(5)}
		p.insist("back up "+name, func(ctx context.Context, s Store) error {
			w.Store = s
			return w.Create(ctx, from, id(name), new(fetch.Progress))
		})
	}
	for name, want := range images {
		to := newDisk(p.t)
		p.insist("restore "+name, func(ctx context.Context, s Store) error {
			_, err := restore(ctx, s, to, name)
			return err
		})
		r, err := to.Open(id(name))
		if err != nil {
			p.t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err != nil || !bytes.Equal(got, want) {
			p.t.Fatalf("the restored %s (%d bytes) differs from the original (%d bytes), error %v", name, len(got), len(want), err)
		}
	}
}

func newRoundTrip(t testing.TB, s Store, seed uint64) *roundTrip {
	return &roundTrip{t: t, store: s, random: rand.New(rand.NewPCG(seed, 4)), cuts: 3}
}

// TestRandomRoundTrips backs up images to a folder and restores them, with failing requests. After
// all backups are deleted, the folder must be empty.
func TestRandomRoundTrips(t *testing.T) {
	for seed := *first; seed < *first+uint64(*trips); seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				p := newRoundTrip(t, folderStore(t, dir), seed)
				p.run()
				ageLocks(t, dir)
				for _, name := range []string{"first", "second"} {
					if _, err := Delete(t.Context(), p.store, name); err != nil {
						t.Fatal(err)
					}
				}
				if left := filesBelow(t, dir); len(left) > 0 {
					t.Errorf("files left: %q", left)
				}
			})
		})
	}
}

// ageLocks changes the age of all locks to one day.
func ageLocks(t testing.TB, dir string) {
	t.Helper()
	for _, name := range filesBelow(t, dir) {
		if strings.HasSuffix(name, lockSuffix) {
			if err := os.Chtimes(filepath.Join(dir, name), time.Time{}, time.Now().Add(-24*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestRandomRoundTripsS3 does the same with a bucket, where locks use real time.
func TestRandomRoundTripsS3(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t, "images")
	var running sync.WaitGroup
	for seed := *first; seed < *first+uint64(*trips+5)/6; seed++ {
		p := newRoundTrip(t, bucketStore(t, server, fmt.Sprint("s3://images@us-east-1/", seed)), seed)
		p.cuts = 1
		running.Go(p.run)
	}
	running.Wait()
	if n := server.Uploads(t, "images"); n > 0 {
		t.Errorf("%d multipart uploads were started and not finished", n)
	}
}
