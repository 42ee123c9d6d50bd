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
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// ErrUnchanged means that the ETag of the state is still the ETag of the request.
var ErrUnchanged = errors.New("unchanged")

// State returns the published state of the node at an address, and its ETag. If etag is the ETag of
// an earlier response, the request is a long poll: the node responds when its state changes, or after
// wait (one minute at most). If the state did not change, the error is ErrUnchanged.
func (c *Client) State(ctx context.Context, at Address, etag string, wait time.Duration) (model.Node, string, error) {
	r, err := c.pollState(ctx, at, Scope{}, etag, wait)
	return r.state, r.etag, err
}

// stateResponse is a received state.
type stateResponse struct {
	state model.Node
	etag  string
	cost  time.Duration // the time that it took to decode the response, also with an error
}

// pollState does the same as State for a scope. It also returns the cost of the response.
func (c *Client) pollState(ctx context.Context, at Address, scope Scope, etag string, wait time.Duration) (stateResponse, error) {
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
		return stateResponse{}, err
	}
	if resp.StatusCode == http.StatusNotModified && etag != "" {
		resp.Body.Close()
		return stateResponse{etag: etag}, ErrUnchanged
	}
	s, cost, err := c.readState(resp, at, scope)
	return stateResponse{s, resp.Header.Get("ETag"), cost}, err
}

// Copies returns the state of the node at an address with only the copies of one image name. The node
// observes its disks after it received the request, so the response is current. It looks for the mark with
// the name mark in the folders of the copies; "" means no mark. The timeout is 30 s or the deadline of ctx.
func (c *Client) Copies(ctx context.Context, at Address, name, mark string) (model.Node, error) {
	if err := ident.CheckName(name); err != nil {
		return model.Node{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, stateTimeout, errTimeout)
	defer cancel()
	r := request{address: at, path: []string{"v1", "images", name, "copies"}, header: acceptGzip(), timeout: stateTimeout}
	if mark != "" {
		r.query = url.Values{markParameter: {mark}}
	}
	resp, err := c.do(ctx, r)
	if err != nil {
		return model.Node{}, err
	}
	s, _, err := c.readState(resp, at, Scope{})
	if err == nil && s.Mark != mark {
		err = fmt.Errorf("query %s: the response is not about the requested mark", at.URL)
	}
	if err == nil && s.Omitted > 0 {
		err = fmt.Errorf("query %s: the response has more than %d copies", at.URL, Scope{}.maxOthers())
	}
	if err != nil {
		return model.Node{}, err
	}
	for _, d := range s.Disks {
		for id := range d.Copies {
			if id.Name != name {
				return model.Node{}, fmt.Errorf("query %s: the response for image %s has a copy of %s", at.URL, name, id.Name)
			}
		}
	}
	return s, nil
}

// markParameter is the query parameter with the name of a mark.
const markParameter = "mark"

func acceptGzip() http.Header { return http.Header{"Accept-Encoding": {"gzip"}} }

// readState decodes the response of the node at an address and closes the response. It returns the
// state and the duration of the decoding.
func (c *Client) readState(resp *http.Response, at Address, scope Scope) (model.Node, time.Duration, error) {
	s, cost, err := c.decodeResponse(resp, scope)
	if err != nil {
		return model.Node{}, cost, fmt.Errorf("query %s: %w", at.URL, stripAddress(err))
	}
	if s.Node != at.Node {
		return model.Node{}, cost, fmt.Errorf("%s is node %s, not %[3]s: correct the address of %[3]s", at.URL, s.Node, at.Node)
	}
	return s, cost, nil
}

// decodeResponse decodes a response. The client decodes one response at a time, so large responses take at
// most one processor together. While one waits for bytes, another is decoded.
func (c *Client) decodeResponse(resp *http.Response, scope Scope) (s model.Node, cost time.Duration, err error) {
	if resp.StatusCode != http.StatusOK {
		return model.Node{}, 0, responseError(resp)
	}
	defer resp.Body.Close()
	if resp.ContentLength > scope.maxStateSize() {
		return model.Node{}, 0, errTooLarge
	}
	turn := decodingTurn{body: resp.Body, busy: &c.decoding}
	turn.begin()
	defer func() { cost = turn.end() }()
	body := scope.limitSize(&turn)
	switch e := resp.Header.Get("Content-Encoding"); e {
	case "", "identity":
	case "gzip":
		decompressed, err := gzip.NewReader(body)
		if err != nil {
			return model.Node{}, 0, fmt.Errorf("decompress the response: %w", err)
		}
		body = scope.limitSize(decompressed) // a small response may decompress to any size
	default:
		return model.Node{}, 0, fmt.Errorf("the response has an encoding that was not requested: %q", shortLine(e, maxName))
	}
	s, err = decodeState(body, scope)
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		err = errTooLarge
	}
	return s, 0, err
}

