package backup

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

// testBytes returns different bytes for each seed. Every second MiB is zeros.
func testBytes(seed uint64, size int) []byte {
	data := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	for at := 0; at < size; at += 2 << 20 {
		_, _ = r.Read(data[at:min(at+1<<20, size)])
	}
	return data
}

func mustBackUp(t testing.TB, dir string, d *disk.Disk, name string) {
	t.Helper()
	if err := backUp(t, dir, d, name); err != nil {
		t.Fatal(err)
	}
}

// TestCreateAndRestoreSizes backs up and restores odd sizes, images with holes, and images of zeros
// only.
func TestCreateAndRestoreSizes(t *testing.T) {
	holes := make([]byte, 16<<20)
	copy(holes[9<<20:], "something")
	for name, data := range map[string][]byte{
		"sector":         testBytes(1, 512),
		"seven-and-512":  testBytes(2, 7<<20+512), // this size crashes Longhorn's own manager
		"one-block":      testBytes(3, 2<<20),
		"block-and-512":  testBytes(4, 2<<20+512),
		"nothing":        make([]byte, 5<<20),
		"one-word":       holes,
		"ends-in-a-hole": append(testBytes(5, 3<<20), make([]byte, 6<<20+512)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, dir := newDisk(t), t.TempDir()
			want := makeImage(t, d, name, data)
			for _, c := range []Compression{LZ4, Gzip, None} {
				if race.Enabled && c != LZ4 {
					continue
				}
				synctest.Test(t, func(t *testing.T) {
					target := filepath.Join(dir, string(c))
					if err := os.Mkdir(target, 0o755); err != nil {
						t.Fatal(err)
					}
					w := Creator{Store: openTarget(t, target), Compression: c, Workers: 3}
					var p fetch.Progress
					if err := w.Create(t.Context(), d, id(name), &p); err != nil {
						t.Fatal(err)
					}
					if p.Done.Load() != p.Total.Load() || p.Done.Load() != int64(len(data)) {
						t.Errorf("progress %d of %d", p.Done.Load(), p.Total.Load())
					}
					got, err := restore(t.Context(), w.Store, newDisk(t), name)
					if err != nil || got.SHA512 != want.SHA512 || got.Size != want.Size {
						t.Errorf("restored %v of %d bytes (%v), want %v of %d", got.SHA512, got.Size, err, want.SHA512, want.Size)
					}
				})
			}
		})
	}
}

// TestBackupsShareBlocks checks that the backup of a second image stores only blocks that the first
// backup does not have, and that its deletion does not damage the first backup.
func TestBackupsShareBlocks(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	a := testBytes(1, 8<<20)
	b := append(testBytes(2, 2<<20), a...) // all blocks of a, at different offsets
	makeImage(t, d, "a1", a)
	makeImage(t, d, "b1", b)
	synctest.Test(t, func(t *testing.T) {
		s := openTarget(t, dir)
		mustBackUp(t, dir, d, "a1")
		one := blockFiles(t, dir)
		mustBackUp(t, dir, d, "b1")
		if two := blockFiles(t, dir); one != 4 || two != 5 {
			t.Errorf("%d blocks, then %d", one, two)
		}
		done, err := Delete(t.Context(), s, "a1")
		if err != nil || done != (DeleteResult{Found: true}) {
			t.Errorf("deleted %+v (%v)", done, err)
		}
		if _, err := restore(t.Context(), s, newDisk(t), "b1"); err != nil {
			t.Error(err)
		}
		mustBackUp(t, dir, d, "a1")
		done, err = Delete(t.Context(), s, "b1")
		if err != nil || done != (DeleteResult{Found: true, RemovedBlocks: 1}) {
			t.Errorf("deleted %+v (%v)", done, err)
		}
		if _, err := restore(t.Context(), s, newDisk(t), "a1"); err != nil {
			t.Error(err)
		}
		if _, err := Delete(t.Context(), s, "a1"); err != nil {
			t.Error(err)
		}
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("files left: %v", left)
		}
	})
}

func blockFiles(t testing.TB, dir string) (n int) {
	for name := range files(t, dir) {
		if strings.HasSuffix(name, blockSuffix) {
			n++
		}
	}
	return n
}

// TestCreateWithExistingBackup checks that an existing backup of the same bytes is not changed, and
// that a backup of different bytes is never replaced.
func TestCreateWithExistingBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, other := newDisk(t), newDisk(t)
		makeImage(t, d, "a1", testBytes(1, 4<<20))
		makeImage(t, other, "a1", testBytes(2, 4<<20))
		mustBackUp(t, dir, d, "a1")
		before := files(t, dir)
		mustBackUp(t, dir, d, "a1")
		err := backUp(t, dir, other, "a1")
		if !isClass(err, fetch.BadSource) || !strings.Contains(err.Error(), "of different bytes") {
			t.Errorf("got %v", err)
		}
		after := files(t, dir)
		for name, was := range before {
			if after[name] != was || len(after) != len(before) {
				t.Errorf("%s has changed", name)
			}
		}
	})
}

