package fetch

import (
	"context"
	"errors"
	"fmt"
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

// Reasons why a checksum list has no checksum for a file.
var (
	// ErrNotListed means that the list does not have the file, or only checksums of it that are not used, such as MD5.
	ErrNotListed = errors.New("is not listed")
	// ErrListedTwice means that the list has different checksums of one algorithm for the file.
	ErrListedTwice = errors.New("is listed with more than one checksum")
	// ErrMalformedList means that a line of the list has a checksum of an impossible length.
	ErrMalformedList = errors.New("is malformed")
)

// ListedChecksum finds the digests of the file at an address in a checksum list. listURL is the address of the list, and
// unpack that of Request. Another name is never that of the file, because it may be that of another version; a single
// checksum without a name is one if the list is not signed. The errors wrap ErrNotListed, ErrListedTwice or
// ErrMalformedList, or are an *Error for a wrong address.
func ListedChecksum(list []byte, listURL, fileURL, unpack string, signed bool) (Listed, error) {
	at, err := parseAddress(listURL)
	if err != nil {
		return Listed{}, err
	}
	files, err := oneAddress(fileURL)
	if err != nil {
		return Listed{}, err
	}
	p, err := packingOf(unpack, files)
	if err != nil {
		return Listed{}, err
	}
	parsed := parseChecksumList(list, at.base())
	if parsed.malformed != "" {
		return Listed{}, fmt.Errorf("the checksum list %w: a checksum has %d hex digits", ErrMalformedList, len(parsed.malformed))
	}
	without := unnamed
	if signed {
		without = named
	}
	found, err := parsed.find(at, files, p, without)
	if err != nil && !errors.Is(err, ErrListedTwice) {
		err = &notListedError{err}
	}
	return found, err
}

// notListedError is ErrNotListed with the reason.
type notListedError struct{ error }

func (e *notListedError) Is(target error) bool { return target == ErrNotListed }
