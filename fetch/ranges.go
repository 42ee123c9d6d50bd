package fetch

import (
	"context"
	"errors"
	"io"
)

// RangeReader reads parts of an image from its declared addresses. Any number of goroutines
// may use it at once.
type RangeReader struct{ t *transfer }

// NewRangeReader returns a RangeReader for the image of r. The image must not be packed and
// must have a declared Digest: nothing else distinguishes the bytes of two versions. Errors
// are those of Download. The caller closes the RangeReader.
func (c *Client) NewRangeReader(r Request) (*RangeReader, error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return nil, err
	}
	switch {
	case r.Digest.IsZero():
		err = failf(BadConfig, "a partial download requires a declared checksum")
	case t.packing != notPacked:
		err = failf(BadConfig, "a packed image cannot be downloaded in parts")
	}
	if err != nil {
		t.net.close()
		return nil, err
	}
	t.limiter = nil // the caller has other sources too, and limits their sum
	t.hasDigest = true
	return &RangeReader{t}, nil
}

// Close closes idle connections.
func (r *RangeReader) Close() { r.t.net.close() }

// Open returns the bytes from from (inclusive) to to (exclusive), from the first address
// that works. They are not verified. A read of fewer bytes fails with an *Error. The caller
// detects stalls.
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
		err = failf(Refused, "it does not have the bytes %d-%d", from, to-1)
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

// limitedBody is a body that ends at the requested end.
type limitedBody struct {
	io.Reader
	io.Closer
}
