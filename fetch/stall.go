package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// stallError says that a body came to (nearly) nothing for a whole window.
type stallError struct{ window time.Duration }

func (e *stallError) Error() string {
	return fmt.Sprintf("stalled: less than 1 KiB/s over %v", e.window)
}

// minRate is the rate, in bytes per second, below which a transfer has stalled.
const minRate = 1 << 10

// stallReader reads a body and gives it up when it stalls: when one read waits for
// the whole window, or when all reads of a window's worth of waiting together
// stayed below leastRate. Only waiting for the network counts; the time that the
// disk takes between two reads does not.
type stallReader struct {
	io.Reader
	window time.Duration
	cancel context.CancelCauseFunc // must make Read return

	waited time.Duration
	got    int64
}

// StallReader gives up r, by giveUp, when it stalls: when less than 1 KiB/s came while
// window was spent waiting in its reads.
func StallReader(r io.Reader, window time.Duration, giveUp context.CancelCauseFunc) io.Reader {
	return &stallReader{Reader: r, window: window, cancel: giveUp}
}

func (w *stallReader) Read(p []byte) (int, error) {
	begun := time.Now()
	alarm := time.AfterFunc(w.window, func() { w.cancel(&stallError{w.window}) })
	n, err := w.Reader.Read(p)
	alarm.Stop()
	w.waited += time.Since(begun)
	w.got += int64(n)
	if w.waited < w.window {
		return n, err
	}
	if err == nil && float64(w.got) < minRate*w.waited.Seconds() {
		w.cancel(&stallError{w.window})
		err = &stallError{w.window}
	}
	w.waited, w.got = 0, 0
	return n, err
}

// stallTransport makes requests that end when they stall, whichever side it is that does
// not take or send, and gives their failures a class.
type stallTransport struct {
	http.RoundTripper
	window    time.Duration // for a piece of either body
	firstByte time.Duration // for the beginning of the answer; the RoundTripper sees to it too
}

// RoundTrip makes one request.
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
		return nil, failf(Refused, "the server does not tell the length of its answer, so that a cut could not be told from the end")
	}
	watch := &stallReader{Reader: resp.Body, window: w.window, cancel: cancel}
	var body io.Reader = &boundedBody{Reader: watch, left: resp.ContentLength, bounded: resp.ContentLength >= 0,
		broken: func(left int64, err error) error { return bodyError(ctx, left, err) }}
	if r.URL.Query().Has("list-type") && resp.StatusCode == http.StatusOK {
		body = &listBody{Reader: body}
	}
	resp.Body = &responseBody{resp.Body, cancel, body}
	return resp, nil
}

// roundTripError is requestError for a request that may have stalled. It says nothing
// of an EOF, which minio would replace by an address.
func roundTripError(caller context.Context, cause, err error) error {
	var stall *stallError
	switch {
	case context.Cause(caller) != nil:
		return context.Cause(caller)
	case errors.As(cause, &stall):
		return &Error{Class: Network, Err: stall}
	case isConnectionLost(err), errors.Is(err, net.ErrClosed): // while it was written to
		return failf(Dropped, "connection broke before the answer")
	}
	return requestError(caller, err)
}

// requestBody is the body of a request. The connection takes it in small pieces: each
// of them puts the alarm off.
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

// responseBody is the body of an answer.
type responseBody struct {
	io.Closer
	end context.CancelCauseFunc
	io.Reader
}

// Close ends the request.
func (i *responseBody) Close() error {
	defer i.end(nil)
	return i.Closer.Close()
}