// barrierStore is a Store in which another process starts a backup of the same name while the first
// block is stored. Neither process has read the cfg of the other.
type barrierStore struct {
	Store
	begin func(Store)
	once  sync.Once
}

func (b *barrierStore) Put(ctx context.Context, key string, data []byte) error {
	if strings.HasSuffix(key, blockSuffix) {
		b.once.Do(func() { b.begin(b.Store) })
	}
	return b.Store.Put(ctx, key, data)
}

// TestConcurrentBackupsOfDifferentBytes checks that one of two backups fails if two managers back up
// different bytes under the same name.
func TestConcurrentBackupsOfDifferentBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, other := newDisk(t), newDisk(t)
		makeImage(t, d, "a1", testBytes(1, 4<<20))
		c := makeImage(t, other, "a1", testBytes(2, 4<<20))
		s := &barrierStore{Store: openTarget(t, dir), begin: func(s Store) {
			theirs := &Backup{Name: "a1", Size: c.Size, Checksum: c.SHA512.String(), Compression: LZ4, Created: time.Now()}
			if err := (Creator{Store: s}).writeCfg(t.Context(), theirs); err != nil {
				t.Error(err)
			}
		}}
		err := Creator{Store: s}.Create(t.Context(), d, id("a1"), new(fetch.Progress))
		if !isClass(err, fetch.BadSource) || !strings.Contains(err.Error(), "of different bytes") {
			t.Errorf("got %v", err)
		}
		mustBackUp(t, dir, other, "a1")
		if got, err := restore(t.Context(), openTarget(t, dir), newDisk(t), "a1"); err != nil || got.SHA512 != c.SHA512 {
			t.Errorf("restored %v (%v), want %v", got.SHA512, err, c.SHA512)
		}
	})
}

// TestDamagedImageIsNotBackedUp checks that damaged bytes of an image are not stored.
func TestDamagedImageIsNotBackedUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		makeImage(t, d, "a1", testBytes(1, 4<<20))
		file := filepath.Join(d.Path(), "backing-images", id("a1").String(), "backing")
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.Open(id("a1")) // open it before the modification time changes
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		im, err := openSourceImage(d, id("a1"))
		if err != nil {
			t.Fatal(err)
		}
		defer im.close()
		f, err := os.OpenFile(file, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("x"), info.Size()/2); err != nil {
			t.Fatal(err)
		}
		f.Close()
		w := Creator{Store: openTarget(t, dir), Compression: LZ4}
		if _, err := w.storeBlocks(t.Context(), im, new(fetch.Progress)); !errors.Is(err, disk.ErrDamaged) {
			t.Errorf("got %v", err)
		}
		if n := blockFiles(t, dir); n > 1 {
			t.Errorf("%d blocks were stored", n)
		}
	})
}

// TestCreateRewritesBadBlocks damages blocks of the image in the store. If a backup reused them, it
// could never be restored.
func TestCreateRewritesBadBlocks(t *testing.T) {
	t.Parallel()
	data := append(testBytes(1, 2<<20), testBytes(2, 2<<20+512)...)
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	spoil := map[string]func([]byte) []byte{
		"cut":          cut,
		"a wrong byte": func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"other bytes":  func(b []byte) []byte { return testBytes(9, len(b)) },
		"too long":     func(b []byte) []byte { return append(b, make([]byte, maxBlockFile)...) },
	}
	folder := func(t *testing.T) Store { return folderStore(t, t.TempDir()) }
	for name, spoil := range spoil {
		for _, c := range []Compression{LZ4, None} {
			if race.Enabled && (c == None || name == "too long") {
				continue
			}
			t.Run(name+" "+string(c), func(t *testing.T) {
				t.Parallel()
				wantRepaired(t, folder(t), c, data, spoil)
			})
		}
	}
	// An object of the right size in a bucket is intact, because the server verified it.
	t.Run("bucket, truncated", func(t *testing.T) {
		t.Parallel()
		wantRepaired(t, bucketStore(t, s3test.Start(t, "images"), "s3://images/"), LZ4, data, cut)
	})
}

func wantRepaired(t *testing.T, s Store, c Compression, data []byte, spoil func([]byte) []byte) {
	d := newDisk(t)
	want := makeImage(t, d, "a1", data)
	makeImage(t, d, "a2", data)
	backUpTo(t, s, c, d, "a1")
	b, err := LoadComplete(t.Context(), s, "a1")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range b.Blocks {
		room := make([]byte, maxBlockFile+1)
		stored, err := (objectReader{nil, &new(fetch.Progress).UpstreamBytes}).read(t.Context(), s, block.ID.key(), room)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), block.ID.key(), spoil(slices.Clone(stored))); err != nil {
			t.Fatal(err)
		}
	}
	backUpTo(t, s, c, d, "a2")
	for _, name := range []string{"a1", "a2"} {
		if got, err := restore(t.Context(), s, newDisk(t), name); err != nil || got.SHA512 != want.SHA512 {
			t.Errorf("the restored %s has the digest %v, error %v", name, got.SHA512, err)
		}
	}
}

