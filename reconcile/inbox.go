package reconcile

import "sync"

// inbox passes items from other goroutines to the goroutine of a Loop. Its methods may be called
// concurrently.
type inbox[T any] struct {
	ready chan struct{} // has a value after an item was added; one value may stand for several items
	mu    sync.Mutex
	items []T
}

func newInbox[T any]() *inbox[T] { return &inbox[T]{ready: make(chan struct{}, 1)} }

func (b *inbox[T]) add(item T) {
	b.mu.Lock()
	b.items = append(b.items, item)
	b.mu.Unlock()
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take returns the items since the last call.
func (b *inbox[T]) take() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.items
	b.items = nil
	return taken
}
