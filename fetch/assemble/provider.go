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
	Name string // in the Health, and in the error of a transfer without a usable provider
	// Host serves one request at a time, for all its providers together, unless the provider has Limits.
	Host string
	// Limits returns how many requests may run at a time, and their length in bytes. nil: one, with the bytes that the
	// provider sends in half a second.
	Limits func() (requests int, length int64)
	// Reserve: the provider is read only if the others deliver nothing, see Assembly.ReserveAfter.
	Reserve bool
	// Invalid returns the error for a segment that does not match its hash.
	Invalid func(s Segment) error
	// Delivered is called for each right segment that was still missing, with the body that delivered it. It may be nil.
	// It must not block, and is called concurrently.
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

// decorated returns a Provider like p, whose bodies are read through the result of reader.
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

// Limited limits the rate of p. Providers with the same limiter share its rate. A nil limiter means no limit.
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
