package backup

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// TestRestoresShareMemoryBudget runs ten concurrent restores with the maximum number of workers. Some
// are canceled, and some lack a block. Together they must not exceed the budget, and they must
// release all of it.
func TestRestoresShareMemoryBudget(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t), t.TempDir()
	want := makeImage(t, d, "a1", testBytes(1, 23<<20+512))
	synctest.Test(t, func(t *testing.T) { mustBackUp(t, dir, d, "a1") })
	budget := NewMemoryBudget()
	var all sync.WaitGroup
	for n := range 10 {
		other := newDisk(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &limitedStore{Store: openTarget(t, dir), left: 100, end: cancel}
		if n%3 == 1 {
			s.left = n
		}
		var store Store = s
		if n%3 == 2 {
			store = losingStore{s, n}
		}
		all.Go(func() {
			got, err := restoreIn(ctx, budget, store, other, "a1")
			if n%3 == 0 && (err != nil || got.SHA512 != want.SHA512) || n%3 == 1 && !errors.Is(err, context.Canceled) || n%3 == 2 && !isClass(err, fetch.Refused) {
				t.Errorf("restore %d: %v, %v", n, got.SHA512, err)
			}
		})
	}
	all.Wait()
	if !budget.readers.limit.TryAcquire(budgetReaders) || budget.restores.Load() != 0 {
		t.Error("the restores have ended without releasing all of the budget")
	}
}

func restoreIn(ctx context.Context, budget *MemoryBudget, s Store, d *disk.Disk, name string) (model.Copy, error) {
	b, err := LoadComplete(ctx, s, name)
	if err != nil {
		return model.Copy{}, err
	}
	part, err := d.OpenPart(ctx, id(name), disk.PartOptions{})
	if err != nil {
		return model.Copy{}, err
	}
	defer part.Close()
	if err := (Restore{Store: s, Backup: b, Workers: maxWorkers, Memory: budget}).Fill(ctx, part, new(fetch.Progress)); err != nil {
		return model.Copy{}, err
	}
	return part.Commit(b.Digest())
}

// losingStore is a Store without some of its blocks.
type losingStore struct {
	*limitedStore
	kept int
}

func (m losingStore) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	m.mu.Lock()
	gone := strings.HasSuffix(key, blockSuffix) && m.blocks >= m.kept
	m.mu.Unlock()
	if gone {
		return m.Store.Open(ctx, "no/such/block")
	}
	return m.limitedStore.Open(ctx, key)
}
