package reconcile

import (
	"slices"
	"sync"
	"time"
)

// sequenceSum is what the sequences came to.
type sequenceSum struct {
	sync.Mutex
	changes, taken int
	after          []time.Duration
	late           map[string]time.Duration // by form
	stalls         []stall
}

// stall is for how long this process got no processor, when that was over.
type stall struct {
	over time.Time
	long time.Duration
}

// beat notes stalls: on a busy machine they are nobody's fault.
func (s *sequenceSum) beat(stop <-chan struct{}) {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		now := time.Now()
		if late := now.Sub(last) - every; late > every {
			s.Lock()
			s.stalls = append(s.stalls, stall{now, late})
			s.Unlock()
		}
		last = now
	}
}

// stalled is how much of the time since then was lost to stalls.
func (s *sequenceSum) stalled(since time.Time) (sum time.Duration) {
	s.Lock()
	defer s.Unlock()
	for _, one := range s.stalls {
		if one.over.After(since) {
			sum += one.long
		}
	}
	return sum
}

func (s *sequenceSum) middle() time.Duration {
	slices.Sort(s.after)
	return s.after[len(s.after)/2]
}
