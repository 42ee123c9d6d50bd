package fetch

import (
	"bytes"
	"context"
	"io"
	"net/http"
)

// Message is a small document to send to a server.
type Message struct {
	URL         string // http, https, or s3 in the forms of OpenBucket
	Credentials string // name of a folder below SecretsDir; empty: none
	Method      string // http.MethodPut or http.MethodPost; S3 addresses accept PUT only
	ContentType string
	Body        []byte
}

// maxSendResponse limits how much of a response Send reads.
const maxSendResponse = 64 << 10

// Send sends a message with one request. The rules for hosts, proxies, authorities and credentials are those of
// Download, but no redirect is followed: only the declared server receives the message and the credentials. A 2xx
// response is success. The request ends when a part of it stalls, or when ctx ends. A caller sets a deadline. The error
// is an *Error without an address, or the cause of the end of ctx.
func (c *Client) Send(ctx context.Context, m Message) error {
	a, err := parseBucket(m.URL) // accepts only addresses of S3
	if err == nil {
		return c.putObject(ctx, m)
	}
	if a, err = parseAddress(m.URL); err != nil {
		return err
	}
	if a.force != "" || a.url.Scheme != "http" && a.url.Scheme != "https" {
		return Errorf(BadConfig, "the scheme %q is not supported here: use https or http", a.url.Scheme)
	}
	creds, err := c.credentials(m.Credentials)
	if err != nil {
		return err
	}
	n, err := c.network(creds, a)
	if err != nil {
		return err
	}
	defer n.close()
	if err := n.checkHost(a.url); err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, m.Method, a.url.String(), bytes.NewReader(m.Body))
	if err != nil {
		return Errorf(BadConfig, "the address cannot be used") // err contains it
	}
	r.GetBody = nil // no transport may send the body twice
	r.Header.Set("Content-Type", m.ContentType)
	r.Header.Set("User-Agent", c.userAgent())
	transport := n.anonymous
	if n.mayAuthenticate(a.url) {
		creds.setHeaders(r.Header)
		transport = n.authenticated
	}
	resp, err := (&stallTransport{transport, c.timings().stall, c.timings().firstByte}).RoundTrip(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.CopyN(io.Discard, resp.Body, maxSendResponse) // the status has arrived
	s := httpSource{net: n, url: a.url}
	switch code := resp.StatusCode; {
	case code >= 300 && code < 400:
		return Errorf(Refused, "the server redirects (%d %s), which is not followed: declare the address that it redirects to", code, http.StatusText(code))
	case code < 200 || code >= 300:
		return s.statusError(resp, a.url)
	}
	return nil
}

// putObject puts a message as an object of a bucket.
func (c *Client) putObject(ctx context.Context, m Message) error {
	if m.Method != http.MethodPut {
		return Errorf(BadConfig, "an S3 address is not supported here: use https or http")
	}
	b, err := c.OpenBucket(m.URL, m.Credentials)
	if err != nil {
		return err
	}
	defer b.Close()
	if b.Path == "" {
		return Errorf(BadConfig, "the address does not name an object: add its key to the path")
	}
	if err := b.Put(ctx, b.Path, m.ContentType, m.Body); err != nil {
		return b.Classify(ctx, err)
	}
	return nil
}
