package assemble

import (
	"context"
	"io"
	"sync/atomic"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Provider is a place that has bytes of an image. It is safe for concurrent use.
type Provider interface {
	// Open returns the bytes [from, to), which nobody has verified. The body ends there, or with an error before. It must also
	// end with an error if it stalls.
	Open(ctx context.Context, from, to int64) (io.ReadCloser, error)
}

// Candidate is a provider that an assembly may use, and how.
type Candidate struct {
	Provider
	Name string // of its health; also in the error of a transfer without a usable provider
	// Host serves one request of all its providers at a time, unless the provider has Limits.
	Host string
	// Limits returns how many requests may run at a time, and their length in bytes. nil: one, with the bytes that the
	// provider sends in half a second.
	Limits func() (requests int, length int64)
	// Reserve: the provider is read if the others deliver nothing, see Assembly.ReserveAfter.
	Reserve bool
	// Invalid returns the error for a segment of which the provider sent other bytes.
	Invalid func(s Segment) error
	// Delivered is called for each segment that was right and still missing, with the body that had it. nil: nobody
	// wants to know. It must not block, and is called concurrently.
	Delivered func(body io.ReadCloser)
}

// Open is a function that implements Provider.
type Open func(ctx context.Context, from, to int64) (io.ReadCloser, error)

// Open implements Provider.
func (f Open) Open(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	return f(ctx, from, to)
}

// body is a body that a decorator has changed.
type body struct {
	io.Reader
	close func() error
}

// Close implements io.Closer.
func (b body) Close() error { return b.close() }

// decorated returns p with other bodies.
func decorated(p Provider, reader func(ctx context.Context, r io.Reader) io.Reader) Provider {
	return Open(func(ctx context.Context, from, to int64) (io.ReadCloser, error) {
		b, err := p.Open(ctx, from, to)
		if err != nil {
			return nil, err
		}
		return body{reader(ctx, b), b.Close}, nil
	})
}

// Counted adds the bytes that p sends to the counters.
func Counted(p Provider, counters ...*atomic.Int64) Provider {
	return decorated(p, func(ctx context.Context, r io.Reader) io.Reader { return fetch.CountReader(ctx, r, counters...) })
}

// Limited limits the rate of p. Providers with the same limiter share it. nil: there is no limit.
func Limited(p Provider, l *rate.Limiter) Provider {
	return decorated(p, func(ctx context.Context, r io.Reader) io.Reader { return fetch.RateLimitReader(ctx, r, l) })
}

// causeOf returns the cause of ctx if ctx has ended, because err is then only a consequence of it.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
