package peer

import (
	"context"
	"slices"
	"sync"
)

// Board holds what a node tells of itself. Its methods may be called concurrently.
type Board struct {
	mu      sync.Mutex
	shown   *edition      // nil until something was published
	changed chan struct{} // closed when the ETag is another one
}

// NewBoard returns a board with nothing on it.
func NewBoard() *Board { return &Board{changed: make(chan struct{})} }

// Publish shows s from now on. Who waits for a change is answered if there is one but
// for what is volatile. Nothing of s may be written to afterwards.
func (b *Board) Publish(s State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown != nil && alike(&b.shown.state, &s) {
		b.shown = &edition{state: s, etag: b.shown.etag}
		return
	}
	next := &edition{state: s, etag: etagOf(s)}
	if b.shown == nil || b.shown.etag != next.etag {
		close(b.changed)
		b.changed = make(chan struct{})
	}
	b.shown = next
}

// now returns what is shown, nil before there is anything, and what tells of a change.
func (b *Board) now() (*edition, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shown, b.changed
}

// wait returns what is shown as soon as its ETag is not etag, or when ctx ends.
func (b *Board) wait(ctx context.Context, etag string) *edition {
	for {
		shown, changed := b.now()
		if shown == nil || shown.etag != etag {
			return shown
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return shown
		}
	}
}

// alike reports whether nothing but what is volatile differs.
func alike(a, b *State) bool {
	return a.Node == b.Node && a.Config == b.Config && slices.EqualFunc(a.Disks, b.Disks, alikeDisk)
}

func alikeDisk(a, b Disk) bool {
	return a.Name == b.Name && a.UUID == b.UUID && a.Problem == b.Problem && a.Unclear == b.Unclear &&
		slices.EqualFunc(a.Copies, b.Copies, alikeCopy)
}

func alikeCopy(a, b Copy) bool {
	if (a.Try == nil) != (b.Try == nil) || a.Try != nil && a.Try.lasting() != b.Try.lasting() {
		return false
	}
	a, b = a.lasting(), b.lasting()
	a.Try, b.Try = nil, nil
	return a == b
}
