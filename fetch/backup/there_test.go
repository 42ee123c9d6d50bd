package backup

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/race"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/backup/s3test"
)

// TestBackupMends finds blocks of its image in the store that were cut or spoilt there. A
// backup that counted on them could never be restored.
func TestBackupMends(t *testing.T) {
	t.Parallel()
	data := append(someBytes(1, 2<<20), someBytes(2, 2<<20+512)...)
	cut := func(b []byte) []byte { return b[:len(b)/2] }
	spoil := map[string]func([]byte) []byte{
		"cut":          cut,
		"a byte wrong": func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"other bytes":  func(b []byte) []byte { return someBytes(9, len(b)) },
		"too long":     func(b []byte) []byte { return append(b, make([]byte, maxStored)...) },
	}
	folder := func(t *testing.T) Store { return folderStore(t, t.TempDir()) }
	for name, spoil := range spoil {
		for _, c := range []Compression{LZ4, None} {
			if race.Enabled && (c == None || name == "too long") {
				continue
			}
			t.Run(name+" "+string(c), func(t *testing.T) {
				t.Parallel()
				mended(t, folder(t), c, data, spoil)
			})
		}
	}
	// What a bucket has of the right size it vouches for itself.
	t.Run("bucket, cut", func(t *testing.T) {
		t.Parallel()
		mended(t, bucketStore(t, s3test.Start(t, "images"), "s3://images/"), LZ4, data, cut)
	})
}

func mended(t *testing.T, s Store, c Compression, data []byte, spoil func([]byte) []byte) {
	d := newDisk(t)
	want := makeImage(t, d, "a1", data)
	makeImage(t, d, "a2", data)
	backUpTo(t, s, c, d, "a1")
	b, err := Load(t.Context(), s, "a1")
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range b.Blocks {
		room := make([]byte, maxStored+1)
		stored, err := (traffic{nil, &new(fetch.Progress).Moved}).read(t.Context(), s, block.Sum.key(), room)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Put(t.Context(), block.Sum.key(), spoil(slices.Clone(stored))); err != nil {
			t.Fatal(err)
		}
	}
	backUpTo(t, s, c, d, "a2")
	for _, name := range []string{"a1", "a2"} {
		if got, err := restore(t.Context(), s, newDisk(t), name); err != nil || got.SHA512 != want.SHA512 {
			t.Errorf("%s is restored as %v, %v", name, got.SHA512, err)
		}
	}
}

func backUpTo(t *testing.T, s Store, c Compression, d *disk.Disk, name string) {
	t.Helper()
	if err := (Write{Store: s, Compression: c}).Backup(t.Context(), d, id(name), new(fetch.Progress)); err != nil {
		t.Fatal(err)
	}
}

// puts notes what is written to a Store.
type puts struct {
	Store
	mu   sync.Mutex
	keys []string
}

func (p *puts) Put(ctx context.Context, key string, data []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys = append(p.keys, key)
	return p.Store.Put(ctx, key, data)
}

// TestBackupConfirmsItsLock: a backup that was paused may have outlived its lock, and
// blocks that it has stored be gone. The last thing before it calls itself complete is to
// see that it has not.
func TestBackupConfirmsItsLock(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	makeImage(t, d, "a1", someBytes(1, 4<<20))
	synctest.Test(t, func(t *testing.T) {
		s := &puts{Store: openTarget(t, dir)}
		backUpTo(t, s, LZ4, d, "a1")
		last := s.keys[len(s.keys)-2:]
		if !strings.HasSuffix(last[0], lockSuffix) || last[1] != cfgKey("a1") {
			t.Errorf("the last that is written is %q", last)
		}
		_, l, err := acquire(t.Context(), s, exclusive, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer l.release(t.Context())
		l.mu.Lock()
		l.renewed = l.renewed.Add(-lockLost) // as if the process had been stopped
		l.mu.Unlock()
		b, err := Load(t.Context(), s, "a1")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.confirm(t.Context()); !isClass(err, fetch.Network) {
			t.Errorf("a lock that has expired: %v", err)
		}
		if err := removeBlocks(t.Context(), s, l, []Sum{b.Blocks[0].Sum}); !isClass(err, fetch.Network) || blockFiles(t, dir) != len(b.Blocks) {
			t.Errorf("%d blocks of %d are left: %v", blockFiles(t, dir), len(b.Blocks), err)
		}
	})
}
