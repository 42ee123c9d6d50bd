package reconcile

import "time"

// clock tells the wall time and notices when it was set: then it has moved by
// another amount than the monotonic clock.
type clock struct {
	last  time.Time
	base  time.Time // the first look since it was set last
	steps int       // how often it was set
	// noted is the count of steps up to which the times on a disk are right, by its uuid.
	noted map[string]int
}

// stepped is how far the two clocks may part, or a thousandth of the time if that is
// more, which a clock that is slewed does not.
const stepped = time.Minute

func (c *clock) now() time.Time {
	now := time.Now()
	if c.last.IsZero() {
		c.base = now
	} else if apart(now, c.last) > stepped || apart(now, c.base) > max(stepped, now.Sub(c.base)/1000) {
		c.steps++
		c.base = now
	}
	c.last = now
	return now.UTC()
}

// apart is how far the wall clock has moved otherwise than the monotonic one.
func apart(now, then time.Time) time.Duration {
	return (now.Round(0).Sub(then.Round(0)) - now.Sub(then)).Abs()
}

// outdated reports whether the clock was set since the times on a disk were right, for
// all that this process knows.
func (c *clock) outdated(uuid string) bool { return c.noted[uuid] < c.steps }

// note takes note that they are.
func (c *clock) note(uuid string) {
	if c.noted == nil {
		c.noted = map[string]int{}
	}
	c.noted[uuid] = c.steps
}
