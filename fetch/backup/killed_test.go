package backup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

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
