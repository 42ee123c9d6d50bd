package peer

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// maxState bounds the JSON of a State, compressed or not.
const maxState = 64 << 20

// State returns what the node at an address tells of itself, and its ETag. With the
// ETag of an earlier answer, the node may wait for so long for another state; if
// there is none by then the error is ErrUnchanged.
func (c *Client) State(ctx context.Context, at Address, etag string, wait time.Duration) (State, string, error) {
	wait = min(max(wait, 0), longestWait)
	ctx, cancel := context.WithTimeoutCause(ctx, wait+stateTime, errSilent)
	defer cancel()
	q := question{at: at, path: []string{"v1", "state"}, header: acceptState(), limit: wait + answerTime}
	if etag != "" {
		q.header.Set("If-None-Match", etag)
		if wait > 0 {
			q.query = url.Values{"wait": {wait.String()}}
		}
	}
	resp, err := c.ask(ctx, q)
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

// Look returns what the node has of the images of a name, as it is after the
// question. The caller's ctx limits how long that may take.
func (c *Client) Look(ctx context.Context, at Address, name string) (State, error) {
	if err := disk.CheckName(name); err != nil {
		return State{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stateTime, errSilent)
	defer cancel()
	resp, err := c.ask(ctx, question{
		at: at, path: []string{"v1", "images", name, "copies"}, header: acceptState(), limit: stateTime,
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

func acceptState() http.Header { return http.Header{"Accept-Encoding": {"gzip"}} }

// readState reads the answer of a node and closes it.
func readState(resp *http.Response, at Address) (State, error) {
	s, err := decodeBody(resp)
	if err != nil {
		return State{}, fmt.Errorf("ask %s: %w", at.URL, plain(err))
	}
	if s.Node != at.Node {
		return State{}, fmt.Errorf("%s answers as node %s, not %s", at.URL, s.Node, at.Node)
	}
	return s, nil
}

func decodeBody(resp *http.Response) (State, error) {
	if resp.StatusCode != http.StatusOK {
		return State{}, refusal(resp)
	}
	defer resp.Body.Close()
	if resp.ContentLength > maxState {
		return State{}, errTooLarge
	}
	text := bounded(resp.Body)
	switch e := resp.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		unpacked, err := gzip.NewReader(text)
		if err != nil {
			return State{}, fmt.Errorf("unpack the answer: %w", err)
		}
		text = bounded(unpacked)
	default:
		return State{}, fmt.Errorf("it answers in an encoding that was not asked for: %q", clean(e, maxName))
	}
	return decodeState(text)
}

var errTooLarge = errors.New("its answer is too large")

// bounded returns r, of which errTooLarge is read instead of more than a State may have.
func bounded(r io.Reader) io.Reader { return &bound{r: r, left: maxState} }

type bound struct {
	r    io.Reader
	left int64
}

// Read fills p if it can: the JSON decoder looks at all the space between two words
// again after each read, so that many small ones would cost it hours.
func (b *bound) Read(p []byte) (n int, err error) {
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
