package peer

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// pace is how often a node is asked.
type pace struct {
	wait  time.Duration // for a change, in one question
	least time.Duration // from one question to the next
	retry time.Duration // after the first failure, then twice as long each time
	most  time.Duration // after many
}

var usual = pace{wait: 30 * time.Second, least: 100 * time.Millisecond, retry: 300 * time.Millisecond, most: 5 * time.Second}

// listen asks a node until ctx ends. After a failure it asks without waiting for a
// change, so that a node that is back is known at once.
func (w *Watch) listen(ctx context.Context, f *followed, at Address) {
	known := Answer{URL: at.URL, Since: f.known.Since}
	retry := w.pace.retry
	for {
		wait := w.pace.wait
		if !known.Asked || known.Problem != "" {
			wait = 0
		}
		begun := time.Now()
		known = w.question(ctx, known, at, wait)
		if ctx.Err() != nil {
			return
		}
		w.learn(f, known)
		pause := w.pace.least - time.Since(begun)
		if known.Problem == "" {
			retry = w.pace.retry
		} else {
			pause = jitter(retry)
			retry = min(2*retry, w.pace.most)
		}
		if !rest(ctx, pause) {
			return
		}
	}
}

// question asks once and returns what is known then.
func (w *Watch) question(ctx context.Context, known Answer, at Address, wait time.Duration) Answer {
	begun := time.Now()
	s, etag, err := w.client.State(ctx, at, known.etag, wait)
	answered := known.Asked && known.Problem == ""
	known.Asked = true
	switch {
	case errors.Is(err, ErrUnchanged):
	case err != nil:
		if answered { // an open question broke off only now
			known.Since = time.Now()
		}
		known.Problem = err.Error()
		return known
	default:
		known.State, known.etag, known.Told = s, etag, time.Now()
	}
	known.Problem, known.Last, known.Since = "", begun, time.Now()
	return known
}

// jitter returns 75 to 125 % of d, so that not everybody asks at the same moment.
func jitter(d time.Duration) time.Duration {
	return time.Duration((0.75 + rand.Float64()/2) * float64(d))
}

// rest waits for d, and reports whether ctx has not ended.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
