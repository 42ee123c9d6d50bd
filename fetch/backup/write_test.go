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
	"github.com/seed-26586806/backing-image-manager/disk/race"
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
				if race.Enabled && c != LZ4 {
					continue
				}
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
