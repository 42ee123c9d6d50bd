package backup

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
)

const (
	// budgetBlocks is the number of unpacked blocks that all restores together have in memory, and
	// budgetFiles the number of block files: 38 MiB in total. This is enough for two restores with
	// DefaultWorkers.
	budgetBlocks = 12
	budgetFiles  = 6
)

// MemoryBudget limits the memory of all restores of a process that share it. A restore waits while
// the budget is used up. It is safe for concurrent use.
type MemoryBudget struct {
	blocks, files *pool[[]byte]
	decoders      *pool[*decoder]
}

// NewMemoryBudget returns a budget of 38 MiB. It allocates no memory yet.
func NewMemoryBudget() *MemoryBudget {
	return &MemoryBudget{
		blocks:   newPool(budgetBlocks, func() []byte { return make([]byte, blockSize) }),
		files:    newPool(budgetFiles, func() []byte { return make([]byte, maxBlockFile+1) }),
		decoders: newPool(decoders, newDecoder),
	}
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
