package backup

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// someBytes are different for each seed; every other MiB is zeros.
func someBytes(seed uint64, size int) []byte {
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

// Sizes that are odd, images with holes everywhere, and nothing but holes.
func TestBackupSizes(t *testing.T) {
	holes := make([]byte, 16<<20)
	copy(holes[9<<20:], "something")
	for name, data := range map[string][]byte{
		"sector":         someBytes(1, 512),
		"seven-and-512":  someBytes(2, 7<<20+512), // Longhorn's own manager panics
		"one-block":      someBytes(3, 2<<20),
		"block-and-512":  someBytes(4, 2<<20+512),
		"nothing":        make([]byte, 5<<20),
		"one-word":       holes,
		"ends-in-a-hole": append(someBytes(5, 3<<20), make([]byte, 6<<20+512)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, dir := newDisk(t), t.TempDir()
			want := makeImage(t, d, name, data)
			for _, c := range []Compression{LZ4, Gzip, None} {
				synctest.Test(t, func(t *testing.T) {
					target := filepath.Join(dir, string(c))
					if err := os.Mkdir(target, 0o755); err != nil {
						t.Fatal(err)
					}
					w := Write{Store: openTarget(t, target), Compression: c, Workers: 3}
					var p fetch.Progress
					if err := w.Backup(t.Context(), d, id(name), &p); err != nil {
						t.Fatal(err)
					}
					if p.Percent() != 100 || p.Done.Load() != int64(len(data)) {
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

// A second image costs the blocks that it does not share with the first one, and the
// first one loses nothing when the other goes.
func TestBackupShared(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	a := someBytes(1, 8<<20)
	b := append(someBytes(2, 2<<20), a...) // all blocks of a, elsewhere
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
		if err != nil || done != (Deleted{Found: true}) {
			t.Errorf("deleted %+v (%v)", done, err)
		}
		if _, err := restore(t.Context(), s, newDisk(t), "b1"); err != nil {
			t.Error(err)
		}
		mustBackUp(t, dir, d, "a1")
		done, err = Delete(t.Context(), s, "b1")
		if err != nil || done != (Deleted{Found: true, Blocks: 1}) {
			t.Errorf("deleted %+v (%v)", done, err)
		}
		if _, err := restore(t.Context(), s, newDisk(t), "a1"); err != nil {
			t.Error(err)
		}
		if _, err := Delete(t.Context(), s, "a1"); err != nil {
			t.Error(err)
		}
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("left are %v", left)
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

// No block goes while another backup may need it.
func TestDeleteKeeps(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	makeImage(t, d, "a1", someBytes(1, 4<<20))
	makeImage(t, d, "b1", someBytes(2, 4<<20))
	for name, spoil := range map[string]func(cfg string) string{
		"is not completed": func(cfg string) string {
			b, err := Parse(strings.NewReader(cfg))
			if err != nil {
				t.Fatal(err)
			}
			b = &Backup{Name: b.Name, Size: b.Size, Checksum: b.Checksum, Compression: b.Compression, Created: b.Created}
			data, err := b.Marshal()
			if err != nil {
				t.Fatal(err)
			}
			return string(data)
		},
		"it is cut short":  func(cfg string) string { return cfg[:len(cfg)/2] },
		"it is of another": func(cfg string) string { return strings.Replace(cfg, "b1", "b2", 1) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := openTarget(t, dir)
				mustBackUp(t, dir, d, "a1")
				mustBackUp(t, dir, d, "b1")
				cfg := filepath.Join(dir, cfgKey("b1"))
				if err := os.WriteFile(cfg, []byte(spoil(files(t, dir)[cfgKey("b1")])), 0o644); err != nil {
					t.Fatal(err)
				}
				done, err := Delete(t.Context(), s, "a1")
				if err != nil || !done.Found || done.Blocks != 0 || !strings.Contains(done.Kept, name) {
					t.Errorf("got %+v (%v)", done, err)
				}
				if n := blockFiles(t, dir); n != 4 {
					t.Errorf("%d blocks are left of 4", n)
				}
				// Once the other is gone, what was left is found by the name again.
				if _, err := Delete(t.Context(), s, "b1"); err != nil {
					t.Fatal(err)
				}
				if done, err = Delete(t.Context(), s, "a1"); err != nil || done.Found {
					t.Errorf("got %+v (%v)", done, err)
				}
				if left := files(t, dir); len(left) > 0 {
					t.Errorf("left are %v", left)
				}
			})
		})
	}
}

// Nor while there is something among the backups that cannot be one, and what is not a
// block is nothing to a deletion.
func TestDeleteForeign(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	makeImage(t, d, "a1", someBytes(1, 4<<20))
	foreign := []string{filepath.Join(blocksFolder, "lost+found", "x"), filepath.Join(blocksFolder, "00", "note.txt"), filepath.Join(blocksFolder, "README")}
	for _, name := range foreign {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	strange := filepath.Join(dir, imagesFolder, "what is this")
	synctest.Test(t, func(t *testing.T) {
		s := openTarget(t, dir)
		mustBackUp(t, dir, d, "a1")
		if err := os.Mkdir(strange, 0o755); err != nil {
			t.Fatal(err)
		}
		done, err := Delete(t.Context(), s, "a1")
		if err != nil || done.Blocks != 0 || !strings.Contains(done.Kept, "is not the name of a backup") {
			t.Errorf("got %+v (%v)", done, err)
		}
		if err := os.Remove(strange); err != nil {
			t.Fatal(err)
		}
		if done, err := Delete(t.Context(), s, "a1"); err != nil || done != (Deleted{Blocks: 2}) {
			t.Errorf("got %+v (%v)", done, err)
		}
		if left := files(t, dir); len(left) != len(foreign) {
			t.Errorf("left are %v", left)
		}
	})
}

// Killed at any request, a backup is no backup, and the next one completes it.
func TestBackupKilled(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	makeImage(t, d, "a1", someBytes(1, 3<<20))
	for n := range 7 { // as many writes as there are
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			cut := &cutting{Store: openTarget(t, dir), left: n, cut: cancel}
			err := Write{Store: cut, Compression: LZ4}.Backup(ctx, d, id("a1"), new(fetch.Progress))
			if cut.left >= 0 { // it was through before
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("after %d writes: %v", n, err)
			}
			if _, err := Load(t.Context(), openTarget(t, dir), "a1"); err == nil {
				t.Fatalf("after %d writes it is complete", n)
			}
			if locks := lockFiles(t, dir); n > 0 && len(locks) != 1 {
				t.Errorf("after %d writes there are the locks %v", n, locks)
			}
			mustBackUp(t, dir, d, "a1")
			if _, err := restore(t.Context(), openTarget(t, dir), newDisk(t), "a1"); err != nil {
				t.Error(err)
			}
			for _, lock := range lockFiles(t, dir) { // it expires
				if err := os.Chtimes(lock, time.Now(), time.Now().AddDate(-1, 0, 0)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := Delete(t.Context(), openTarget(t, dir), "a1"); err != nil {
				t.Error(err)
			}
			if left := files(t, dir); len(left) > 0 {
				t.Errorf("after %d writes there are left %v", n, left)
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

// cutting ends the work after so many writes, as a kill does: nothing is cleaned up.
type cutting struct {
	Store
	cut context.CancelFunc

	mu   sync.Mutex
	left int
}

func (c *cutting) Put(ctx context.Context, key string, data []byte) error {
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

func (c *cutting) Delete(ctx context.Context, key string) error {
	c.mu.Lock()
	over := c.left < 0
	c.mu.Unlock()
	if over {
		return context.Canceled
	}
	return c.Store.Delete(ctx, key)
}

// A backup that is there is left as it is if it is of the same bytes, and never
// replaced.
func TestBackupThere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, other := newDisk(t), newDisk(t)
		makeImage(t, d, "a1", someBytes(1, 4<<20))
		makeImage(t, other, "a1", someBytes(2, 4<<20))
		mustBackUp(t, dir, d, "a1")
		before := files(t, dir)
		mustBackUp(t, dir, d, "a1")
		err := backUp(t, dir, other, "a1")
		if !isClass(err, fetch.Source) || !strings.Contains(err.Error(), "of other bytes") {
			t.Errorf("got %v", err)
		}
		after := files(t, dir)
		for name, was := range before {
			if after[name] != was || len(after) != len(before) {
				t.Errorf("%s is not what it was", name)
			}
		}
	})
}

// beginning is a Store in which somebody else begins a backup of the same name, who has
// not seen that of its user, while the first block is stored.
type beginning struct {
	Store
	begin func(Store)
	once  sync.Once
}

func (b *beginning) Put(ctx context.Context, key string, data []byte) error {
	if strings.HasSuffix(key, blockSuffix) {
		b.once.Do(func() { b.begin(b.Store) })
	}
	return b.Store.Put(ctx, key, data)
}

// Two managers with images of one name and other bytes: one of them is told.
func TestBackupsOfOtherBytesAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d, other := newDisk(t), newDisk(t)
		makeImage(t, d, "a1", someBytes(1, 4<<20))
		c := makeImage(t, other, "a1", someBytes(2, 4<<20))
		s := &beginning{Store: openTarget(t, dir), begin: func(s Store) {
			theirs := &Backup{Name: "a1", Size: c.Size, Checksum: c.SHA512.String(), Compression: LZ4, Created: time.Now()}
			if err := (Write{Store: s}).save(t.Context(), theirs); err != nil {
				t.Error(err)
			}
		}}
		err := Write{Store: s}.Backup(t.Context(), d, id("a1"), new(fetch.Progress))
		if !isClass(err, fetch.Source) || !strings.Contains(err.Error(), "of other bytes") {
			t.Errorf("got %v", err)
		}
		mustBackUp(t, dir, other, "a1")
		if got, err := restore(t.Context(), openTarget(t, dir), newDisk(t), "a1"); err != nil || got.SHA512 != c.SHA512 {
			t.Errorf("restored %v (%v), want %v", got.SHA512, err, c.SHA512)
		}
	})
}

// What the disk has spoiled gets no place in the Store.
func TestBackupDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		d := newDisk(t)
		makeImage(t, d, "a1", someBytes(1, 4<<20))
		file := filepath.Join(d.Path(), "backing-images", id("a1").String(), "backing")
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		r, err := d.Open(id("a1")) // before the file's times tell
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		im, err := openImage(d, id("a1"))
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
		w := Write{Store: openTarget(t, dir), Compression: LZ4}
		if _, err := w.store(t.Context(), im, new(fetch.Progress)); !errors.Is(err, disk.ErrDamaged) {
			t.Errorf("got %v", err)
		}
		if n := blockFiles(t, dir); n > 1 {
			t.Errorf("%d blocks were stored", n)
		}
	})
}
