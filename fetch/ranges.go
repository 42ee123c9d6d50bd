package fetch

import (
	"context"
	"errors"
	"io"
)

// RangeReader reads ranges of an image from its declared addresses. It is safe for concurrent use.
type RangeReader struct{ t *transfer }

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
		err = failf(BadConfig, "a packed image cannot be downloaded in parts")
	}
	if err != nil {
		t.net.close()
		return nil, err
	}
	t.limiter = nil // the caller limits the total rate of all its sources
	t.hasDigest = true
	return &RangeReader{t}, nil
}

// Close closes idle connections.
func (r *RangeReader) Close() { r.t.net.close() }

// Open returns the bytes [start, end) from the first address that works. They are not verified. If
// the body is too short, a read fails with an *Error. The caller detects stalls.
func (r *RangeReader) Open(ctx context.Context, start, end int64) (io.ReadCloser, error) {
	var failed []*Error
	for _, a := range r.t.addresses[r.t.request.SkipAddresses:] {
		body, err := r.open(ctx, a, start, end)
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

func (r *RangeReader) open(ctx context.Context, a address, start, end int64) (io.ReadCloser, error) {
	var got *response
	err := r.t.dispatch(ctx, a, func(_ context.Context, src source) (err error) {
		got, err = src.get(ctx, rangeRequest{offset: start, end: end, total: -1})
		return err
	})
	if errors.Is(err, errChanged) {
		err = failf(Refused, "it does not have the bytes %d-%d", start, end-1)
	}
	if err != nil {
		return nil, err
	}
	if got.start != start || got.total >= 0 && got.total < end {
		got.body.Close()
		return nil, failf(Refused, "the server does not send parts of the file")
	}
	return limitedBody{io.LimitReader(got.body, end-start), got.body}, nil
}

// limitedBody is a body that ends at the end of the requested range.
type limitedBody struct {
	io.Reader
	io.Closer
}
