package fetch

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// ErrNoRanges means that a server does not send parts of the file, or that its file does not have the range.
var ErrNoRanges = errors.New("the server does not send parts of the file")

// ErrPacked means that ranges of the file are not ranges of the image, because the file is packed.
var ErrPacked = errors.New("a packed image cannot be downloaded in parts")

// RangeReader reads ranges of an image from its declared addresses. It is safe for concurrent use.
type RangeReader struct {
	t *transfer

	working atomic.Int64 // the address that sent the last range: an address that fails is not tried for each range

	mu       sync.Mutex
	etags    map[string]string // of the first response, by the ID of the address
	noRanges map[string]bool   // addresses that sent the whole file: each request for a part of it would cost some of its bytes
}

// NewRangeReader returns a RangeReader for the image of r. The image must not be packed and must have
// a declared Digest, because otherwise a change of the file would not be detected. Errors are those
// of Download. The caller closes the RangeReader.
func (c *Client) NewRangeReader(r Request) (*RangeReader, error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Digest.IsZero():
		err = failf(BadConfig, "a partial download requires a declared checksum")
	case t.packing != notPacked:
		err = &Error{Class: BadConfig, Err: ErrPacked}
	}
	if err != nil {
		t.net.close()
		return nil, err
	}
	t.net.keepConnections()
	t.limiter = nil // the caller limits the total rate of all its sources
	t.hasDigest = true
	return &RangeReader{t: t, etags: map[string]string{}, noRanges: map[string]bool{}}, nil
}

// Close closes idle connections.
func (r *RangeReader) Close() { r.t.net.close() }

// Open returns the bytes [start, end) from the address that worked last, or else from the next one that works. They are
// not verified. Errors of the body are those of Download; a body that is too short has one of class Dropped.
func (r *RangeReader) Open(ctx context.Context, start, end int64) (io.ReadCloser, error) {
	body, _, err := r.OpenAfter(ctx, 0, start, end)
	return body, err
}

// Addresses returns the number of addresses.
func (r *RangeReader) Addresses() int { return len(r.t.addresses) - r.t.request.SkipAddresses }

// OpenAfter is Open without the first addresses. It also returns the size of the file; -1: the server does not send it.
func (r *RangeReader) OpenAfter(ctx context.Context, skip int, start, end int64) (body io.ReadCloser, total int64, err error) {
	var failed []*Error
	addresses := r.t.addresses[r.t.request.SkipAddresses+skip:]
	first := max(0, int(r.working.Load())-skip)
	for n := range addresses {
		n = (first + n) % len(addresses)
		a := addresses[n]
		attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, but not ctx
		got, err := r.open(attempt, a, start, end)
		if err == nil {
			r.working.Store(int64(n + skip))
			body := watchBody(attempt, cancel, got.body, end-start, r.t.client.timings().stall)
			body.Reader = io.LimitReader(body.Reader, end-start)
			return body, got.total, nil
		}
		cancel(nil)
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		known, ok := ClassifyDiskError(err).(*Error)
		if !ok {
			known = &Error{Class: Network, Err: err}
		}
		failed = append(failed, known.withURL(a.String()))
	}
	return nil, 0, allFailed(failed)
}

func (r *RangeReader) open(ctx context.Context, a address, start, end int64) (*response, error) {
	if r.hasNoRanges(a) {
		return nil, &Error{Class: Refused, Err: ErrNoRanges}
	}
	var got *response
	err := r.t.dispatch(ctx, a, func(_ context.Context, src source) (err error) {
		got, err = src.get(ctx, rangeRequest{offset: start, end: end, total: -1})
		return err
	})
	if errors.Is(err, errChanged) {
		err = failf(Refused, "%w: it does not have the bytes %d-%d", ErrNoRanges, start, end-1)
	}
	if err != nil {
		return nil, err
	}
	if got.start != start || got.total >= 0 && got.total < end {
		got.body.Close()
		if got.start != start {
			r.setNoRanges(a)
		}
		return nil, &Error{Class: Refused, Err: ErrNoRanges}
	}
	if !r.isSameVersion(a, got) {
		got.body.Close()
		return nil, failf(Network, "the file changed at its source during the transfer")
	}
	return got, nil
}

func (r *RangeReader) hasNoRanges(a address) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.noRanges[a.id()]
}

func (r *RangeReader) setNoRanges(a address) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noRanges[a.id()] = true
}

// isSameVersion reports whether a response does not have another strong ETag than the first one from the address.
func (r *RangeReader) isSameVersion(a address, got *response) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	first, known := r.etags[a.id()]
	if !known {
		r.etags[a.id()] = got.etag
	}
	return !known || first == "" || got.etag == "" || got.etag == first
}
