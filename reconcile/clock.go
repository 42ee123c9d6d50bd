package reconcile

import "time"

// clock tells the wall time and notices when it was set: then it has moved by
// another amount than the monotonic clock.
type clock struct {
	last time.Time
	// step says that it was set, until that has been noted beside every copy.
	step bool
}

// stepped is how far the two clocks may part between two looks: more than a clock
// that is slewed parts in a day.
const stepped = time.Minute

func (c *clock) now() time.Time {
	now := time.Now()
	if !c.last.IsZero() {
		parted := now.Round(0).Sub(c.last.Round(0)) - now.Sub(c.last)
		c.step = c.step || parted.Abs() > stepped
	}
	c.last = now
	return now.UTC()
}
