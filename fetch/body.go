package fetch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
)

// body reads the body of an answer as it has to be read: watched for stalls, held
// to its length, and no faster than allowed.
func (t *transfer) body(ctx context.Context, cancel context.CancelCauseFunc, got *answer) io.Reader {
	watch := &watched{Reader: got.body, window: t.client.times().stall, giveUp: cancel}
	whole := &received{Reader: watch, left: got.total - got.start, bounded: got.total >= 0,
		broken: func(left int64, err error) error { return bodyError(ctx, left, err) }}
	return Pace(ctx, whole, t.limiter)
}

// notPage refuses a web page, as portals and proxies send it in place of what was
// asked for: that passes, where a file that is no image would be final.
func notPage(body io.Reader) (io.Reader, error) {
	head := make([]byte, 512)
	n, err := io.ReadFull(body, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	if strings.HasPrefix(http.DetectContentType(head[:n]), "text/html") {
		return nil, failf(Refused, "the server answers with a web page in place of the file")
	}
	return io.MultiReader(bytes.NewReader(head[:n]), body), nil
}

// received reads a body, holds it to the length that was promised, and gives every
// failure of the network its class.
type received struct {
	io.Reader
	left    int64
	bounded bool
	broken  func(left int64, err error) error
}

func (r *received) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.left -= int64(n)
	switch {
	case r.bounded && r.left < 0:
		return n, failf(Source, "the body is longer than the server said")
	case err == io.EOF && r.bounded && r.left > 0:
		err = io.ErrUnexpectedEOF
	case err == nil || err == io.EOF:
		return n, err
	}
	return n, r.broken(r.left, err)
}

// bodyError tells a stall and the caller's cancellation from a broken connection.
func bodyError(ctx context.Context, left int64, err error) error {
	var stall *stallError
	var known *Error
	switch cause := context.Cause(ctx); {
	case errors.As(err, &stall):
		return &Error{Class: Network, Err: stall}
	case errors.As(cause, &stall):
		return &Error{Class: Network, Err: stall}
	case cause != nil:
		return cause
	case errors.As(err, &known):
		return err
	case left > 0:
		return failf(Dropped, "connection broke %d bytes before the end: %w", left, bare(err))
	}
	return failf(Dropped, "connection broke: %w", bare(err))
}