func backUpTo(t *testing.T, s Store, c Compression, d *disk.Disk, name string) {
	t.Helper()
	if err := (Creator{Store: s, Compression: c}).Create(t.Context(), d, id(name), new(fetch.Progress)); err != nil {
		t.Fatal(err)
	}
}

// countingStore counts the writes to a Store.
type countingStore struct {
	Store
	mu   sync.Mutex
	keys []string
}

func (p *countingStore) Put(ctx context.Context, key string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, key)
	return p.Store.Put(ctx, key, data)
}

// TestExpiredLockLeavesBackupIncomplete checks that Create does not complete a backup after its lock
// has expired: the process may have been suspended, and a deletion may have removed the blocks that
// it stored.
func TestExpiredLockLeavesBackupIncomplete(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	makeImage(t, d, "a1", testBytes(1, 4<<20))
	synctest.Test(t, func(t *testing.T) {
		s := &countingStore{Store: openTarget(t, dir)}
		backUpTo(t, s, LZ4, d, "a1")
		last := s.keys[len(s.keys)-2:]
		if !strings.HasSuffix(last[0], lockSuffix) || last[1] != cfgKey("a1") {
			t.Errorf("the last write is %q", last)
		}
		_, l, err := acquire(t.Context(), s, exclusive, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.release(t.Context())
		l.mu.Lock()
		l.writtenAt = l.writtenAt.Add(-lockMaxAge) // as if the process had been suspended
		l.mu.Unlock()
		b, err := LoadComplete(t.Context(), s, "a1")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.confirm(t.Context()); !isClass(err, fetch.Network) {
			t.Errorf("with an expired lock: %v", err)
		}
		if err := removeBlocks(t.Context(), s, l, []blockID{b.Blocks[0].ID}); !isClass(err, fetch.Network) || blockFiles(t, dir) != len(b.Blocks) {
			t.Errorf("%d blocks of %d remain: %v", blockFiles(t, dir), len(b.Blocks), err)
		}
	})
}

// TestCreateContinuesAfterKill kills the process at each request. The backup must be incomplete, and
// the next Create must complete it.
func TestCreateContinuesAfterKill(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	makeImage(t, d, "a1", testBytes(1, 3<<20))
	for n := range 7 { // number of writes of a backup
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cut := &stoppingStore{Store: openTarget(t, dir), left: n, cut: cancel}
			err := Creator{Store: cut, Compression: LZ4}.Create(ctx, d, id("a1"), new(fetch.Progress))
			if cut.left >= 0 { // the backup was complete before the kill
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("after %d writes: %v", n, err)
			}
			if _, err := LoadComplete(t.Context(), openTarget(t, dir), "a1"); err == nil {
				t.Fatalf("after %d writes the backup is complete", n)
			}
			if locks := lockFiles(t, dir); n > 0 && len(locks) != 1 {
				t.Errorf("after %d writes the locks are %v", n, locks)
			}
			mustBackUp(t, dir, d, "a1")
			if _, err := restore(t.Context(), openTarget(t, dir), newDisk(t), "a1"); err != nil {
				t.Error(err)
			}
			for _, lock := range lockFiles(t, dir) { // make the lock expire
				if err := os.Chtimes(lock, time.Now(), time.Now().AddDate(-1, 0, 0)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Delete(t.Context(), openTarget(t, dir), "a1"); err != nil {
				t.Error(err)
			}
			if left := files(t, dir); len(left) > 0 {
				t.Errorf("after %d writes the files left are %v", n, left)
			}
		})
	}
}

func lockFiles(t testing.TB, dir string) []string {
	t.Helper()
	locks, err := filepath.Glob(filepath.Join(dir, locksFolder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// stoppingStore stops all operations after left writes, like a kill: no clean-up follows.
type stoppingStore struct {
	Store
	cut context.CancelFunc

	mu   sync.Mutex
	left int
}

func (c *stoppingStore) Put(ctx context.Context, key string, data []byte) error {
	c.mu.Lock()
	c.left--
	over := c.left < 0
	c.mu.Unlock()
	if over {
		c.cut()
		return ctx.Err()
	}
	return c.Store.Put(ctx, key, data)
}

func (c *stoppingStore) Delete(ctx context.Context, key string) error {
	c.mu.Lock()
	over := c.left < 0
	c.mu.Unlock()
	if over {
		return context.Canceled
	}
	return c.Store.Delete(ctx, key)
}
