package peer

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// maxStateSize limits the JSON of a State, both compressed and decompressed.
const maxStateSize = 64 << 20

// ErrUnchanged means that the ETag of the State is still the ETag of the request.
var ErrUnchanged = errors.New("unchanged")

// State returns the published State of the node at an address, and its ETag. If etag is the ETag of
// an earlier response, the request is a long poll: the node responds when its State changes, or after
// wait (one minute at most). If the State did not change, the error is ErrUnchanged.
func (c *Client) State(ctx context.Context, at Address, etag string, wait time.Duration) (State, string, error) {
	wait = min(max(wait, 0), maxWait)
	ctx, cancel := context.WithTimeoutCause(ctx, wait+stateTimeout, errTimeout)
	defer cancel()
	r := request{address: at, path: []string{"v1", "state"}, header: acceptGzip(), timeout: wait + responseTimeout}
	if etag != "" {
		r.header.Set("If-None-Match", etag)
		if wait > 0 {
			r.query = url.Values{"wait": {wait.String()}}
		}
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return State{}, "", err
	}
	if resp.StatusCode == http.StatusNotModified && etag != "" {
		resp.Body.Close()
		return State{}, etag, ErrUnchanged
	}
	s, err := readState(resp, at)
	return s, resp.Header.Get("ETag"), err
}

// Copies returns the State of the node at an address with only the copies of one image name. The node
// observes its disks after it received the request, so the response is current. The timeout is 30 s
// or the deadline of ctx.
func (c *Client) Copies(ctx context.Context, at Address, name string) (State, error) {
	if err := disk.CheckName(name); err != nil {
		return State{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stateTimeout, errTimeout)
	defer cancel()
	resp, err := c.do(ctx, request{
		address: at, path: []string{"v1", "images", name, "copies"}, header: acceptGzip(), timeout: stateTimeout,
	})
	if err != nil {
		return State{}, err
	}
	s, err := readState(resp, at)
	if err != nil {
		return State{}, err
	}
	for _, d := range s.Disks {
		for _, c := range d.Copies {
			if c.Name != name {
				return State{}, fmt.Errorf("query %s: the response for image %s has a copy of %s", at.URL, name, c.Name)
			}
		}
	}
	return s, nil
}

func acceptGzip() http.Header { return http.Header{"Accept-Encoding": {"gzip"}} }

// readState decodes the response of the node at an address and closes the response.
func readState(resp *http.Response, at Address) (State, error) {
	s, err := decodeResponse(resp)
	if err != nil {
		return State{}, fmt.Errorf("query %s: %w", at.URL, stripAddress(err))
	}
	if s.Node != at.Node {
		return State{}, fmt.Errorf("%s is node %s, not %s", at.URL, s.Node, at.Node)
	}
	return s, nil
}

func decodeResponse(resp *http.Response) (State, error) {
	if resp.StatusCode != http.StatusOK {
		return State{}, responseError(resp)
	}
	defer resp.Body.Close()
	if resp.ContentLength > maxStateSize {
		return State{}, errTooLarge
	}
	body := limitSize(resp.Body)
	switch e := resp.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		decompressed, err := gzip.NewReader(body)
		if err != nil {
			return State{}, fmt.Errorf("decompress the response: %w", err)
		}
		body = limitSize(decompressed) // a small response may decompress to any size
	default:
		return State{}, fmt.Errorf("the response has an encoding that was not requested: %q", printable(e, maxName))
	}
	return decodeState(body)
}

var errTooLarge = errors.New("the response is too large")

// limitSize returns a reader of r that returns errTooLarge after maxStateSize bytes.
func limitSize(r io.Reader) io.Reader { return &sizeLimiter{r: r, left: maxStateSize} }

type sizeLimiter struct {
	r    io.Reader
	left int64
}

// Read fills p if possible. After each read, the JSON decoder scans all white space since the last
// token again: with many small reads, it would need hours for 64 MiB of spaces.
func (l *sizeLimiter) Read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if l.left <= 0 {
			return n, errTooLarge
		}
		var m int
		m, err = l.r.Read(p[n:min(int64(len(p)), int64(n)+l.left)])
		n += m
		l.left -= int64(m)
	}
	return n, err
}

// openRange returns a reader of the bytes [from, to) of an image. It returns exactly these bytes or
// an error: a *busyError, an *httperror.Error, or io.ErrUnexpectedEOF if the connection breaks. The
// caller limits the time for the body. If the body is read to its end before it is closed, the
// connection is used again.
func (c *Client) openRange(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error) {
	r := s.request("data")
	r.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}}
	resp, err := c.openBytes(ctx, r, http.StatusPartialContent)
	if err != nil {
		return nil, err
	}
	want := fmt.Sprintf("bytes %d-%d/", from, to-1)
	if got := resp.Header.Get("Content-Range"); !strings.HasPrefix(got, want) || resp.ContentLength != to-from {
		resp.Body.Close()
		return nil, fmt.Errorf("query %s: the response to a request for bytes %d-%d has %d bytes and the range %q", s.URL, from, to-1, resp.ContentLength, printable(got, maxName))
	}
	return resp.Body, nil
}

// openManifest returns a reader of the chunk manifest of an image (32 bytes for each chunk) and its
// length in bytes. The errors are those of openRange.
func (c *Client) openManifest(ctx context.Context, s Source) (io.ReadCloser, int64, error) {
	resp, err := c.openBytes(ctx, s.request("manifest"), http.StatusOK)
	if err != nil {
		return nil, 0, err
	}
	if resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("query %s: the response does not have the length of the manifest", s.URL)
	}
	return resp.Body, resp.ContentLength, nil
}

func (s Source) request(route string) request {
	return request{
		address: s.Address, path: []string{"v1", "images", s.ID.Name, s.ID.UUID, route},
		query: url.Values{"disk": {s.Disk}}, header: http.Header{}, timeout: responseTimeout,
	}
}

// openBytes sends a request for bytes that must not be encoded. The response must have the status
// want.
func (c *Client) openBytes(ctx context.Context, r request, want int) (*http.Response, error) {
	r.header.Set("Accept-Encoding", "identity")
	resp, err := c.do(ctx, r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		return nil, fmt.Errorf("query %s: %w", r.address.URL, responseError(resp))
	}
	if e := resp.Header.Get("Content-Encoding"); e != "" {
		resp.Body.Close()
		return nil, fmt.Errorf("query %s: the response has an encoding that was not requested: %q", r.address.URL, printable(e, maxName))
	}
	return resp, nil
}
