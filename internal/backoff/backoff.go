// Package backoff computes the delay between attempts that fail again and again.
package backoff

import "time"

// Doubling is a delay that doubles with each failure, from First up to Max.
type Doubling struct{ First, Max time.Duration }

// After returns the delay after one more failure. failures is the number of consecutive failures before it.
func (d Doubling) After(failures int) time.Duration {
	delay := d.First
	for ; failures > 0 && delay > 0 && delay < d.Max; failures-- {
		delay *= 2
	}
	return min(delay, d.Max)
}
