package reconcile

import "time"

// clock tells the wall time and notices when it was set: then it has moved by
// another amount than the monotonic clock.
type clock struct{ last time.Time }

// stepped is how far the two clocks may part between two looks: more than a clock
// that is slewed parts in a day.
const stepped = time.Minute

func (c *clock) now() (now time.Time, step bool) {
	now = time.Now()
	if !c.last.IsZero() {
		parted := now.Round(0).Sub(c.last.Round(0)) - now.Sub(c.last)
		step = parted.Abs() > stepped
	}
	c.last = now
	return now.UTC(), step
}
