package reconcile

import "time"

// clock tells the wall time and notices when it was set: then it has moved by
// another amount than the monotonic clock.
type clock struct {
	last  time.Time
	base  time.Time // the first look since it was set last
	steps int       // how often it was set
	// recorded is the count of steps up to which the times on a disk are right, by its uuid.
	recorded map[string]int
}

// maxSkew is how far the two clocks may part, or a thousandth of the time if that is
// more, which a clock that is slewed does not.
const maxSkew = time.Minute

func (c *clock) now() time.Time {
	now := time.Now()
	if c.last.IsZero() {
		c.base = now
	} else if clockSkew(now, c.last) > maxSkew || clockSkew(now, c.base) > max(maxSkew, now.Sub(c.base)/1000) {
		c.steps++
		c.base = now
	}
	c.last = now
	return now.UTC()
}

// clockSkew is how far the wall clock has moved otherwise than the monotonic one.
func clockSkew(now, then time.Time) time.Duration {
	return (now.Round(0).Sub(then.Round(0)) - now.Sub(then)).Abs()
}

// outdated reports whether the clock was set since the times on a disk were right, for
// all that this process knows.
func (c *clock) outdated(uuid string) bool { return c.recorded[uuid] < c.steps }

// record takes note that they are.
func (c *clock) record(uuid string) {
	if c.recorded == nil {
		c.recorded = map[string]int{}
	}
	c.recorded[uuid] = c.steps
}
