package fetch

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"io"
	"net"
	"net/http"
	"time"
)

// watchful makes requests that end when they stall, whichever side it is that does
// not take or send, and gives their failures a class.
type watchful struct {
	http.RoundTripper
	window time.Duration // for a piece of either body
	answer time.Duration // for the beginning of the answer; the RoundTripper sees to it too
}

// RoundTrip makes one request.
func (w *watchful) RoundTrip(r *http.Request) (*http.Response, error) {
	caller := r.Context()
	ctx, cancel := context.WithCancelCause(caller)
	r = r.Clone(ctx)
	if r.Body != nil {
		sent := &outgoing{ReadCloser: r.Body, watchful: w}
		sent.alarm = time.AfterFunc(w.window, func() { cancel(&stallError{w.window}) })
		defer sent.alarm.Stop()
		r.Body = sent
	}
	resp, err := w.RoundTripper.RoundTrip(r)
	if err != nil {
		defer cancel(nil)
		return nil, exchangeError(caller, context.Cause(ctx), err)
	}
	if resp.ContentLength < 0 && len(resp.TransferEncoding) == 0 && r.Method == http.MethodGet && resp.StatusCode < http.StatusMultipleChoices {
		cancel(nil)
		resp.Body.Close()
		return nil, failf(Refused, "the server does not tell the length of its answer, so that a cut could not be told from the end")
	}
	watch := &watched{Reader: resp.Body, window: w.window, giveUp: cancel}
	var body io.Reader = &received{Reader: watch, left: resp.ContentLength, bounded: resp.ContentLength >= 0,
		broken: func(left int64, err error) error { return bodyError(ctx, left, err) }}
	if r.URL.Query().Has("list-type") && resp.StatusCode == http.StatusOK {
		body = &listing{Reader: body}
	}
	resp.Body = &incoming{resp.Body, cancel, body}
	return resp, nil
}

// exchangeError is requestError for a request that may have stalled. It says nothing
// of an EOF, which minio would replace by an address.
func exchangeError(caller context.Context, cause, err error) error {
	var stall *stallError
	switch {
	case context.Cause(caller) != nil:
		return context.Cause(caller)
	case errors.As(cause, &stall):
		return &Error{Class: Network, Err: stall}
	case broken(err), errors.Is(err, net.ErrClosed): // while it was written to
		return failf(Dropped, "connection broke before the answer")
	}
	return requestError(caller, err)
}

// outgoing is the body of a request. The connection takes it in small pieces: each
// of them puts the alarm off.
type outgoing struct {
	io.ReadCloser
	*watchful
	alarm *time.Timer
}

func (o *outgoing) Read(p []byte) (int, error) {
	n, err := o.ReadCloser.Read(p)
	if err == nil {
		o.alarm.Reset(o.window)
	} else {
		o.alarm.Reset(o.window + o.answer)
	}
	return n, err
}

// incoming is the body of an answer.
type incoming struct {
	io.Closer
	end context.CancelCauseFunc
	io.Reader
}

// Close ends the request.
func (i *incoming) Close() error {
	defer i.end(nil)
	return i.Closer.Close()
}

// listing is one page of a list. An answer that is none (a web page, an error with
// status 200) is not an empty list: what is in no list may be deleted.
type listing struct {
	io.Reader
	begun bool
	read  int
}

const (
	// maxListing bounds a page: 1000 keys, of 1 KiB each at most.
	maxListing = 4 << 20
	// listingHead is where the name of the root has to be.
	listingHead = 1 << 10
)

func (l *listing) Read(p []byte) (int, error) {
	if !l.begun {
		head := make([]byte, listingHead)
		n, err := io.ReadFull(l.Reader, head)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return 0, err
		}
		if !isListing(head[:n]) {
			return 0, errNotS3
		}
		l.Reader, l.begun = io.MultiReader(bytes.NewReader(head[:n]), l.Reader), true
	}
	n, err := l.Reader.Read(p)
	if l.read += n; l.read > maxListing {
		return n, failf(Refused, "the server lists without end")
	}
	return n, err
}

func isListing(head []byte) bool {
	for tokens := xml.NewDecoder(bytes.NewReader(head)); ; {
		token, err := tokens.Token()
		if err != nil {
			return false
		}
		if root, ok := token.(xml.StartElement); ok {
			return root.Name.Local == "ListBucketResult"
		}
	}
}
