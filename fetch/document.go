package fetch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
)

// Document is a small file that ReadDocument read.
type Document struct {
	Data []byte
	// From is the address after all redirects.
	From *url.URL
}

// ReadDocument reads a small file with at most limit bytes, such as a list of the files in a folder, from an http or
// https address. Unlike a download, it accepts web pages, and it keeps no state: after a dropped connection it requests
// the whole file again, a few times. The rules for hosts, redirects, proxies and credentials are those of Download, and
// so are the errors. If the server has no such file (404 or 410), the error wraps ErrNoDocument.
func (c *Client) ReadDocument(ctx context.Context, addr, credentials string, limit int) (Document, error) {
	t, err := c.newTransfer(Request{URL: addr, Credentials: credentials, Unpack: "none"}, nil)
	if err != nil {
		return Document{}, err
	}
	defer t.net.close()
	a := t.addresses[0]
	if a.force != "" || a.url.Scheme != "http" && a.url.Scheme != "https" {
		return Document{}, Errorf(BadConfig, "address %s is not supported here: use https or http", a)
	}
	var d Document
	err = retryDropped(ctx, func() int64 { return 0 }, func() (err error) {
		d, err = t.readDocument(ctx, a, limit)
		return err
	})
	var e *Error
	if ctx.Err() == nil && errors.As(err, &e) {
		err = e.withURL(a.String())
	}
	return d, err
}

// ErrNoDocument means that the server has no file at an address.
var ErrNoDocument = errors.New("the server has no such file")

func (t *transfer) readDocument(ctx context.Context, a address, limit int) (Document, error) {
	attempt, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s := &httpSource{net: t.net, url: a.url, packing: notPacked}
	header := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": {t.client.userAgent()}}
	resp, from, err := t.net.follow(attempt, a.url, header)
	if err != nil {
		return Document{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone {
		return Document{}, Errorf(Refused, "%w: it responds with %d %s", ErrNoDocument, resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	got, err := s.checkResponse(resp, from, rangeRequest{total: -1})
	if err != nil {
		return Document{}, err
	}
	data, err := io.ReadAll(io.LimitReader(t.bodyReader(attempt, cancel, got), int64(limit)+1))
	if err == nil && len(data) > limit {
		err = Errorf(BadSource, "the file is larger than %d bytes", limit)
	}
	return Document{Data: data, From: from}, err
}
