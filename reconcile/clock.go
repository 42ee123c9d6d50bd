package reconcile

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/system"
)

// clock reads the two clocks of the node and counts how often the wall clock was set: how often it
// advanced by more or less time than the steady clock.
type clock struct {
	now   func() system.Instant // the time of both clocks
	last  system.Instant        // the last observation
	base  system.Instant        // the first observation after the wall clock was last set
	steps int                   // how often the wall clock was set
	// recorded has, by disk uuid, the value that steps had when the times in the records of the
	// disk were last consistent with the wall clock.
	recorded map[string]int
}

// maxSkew is the largest difference between the two clocks that is no step. Since base, a thousandth
// of the time is no step either. A slewed clock stays within these limits.
const maxSkew = time.Minute

// observe returns the time of both clocks, and counts a step if the wall clock was set since the
// last call.
func (c *clock) observe() system.Instant {
	now := c.now()
	if c.last == (system.Instant{}) {
		c.base = now
	} else if skew(now, c.last) > maxSkew || skew(now, c.base) > max(maxSkew, now.Steady.Sub(c.base.Steady)/1000) {
		// The comparison with base finds many small steps in the same direction.
		c.steps++
		c.base = now
	}
	c.last = now
	return now
}

// skew returns the difference between the advances of the wall clock and the steady clock.
func skew(now, then system.Instant) time.Duration {
	return (now.Wall.Sub(then.Wall) - now.Steady.Sub(then.Steady)).Abs()
}

// outdated reports whether the wall clock was set after the last call of record(uuid), as far as
// this process knows.
func (c *clock) outdated(uuid string) bool { return c.recorded[uuid] < c.steps }

// record notes that the times on a disk are consistent with the wall clock.
func (c *clock) record(uuid string) {
	if c.recorded == nil {
		c.recorded = map[string]int{}
	}
	c.recorded[uuid] = c.steps
}

// elapsed returns the time that has passed since an instant, by the clock that advanced more: the
// steady clock stops while the machine is suspended, and the wall clock can be set back.
func (c *clock) elapsed(since system.Instant) time.Duration {
	now := c.now()
	return max(now.Steady.Sub(since.Steady), now.Wall.Sub(since.Wall))
}
