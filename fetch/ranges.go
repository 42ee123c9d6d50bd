package fetch

import (
	"context"
	"errors"
	"io"
)

// RangeReader reads parts of an image where it is declared to be, for those who have
// most of it from elsewhere. It may be used by any number of goroutines at once.
type RangeReader struct{ t *transfer }

// NewRangeReader returns a reader of parts of r, whose image must not be packed and must
// have a declared Digest: nothing else tells bytes of two versions apart. Its errors
// are those of Download. Close it.
func (c *Client) NewRangeReader(r Request) (*RangeReader, error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Digest.IsZero():
		err = failf(BadConfig, "parts of an image need a declared checksum")
	case t.packing != notPacked:
		err = failf(BadConfig, "a packed image cannot be read in parts")
	}
	if err != nil {
		t.net.close()
		return nil, err
	}
	t.limiter = nil // the reader's concern, who has other sources too
	t.hasDigest = true
	return &RangeReader{t}, nil
}

// Close lets go of connections.
func (r *RangeReader) Close() { r.t.net.close() }

// Open returns the bytes from from to to, to excluded, of the first address that
// has them. Nothing vouches for them. Exactly these come, or an *Error; watching
// for stalls is the caller's concern.
func (r *RangeReader) Open(ctx context.Context, from, to int64) (io.ReadCloser, error) {
	var failed []*Error
	for _, a := range r.t.addresses[r.t.request.SkipAddresses:] {
		body, err := r.open(ctx, a, from, to)
		if err == nil {
			return body, nil
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		known, ok := ClassifyDiskError(err).(*Error)
		if !ok {
			known = &Error{Class: Network, Err: err}
		}
		failed = append(failed, known.withURL(a.String()))
	}
	return nil, allFailed(failed)
}

func (r *RangeReader) open(ctx context.Context, a address, from, to int64) (io.ReadCloser, error) {
	var got *response
	err := r.t.dispatch(ctx, a, func(_ context.Context, src source) (err error) {
		got, err = src.get(ctx, rangeRequest{offset: from, end: to, total: -1})
		return err
	})
	if errors.Is(err, errChanged) {
		err = failf(Refused, "it has not the bytes %d-%d", from, to-1)
	}
	if err != nil {
		return nil, err
	}
	if got.start != from || got.total >= 0 && got.total < to {
		got.body.Close()
		return nil, failf(Refused, "the server does not send parts of the file")
	}
	return limitedBody{io.LimitReader(got.body, to-from), got.body}, nil
}

// limitedBody is a body of which no more is read than was asked for.
type limitedBody struct {
	io.Reader
	io.Closer
}
