package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// data returns the bytes from from to to, to excluded, of an image. Exactly these
// come, or an error: a BusyError, a GoneError, io.ErrUnexpectedEOF of a connection
// that ended. How long the body may take is the caller's concern. The connection is
// used again if the body is read to its end before it is closed.
func (c *Client) data(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error) {
	q := s.question("data")
	q.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}}
	resp, err := c.bytes(ctx, q, http.StatusPartialContent)
	if err != nil {
		return nil, err
	}
	asked := fmt.Sprintf("bytes %d-%d/", from, to-1)
	if got := resp.Header.Get("Content-Range"); !strings.HasPrefix(got, asked) || resp.ContentLength != to-from {
		resp.Body.Close()
		return nil, fmt.Errorf("ask %s: asked for bytes %d-%d, it sends %d, %q", s.URL, from, to-1, resp.ContentLength, clean(got, maxName))
	}
	return resp.Body, nil
}

// manifest returns the sums of the chunks of an image, 32 bytes each, and how many
// bytes there are. The errors are those of data.
func (c *Client) manifest(ctx context.Context, s Source) (io.ReadCloser, int64, error) {
	resp, err := c.bytes(ctx, s.question("manifest"), http.StatusOK)
	if err != nil {
		return nil, 0, err
	}
	if resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("ask %s: it does not say how long the manifest is", s.URL)
	}
	return resp.Body, resp.ContentLength, nil
}

func (s Source) question(what string) question {
	return question{
		at: s.Address, path: []string{"v1", "images", s.ID.Name, s.ID.UUID, what},
		query: url.Values{"disk": {s.Disk}}, header: http.Header{}, limit: answerTime,
	}
}

// bytes asks for what has to come as it is and with the status want.
func (c *Client) bytes(ctx context.Context, q question, want int) (*http.Response, error) {
	q.header.Set("Accept-Encoding", "identity")
	resp, err := c.ask(ctx, q)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		return nil, fmt.Errorf("ask %s: %w", q.at.URL, refusal(resp))
	}
	if resp.Header.Get("Content-Encoding") != "" {
		resp.Body.Close()
		return nil, fmt.Errorf("ask %s: %w", q.at.URL, errEncoded)
	}
	return resp, nil
}

var errEncoded = errors.New("it encodes bytes that have to come as they are")
