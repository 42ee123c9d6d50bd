package fetch

import (
	"context"
	"errors"
	"io"
	"sync"
)

// ErrNoRanges means that a server does not send parts of the file, or that its file does not have the range.
var ErrNoRanges = errors.New("the server does not send parts of the file")

// ErrPacked means that ranges of the file are not ranges of the image, because the file is packed.
var ErrPacked = errors.New("a packed image cannot be downloaded in parts")

// ErrOtherSize means that a file is not the image, because it has another size.
var ErrOtherSize = errors.New("the file has another size")

// RangeReader reads ranges of an image from one of its declared addresses. It is safe for concurrent use.
type RangeReader struct {
	t    *transfer
	at   address
	size int64 // of the image; 0: not known

	mu       sync.Mutex
	answered bool
	etag     string // of the first response
	noRanges bool   // the server sent the whole file: each further request would transfer useless bytes
}

// OpenRanges returns one reader for each address of r, in the order of attempts. It sends no request. size is the size
// of the image; 0: not known. The image must not be packed. r.Digest must be declared, because otherwise a change of
// the file would not be detected. Errors are those of Download. The caller calls done at the end.
func (c *Client) OpenRanges(r Request, size int64) (addresses []*RangeReader, done func(), err error) {
	t, err := c.newTransfer(r, nil)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case r.Digest.IsZero():
		err = Errorf(BadConfig, "a partial download requires a declared checksum")
	case t.packing != notPacked:
		err = &Error{Class: BadConfig, Err: ErrPacked}
	}
	if err != nil {
		t.net.close()
		return nil, nil, err
	}
	t.net.keepConnections()
	t.hasDigest = true
	for _, a := range t.addresses[r.SkipAddresses:] {
		addresses = append(addresses, &RangeReader{t: t, at: a, size: size})
	}
	return addresses, t.net.close, nil
}

// Open returns the bytes [start, end), not verified. Errors are those of Download. If the body is too short, the class
// is Dropped.
func (r *RangeReader) Open(ctx context.Context, start, end int64) (io.ReadCloser, error) {
	attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, but not ctx
	got, err := r.open(attempt, start, end)
	if err == nil {
		body := watchBody(attempt, cancel, got.body, end-start, r.t.client.timings().stall)
		body.Reader = io.LimitReader(body.Reader, end-start)
		return body, nil
	}
	cancel(nil)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	known, ok := ClassifyDiskError(err).(*Error)
	if !ok {
		known = &Error{Class: Network, Err: err}
	}
	return nil, known.withURL(r.at.String())
}

func (r *RangeReader) open(ctx context.Context, start, end int64) (*response, error) {
	r.mu.Lock()
	noRanges := r.noRanges
	r.mu.Unlock()
	if noRanges {
		return nil, &Error{Class: Refused, Err: ErrNoRanges}
	}
	var got *response
	err := r.t.dispatch(ctx, r.at, func(_ context.Context, src source) (err error) {
		got, err = src.get(ctx, rangeRequest{offset: start, end: end, total: -1})
		return err
	})
	if errors.Is(err, errChanged) {
		err = Errorf(Refused, "%w: it does not have the bytes %d-%d", ErrNoRanges, start, end-1)
	}
	if err != nil {
		return nil, err
	}
	if err := r.check(got, start, end); err != nil {
		got.body.Close()
		return nil, err
	}
	return got, nil
}

// check returns an error unless a response has the requested range and the version of the first response.
func (r *RangeReader) check(got *response, start, end int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.noRanges = got.start != start
	switch {
	case r.noRanges, got.total >= 0 && got.total < end && r.size == 0:
		return &Error{Class: Refused, Err: ErrNoRanges}
	case got.total >= 0 && r.size > 0 && got.total != r.size:
		return Errorf(BadSource, "%w: it has %d bytes, not %d", ErrOtherSize, got.total, r.size)
	case !r.answered:
		r.answered, r.etag = true, got.etag
	case r.etag != "" && got.etag != "" && got.etag != r.etag:
		return Errorf(Network, "the file changed at its source during the transfer")
	}
	return nil
}
