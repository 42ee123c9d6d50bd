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

// maxStateSize bounds the JSON of a State, compressed or not.
const maxStateSize = 64 << 20

// State returns what the node at an address tells of itself, and its ETag. With the
// ETag of an earlier answer, the node may wait for so long for another state; if
// there is none by then the error is ErrUnchanged.
func (c *Client) State(ctx context.Context, at Address, etag string, wait time.Duration) (State, string, error) {
	wait = min(max(wait, 0), maxWait)
	ctx, cancel := context.WithTimeoutCause(ctx, wait+stateTimeout, errTimeout)
	defer cancel()
	q := request{address: at, path: []string{"v1", "state"}, header: acceptGzip(), timeout: wait + responseTimeout}
	if etag != "" {
		q.header.Set("If-None-Match", etag)
		if wait > 0 {
			q.query = url.Values{"wait": {wait.String()}}
		}
	}
	resp, err := c.do(ctx, q)
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

// Copies returns what the node has of the images of a name, as it is after the
// question. The caller's ctx limits how long that may take.
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
				return State{}, fmt.Errorf("ask %s: asked about %s, it answers about %s", at.URL, name, c.Name)
			}
		}
	}
	return s, nil
}

func acceptGzip() http.Header { return http.Header{"Accept-Encoding": {"gzip"}} }

// readState reads the answer of a node and closes it.
func readState(resp *http.Response, at Address) (State, error) {
	s, err := decodeResponse(resp)
	if err != nil {
		return State{}, fmt.Errorf("ask %s: %w", at.URL, stripAddress(err))
	}
	if s.Node != at.Node {
		return State{}, fmt.Errorf("%s answers as node %s, not %s", at.URL, s.Node, at.Node)
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
	text := limitSize(resp.Body)
	switch e := resp.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(text)
		if err != nil {
			return State{}, fmt.Errorf("unpack the answer: %w", err)
		}
		text = limitSize(unpacked)
	default:
		return State{}, fmt.Errorf("it answers in an encoding that was not asked for: %q", printable(e, maxName))
	}
	return decodeState(text)
}

var errTooLarge = errors.New("its answer is too large")

// limitSize returns r, of which errTooLarge is read instead of more than a State may have.
func limitSize(r io.Reader) io.Reader { return &sizeLimiter{r: r, left: maxStateSize} }

type sizeLimiter struct {
	r    io.Reader
	left int64
}

// Read fills p if it can: the JSON decoder looks at all the space between two words
// again after each read, so that many small ones would cost it hours.
func (b *sizeLimiter) Read(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		if b.left <= 0 {
			return n, errTooLarge
		}
		var some int
		some, err = b.r.Read(p[n:min(int64(len(p)), int64(n)+b.left)])
		n += some
		b.left -= int64(some)
	}
	return n, err
}

// openRange returns the bytes from from to to, to excluded, of an image. Exactly these
// come, or an error: a BusyError, a GoneError, io.ErrUnexpectedEOF of a connection
// that ended. How long the body may take is the caller's concern. The connection is
// used again if the body is read to its end before it is closed.
func (c *Client) openRange(ctx context.Context, s Source, from, to int64) (io.ReadCloser, error) {
	q := s.request("data")
	q.header = http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", from, to-1)}}
	resp, err := c.openBytes(ctx, q, http.StatusPartialContent)
	if err != nil {
		return nil, err
	}
	asked := fmt.Sprintf("bytes %d-%d/", from, to-1)
	if got := resp.Header.Get("Content-Range"); !strings.HasPrefix(got, asked) || resp.ContentLength != to-from {
		resp.Body.Close()
		return nil, fmt.Errorf("ask %s: asked for bytes %d-%d, it sends %d, %q", s.URL, from, to-1, resp.ContentLength, printable(got, maxName))
	}
	return resp.Body, nil
}

// openManifest returns the sums of the chunks of an image, 32 bytes each, and how many
// bytes there are. The errors are those of data.
func (c *Client) openManifest(ctx context.Context, s Source) (io.ReadCloser, int64, error) {
	resp, err := c.openBytes(ctx, s.request("manifest"), http.StatusOK)
	if err != nil {
		return nil, 0, err
	}
	if resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("ask %s: it does not say how long the manifest is", s.URL)
	}
	return resp.Body, resp.ContentLength, nil
}

func (s Source) request(what string) request {
	return request{
		address: s.Address, path: []string{"v1", "images", s.ID.Name, s.ID.UUID, what},
		query: url.Values{"disk": {s.Disk}}, header: http.Header{}, timeout: responseTimeout,
	}
}

// openBytes asks for what has to come as it is and with the status want.
func (c *Client) openBytes(ctx context.Context, q request, want int) (*http.Response, error) {
	q.header.Set("Accept-Encoding", "identity")
	resp, err := c.do(ctx, q)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != want {
		return nil, fmt.Errorf("ask %s: %w", q.address.URL, responseError(resp))
	}
	if resp.Header.Get("Content-Encoding") != "" {
		resp.Body.Close()
		return nil, fmt.Errorf("ask %s: %w", q.address.URL, errEncoded)
	}
	return resp, nil
}

var errEncoded = errors.New("it encodes bytes that have to come as they are")
