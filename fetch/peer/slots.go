package peer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// maxSends is how many of its copies of one image a node sends at once.
const maxSends = 3

// turn is how long a send keeps its slot when another one is turned away. A receiver
// that takes all it is sent, but slowly, would have the slot for days.
const turn = time.Minute

// slots are the sends under way.
type slots struct {
	turn time.Duration

	mu   sync.Mutex
	held map[disk.ID][]*slot // in the order they were taken
}

type slot struct {
	since time.Time
	end   context.CancelFunc
}

func newSlots() *slots { return &slots{turn: turn, held: map[disk.ID][]*slot{}} }

// take gives a slot to a send that end can end. It returns what gives the slot back,
// or false if there is none. Then the oldest send ends if it had its turn.
func (s *slots) take(id disk.ID, end context.CancelFunc) (free func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[id]
	if len(held) >= maxSends {
		if time.Since(held[0].since) >= s.turn {
			held[0].end()
		}
		return nil, false
	}
	mine := &slot{since: time.Now(), end: end}
	s.held[id] = append(held, mine)
	return func() { s.free(id, mine) }, true
}

func (s *slots) free(id disk.ID, mine *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := slices.DeleteFunc(s.held[id], func(other *slot) bool { return other == mine })
	if s.held[id] = left; len(left) == 0 {
		delete(s.held, id)
	}
}
