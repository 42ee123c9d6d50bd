package fetch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// stallError means that a body transferred almost no bytes during a whole window.
type stallError struct{ window time.Duration }

func (e *stallError) Error() string {
	return fmt.Sprintf("stalled: less than 1 KiB/s over %v", e.window)
}

// minRate is the rate in bytes per second below which a transfer counts as stalled.
const minRate = 1 << 10

// stallReader cancels a body that stalls: when one read blocks for the whole window, or when the rate
// is below minRate while reads were blocked for the length of the window. It counts only the time
// during which reads block, not the time that the disk needs between two reads.
type stallReader struct {
	io.Reader
	window time.Duration
	cancel context.CancelCauseFunc // must unblock a blocked Read

	blocked  time.Duration
	received int64
}

// StallReader returns a reader of r with stall detection. It calls cancel if r returned less than 1
// KiB/s while its reads were blocked for the length of window. cancel must unblock a blocked Read. The cause is an *Error.
func StallReader(r io.Reader, window time.Duration, cancel context.CancelCauseFunc) io.Reader {
	return &stallReader{Reader: r, window: window, cancel: cancel}
}

func (w *stallReader) Read(p []byte) (int, error) {
	begun := time.Now()
	stalled := &Error{Class: Network, Err: &stallError{w.window}}
	alarm := time.AfterFunc(w.window, func() { w.cancel(stalled) })
	n, err := w.Reader.Read(p)
	alarm.Stop()
	w.blocked += time.Since(begun)
	w.received += int64(n)
	if w.blocked < w.window {
		return n, err
	}
	if err == nil && float64(w.received) < minRate*w.blocked.Seconds() {
		w.cancel(stalled)
		err = stalled
	}
	w.blocked, w.received = 0, 0
	return n, err
}

// stallTransport is a RoundTripper with stall detection for the request body and the response body.
// It classifies errors.
type stallTransport struct {
	http.RoundTripper
	window    time.Duration // timeout for one piece of either body
	firstByte time.Duration // timeout for the first byte of the response; the RoundTripper enforces it too
}

// RoundTrip sends one request.
func (w *stallTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	caller := r.Context()
	ctx, cancel := context.WithCancelCause(caller)
	r = r.Clone(ctx)
	if r.Body != nil {
		sent := &requestBody{ReadCloser: r.Body, stallTransport: w}
		sent.alarm = time.AfterFunc(w.window, func() { cancel(&stallError{w.window}) })
		defer sent.alarm.Stop()
		r.Body = sent
	}
	resp, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		defer cancel(nil)
		return nil, roundTripError(caller, context.Cause(ctx), err)
	}
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && r.Method == http.MethodGet && resp.StatusCode < http.StatusMultipleChoices {
		cancel(nil)
		resp.Body.Close()
		return nil, Errorf(Refused, "the server does not send the length of its response, so a truncated response would not be detected")
	}
	body := watchBody(ctx, cancel, resp.Body, resp.ContentLength, w.window)
	if r.URL.Query().Has("list-type") && resp.StatusCode == http.StatusOK {
		body.Reader = &listBody{Reader: body.Reader}
	}
	resp.Body = body
	return resp, nil
}

// roundTripError is like requestError, but for a request that may stall. Its error does not wrap
// io.EOF, because minio would replace such an error by an error with the address.
func roundTripError(caller context.Context, cause, err error) error {
	var stall *stallError
	switch {
	case context.Cause(caller) != nil:
		return context.Cause(caller)
	case errors.As(cause, &stall):
		return &Error{Class: Network, Err: stall}
	case isConnectionLost(err), errors.Is(err, net.ErrClosed): // the connection was closed while the request was written
		return Errorf(Dropped, "connection broke before the response")
	}
	return requestError(caller, err)
}

// requestBody is the body of a request. The connection reads it in small pieces; each piece resets
// the timer.
type requestBody struct {
	io.ReadCloser
	*stallTransport
	alarm *time.Timer
}

func (o *requestBody) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	if err == nil {
		o.alarm.Reset(o.window)
	} else {
		o.alarm.Reset(o.window + o.firstByte)
	}
	return n, err
}

// responseBody is the body of a response.
type responseBody struct {
	io.Closer
	end context.CancelCauseFunc
	io.Reader
}

// watchBody returns a body that ends its request when it stalls, checks its length (-1: not known), and classifies
// errors. ctx is the context of the request, and cancel ends it.
func watchBody(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser, length int64, window time.Duration) *responseBody {
	return &responseBody{body, cancel, &boundedBody{
		Reader: &stallReader{Reader: body, window: window, cancel: cancel}, left: length, bounded: length >= 0,
		broken: func(left int64, err error) error { return bodyError(ctx, left, err) },
	}}
}

// CancelBody returns a body that ends its request when it is closed, or when it stalls for the length of window (0: it
// may stall). ctx is the context of the request, and cancel ends it. An error after that is the cause of the end.
func CancelBody(ctx context.Context, cancel context.CancelCauseFunc, body io.ReadCloser, window time.Duration) io.ReadCloser {
	b := &boundedBody{Reader: body, broken: func(_ int64, err error) error { return cmp.Or(context.Cause(ctx), err) }}
	if window > 0 {
		b.Reader = StallReader(body, window, cancel)
	}
	return &responseBody{body, cancel, b}
}

// Close ends the request.
func (i *responseBody) Close() error {
	defer i.end(nil)
	return i.Closer.Close()
}
