package backup

import (
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"
)

const (
	// budgetBlocks is the number of blocks that may wait in memory to be written, for all restores together.
	// budgetReaders is the number of blocks that they read and unpack at a time.
	budgetBlocks  = 8
	budgetReaders = 6
)

// MemoryBudget limits memory: all restores that share it use at most about 45 MiB together. A restore waits while the budget
// is used up, but always has room for one block. It is safe for concurrent use.
type MemoryBudget struct {
	readers  *pool[*blockReader]
	restores atomic.Int64 // the number of running restores
}

// NewMemoryBudget returns a budget. It allocates no memory yet.
func NewMemoryBudget() *MemoryBudget {
	return &MemoryBudget{readers: newPool(budgetReaders, newBlockReader)}
}

// window returns how many bytes a restore may have ready to be written. blocks is the most that the restore can use.
func (m *MemoryBudget) window(blocks int) int64 {
	return min(int64(blocks), max(1, budgetBlocks/max(1, m.restores.Load()))) * blockSize
}

// pool provides at most limit values at the same time, and reuses them. The garbage collector frees
// values that are not acquired.
type pool[T any] struct {
	limit *semaphore.Weighted
	free  sync.Pool
	make  func() T
}

func newPool[T any](limit int64, make func() T) *pool[T] {
	return &pool[T]{limit: semaphore.NewWeighted(limit), make: make}
}

// acquire returns a value, or an error when ctx ends first.
func (p *pool[T]) acquire(ctx context.Context) (value T, err error) {
	if err := p.limit.Acquire(ctx, 1); err != nil {
		return value, err
	}
	if free, ok := p.free.Get().(*T); ok {
		return *free, nil
	}
	return p.make(), nil
}

// release makes an acquired value available again.
func (p *pool[T]) release(value T) {
	p.free.Put(&value)
	p.limit.Release(1)
}
