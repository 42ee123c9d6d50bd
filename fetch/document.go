package fetch

import (
	"context"
	"errors"
	"io"
	"net/url"
)

// Document is a small file that ReadDocument read.
type Document struct {
	Data []byte
	// From is the address after all redirects.
	From *url.URL
}

// ReadDocument reads a small file with at most limit bytes, such as a list of the files in a folder, from an http or
// https address. Unlike a download, it accepts web pages. The errors, and the rules for hosts, redirects, proxies and
// credentials, are those of Download. If the server has no such file (404 or 410), the error wraps ErrNoDocument.
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
	return t.readDocument(ctx, a, limit, true)
}

// ErrNoDocument means that the server has no file at an address.
var ErrNoDocument = errors.New("the server has no such file")

// missingError is an ErrNoDocument with the response of the server.
type missingError struct{ error }

func (missingError) Is(target error) bool { return target == ErrNoDocument }

// readDocument reads a small file under the rules and with the credentials of t. page: web pages are accepted. After a
// broken connection, it requests the whole file again, a few times.
func (t *transfer) readDocument(ctx context.Context, a address, limit int, page bool) (d Document, err error) {
	small := *t
	small.packing, small.limiter = notPacked, nil
	err = small.dispatch(ctx, a, func(ctx context.Context, src source) error {
		return retryDropped(ctx, func() int64 { return 0 }, func() (err error) {
			d, err = small.readOnce(ctx, src, limit, page)
			return err
		})
	})
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if e, ok := errors.AsType[*Error](err); ok {
		err = e.withURL(a.String())
	}
	return d, err
}

func (t *transfer) readOnce(ctx context.Context, src source, limit int, page bool) (Document, error) {
	attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, but not ctx
	defer cancel(nil)
	got, err := src.get(attempt, rangeRequest{total: -1})
	if err != nil {
		return Document{}, err
	}
	defer got.body.Close()
	body := t.bodyReader(attempt, cancel, got)
	if got.isHTML && !page {
		if body, err = refuseWebPage(body); err != nil {
			return Document{}, err
		}
	}
	data, err := io.ReadAll(io.LimitReader(body, int64(limit)+1))
	if err == nil && len(data) > limit {
		err = Errorf(BadSource, "the file is larger than %d bytes", limit)
	}
	return Document{Data: data, From: got.from}, err
}
