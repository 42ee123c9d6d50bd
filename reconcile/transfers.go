package reconcile

import (
	"maps"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Transfer is an action under way.
type Transfer struct {
	Action   Action
	Progress *fetch.Progress
	Started  time.Time
}

// transfers are the actions under way, for those who show them.
type transfers struct {
	mu  sync.Mutex
	now map[Key]Transfer
}

func (t *transfers) add(key Key, one Transfer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now == nil {
		t.now = map[Key]Transfer{}
	}
	t.now[key] = one
}

func (t *transfers) remove(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.now, key)
}

// Transfers returns the actions under way. It may be called by any goroutine.
func (r *Reconciler) Transfers() map[Key]Transfer {
	r.transfers.mu.Lock()
	defer r.transfers.mu.Unlock()
	return maps.Clone(r.transfers.now)
}