// decodingTurn reads the body of a response that has its turn to be decoded. It gives up the turn during
// each read.
type decodingTurn struct {
	body  io.Reader
	busy  *sync.Mutex
	began time.Time     // the beginning of the turn
	cost  time.Duration // of earlier turns
}

func (t *decodingTurn) begin() {
	t.busy.Lock()
	t.began = time.Now()
}

// end ends the turn, and returns the duration of all turns.
func (t *decodingTurn) end() time.Duration {
	t.cost += time.Since(t.began)
	t.busy.Unlock()
	return t.cost
}

// Read implements io.Reader.
func (t *decodingTurn) Read(p []byte) (int, error) {
	t.end()
	defer t.begin()
	return t.body.Read(p)
}

var errTooLarge = errors.New("the response is too large: a node publishes far less for the declared disks and images")

// limitSize limits r to the bytes of the largest state. A read of more bytes returns an *http.MaxBytesError.
func (s Scope) limitSize(r io.Reader) io.Reader {
	return http.MaxBytesReader(nil, io.NopCloser(r), s.maxStateSize())
}

// openRange returns a reader of the bytes [from, to) of an image. It returns exactly these bytes or
// an error: a *busyError, an *httperror.Error, io.ErrUnexpectedEOF if the connection breaks, or a
// *fetch.Error if the body stalls. If the body is read to its end before it is closed, the
// connection is used again.
func (c *Client) openRange(ctx context.Context, r request, from, to int64) (io.ReadCloser, error) {
	r.header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, to-1))
	resp, err := c.openBytes(ctx, r, http.StatusPartialContent)
	if err != nil {
		return nil, err
	}
	want := fmt.Sprintf("bytes %d-%d/", from, to-1)
	if got := resp.Header.Get("Content-Range"); !strings.HasPrefix(got, want) || resp.ContentLength != to-from {
		resp.Body.Close()
		return nil, fmt.Errorf("query %s: the response to a request for bytes %d-%d has %d bytes and the range %q", r.address.URL, from, to-1, resp.ContentLength, shortLine(got, maxName))
	}
	return resp.Body, nil
}

// openWhole returns a reader of a whole file, such as a chunk manifest or an index, and its length in bytes. The errors are
// those of openRange.
func (c *Client) openWhole(ctx context.Context, r request) (io.ReadCloser, int64, error) {
	resp, err := c.openBytes(ctx, r, http.StatusOK)
	if err != nil {
		return nil, 0, err
	}
	if resp.ContentLength < 0 {
		resp.Body.Close()
		return nil, 0, fmt.Errorf("query %s: the response has no Content-Length", r.address.URL)
	}
	return resp.Body, resp.ContentLength, nil
}

func (s Source) request(route string) request {
	return request{
		address: s.Address, path: []string{"v1", "images", s.ID.Name, s.ID.UUID, route},
		query: url.Values{"disk": {s.Disk}}, header: http.Header{}, timeout: responseTimeout, stall: stallTimeout,
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
		return nil, fmt.Errorf("query %s: the response has an encoding that was not requested: %q", r.address.URL, shortLine(e, maxName))
	}
	return resp, nil
}
