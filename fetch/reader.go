package fetch

import (
	"context"
	"io"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Progress is how far a fetch has come, in bytes of what crosses the network (packed
// bytes where the image is packed), and in bytes of the image where it comes from
// other nodes, which do not send zeros. Any number of goroutines may read it
// while a fetch writes it. One Progress belongs to one fetch at a time.
type Progress struct {
	Done atomic.Int64
	// UpstreamBytes is what crossed the network from an origin, with the bytes that were
	// asked for again, Peers the same from other nodes.
	UpstreamBytes, PeerBytes atomic.Int64
	Total                    atomic.Int64 // -1: not known

	// Joined is set while the bytes that came are of more than one answer. If
	// their checksum is wrong then, another try as a Whole may bring the right ones.
	Joined atomic.Bool

	// AddressIndex is where the bytes come from: 0 is Request.URL, 1 the first mirror.
	AddressIndex atomic.Int64
}

// CountReader returns r with two additions: after ctx ends, a Read fails with ctx.Err(),
// and the bytes of each Read are added to every counter.
func CountReader(ctx context.Context, r io.Reader, counters ...*atomic.Int64) io.Reader {
	return &countReader{ctx, r, counters}
}

type countReader struct {
	ctx      context.Context
	r        io.Reader
	counters []*atomic.Int64
}

func (c *countReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	for _, counter := range c.counters {
		counter.Add(int64(n))
	}
	return n, err
}

// ErrorRecorder is a reader that keeps an error of R other than io.EOF. Where a consumer
// of the bytes (a parser, a disk) fails, Err distinguishes a failed read from a failure
// of the consumer.
type ErrorRecorder struct {
	R   io.Reader
	Err error
}

func (e *ErrorRecorder) Read(p []byte) (int, error) {
	n, err := e.R.Read(p)
	if err != nil && err != io.EOF {
		e.Err = err
	}
	return n, err
}

// rateLimitReader reads no faster than a limit. Where it waits, it waits outside of the
// reads of the network, so that the limit is never taken for a stall.
type rateLimitReader struct {
	io.Reader
	burst int
	wait  func(n int) error
}

// RateLimitReader limits r to what l allows; without a limit, nil, it is r itself. The reading
// ends with ctx.
func RateLimitReader(ctx context.Context, r io.Reader, l *rate.Limiter) io.Reader {
	if l == nil {
		return r
	}
	return rateLimitReader{r, l.Burst(), func(n int) error { return l.WaitN(ctx, n) }}
}

func (r rateLimitReader) Read(p []byte) (int, error) {
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
