package fetch

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/time/rate"
)

// paced reads no faster than a limit. Where it waits, it waits outside of the
// reads of the network, so that the limit is never taken for a stall.
type paced struct {
	io.Reader
	burst int
	wait  func(n int) error
}

// Pace limits r to what l allows; without a limit, nil, it is r itself. The reading
// ends with ctx.
func Pace(ctx context.Context, r io.Reader, l *rate.Limiter) io.Reader {
	if l == nil {
		return r
	}
	return paced{r, l.Burst(), func(n int) error { return l.WaitN(ctx, n) }}
}

func (r paced) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), r.burst)])
	if n > 0 {
		if werr := r.wait(n); werr != nil {
			return n, werr
		}
	}
	return n, err
}

// NewLimiter allows perSecond bytes, in bursts of at most a tenth of a second, for
// all readers together that Pace gets it for. 0 is no limit: nil.
func NewLimiter(perSecond int64) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(min(max(perSecond/10, 512), 1<<20)))
}

// stallError says that a body came to (nearly) nothing for a whole window.
type stallError struct{ window time.Duration }

func (e *stallError) Error() string {
	return fmt.Sprintf("stalled: less than 1 KiB/s over %v", e.window)
}

// leastRate is the rate, in bytes per second, below which a transfer has stalled.
const leastRate = 1 << 10

// watched reads a body and gives it up when it stalls: when one read waits for
// the whole window, or when all reads of a window's worth of waiting together
// stayed below leastRate. Only waiting for the network counts; the time that the
// disk takes between two reads does not.
type watched struct {
	io.Reader
	window time.Duration
	giveUp context.CancelCauseFunc // must make Read return

	waited time.Duration
	got    int64
}

// Watch gives up r, by giveUp, when it stalls: when less than 1 KiB/s came while
// window was spent waiting in its reads.
func Watch(r io.Reader, window time.Duration, giveUp context.CancelCauseFunc) io.Reader {
	return &watched{Reader: r, window: window, giveUp: giveUp}
}

func (w *watched) Read(p []byte) (int, error) {
	begun := time.Now()
	alarm := time.AfterFunc(w.window, func() { w.giveUp(&stallError{w.window}) })
	n, err := w.Reader.Read(p)
	alarm.Stop()
	w.waited += time.Since(begun)
	w.got += int64(n)
	if w.waited < w.window {
		return n, err
	}
	if err == nil && float64(w.got) < leastRate*w.waited.Seconds() {
		w.giveUp(&stallError{w.window})
		err = &stallError{w.window}
	}
	w.waited, w.got = 0, 0
	return n, err
}
