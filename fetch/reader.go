package fetch

import (
	"context"
	"io"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Progress counts the bytes of a transfer. It may be read concurrently while one transfer writes it.
type Progress struct {
	Done    atomic.Int64
	Resumed atomic.Int64 // what Done was when the transfer was last resumed
	// UpstreamBytes counts all bytes that were transferred from or to the upstream, including repeated
	// ones. PeerBytes counts bytes from peers.
	UpstreamBytes, PeerBytes atomic.Int64
	Total                    atomic.Int64 // -1: unknown

	// Sender is the address of the peer that sent the last chunk, http://HOST:PORT; nil: no peer sent one.
	Sender atomic.Pointer[string]

	// Joined is true if the bytes are from more than one response. If the checksum of these bytes is
	// wrong, another attempt with Request.Restart may succeed.
	Joined atomic.Bool

	// AddressIndex is the index of the address in use: 0 is Request.URL, 1 the first mirror.
	AddressIndex atomic.Int64
}

// Resume sets Done and Resumed at the start of a transfer: done bytes exist already.
func (p *Progress) Resume(done int64) {
	p.Done.Store(done)
	p.Resumed.Store(done)
}

// CountReader returns a reader of r that adds the length of each Read to every counter. After ctx
// ends, Read returns ctx.Err().
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

// ErrorRecorder records the errors of R except io.EOF. When a consumer of the bytes (a parser, a
// disk) fails, Err shows whether the read or the consumer failed.
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

// rateLimitReader waits after each network read, not during it, so that stall detection ignores the
// wait.
type rateLimitReader struct {
	io.Reader
	burst int
	wait  func(n int) error
}

// RateLimitReader returns a reader of r that is limited to the rate of l, or r itself if l is nil. A
// Read that waits fails when ctx ends.
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

// NewLimiter returns a limiter for perSecond bytes per second, with bursts of at most a tenth of a
// second. All readers with this limiter share the rate. If perSecond is 0, it returns nil, which
// means no limit.
func NewLimiter(perSecond int64) *rate.Limiter {
	if perSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(perSecond), int(min(max(perSecond/10, 512), 1<<20)))
}
