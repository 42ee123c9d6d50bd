package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// Timeouts of requests to a peer. Peers are nearby and run the same program: a peer that needs longer
// counts as unreachable.
const (
	connectTimeout = 3 * time.Second // also of the TLS handshake
	// responseTimeout is for the response headers, in addition to the wait of a long poll.
	responseTimeout = 10 * time.Second
	// stateTimeout is for a whole state, in addition to the wait of a long poll.
	stateTimeout = 30 * time.Second
	// maxWait is the maximum wait of a long poll, for client and server.
	maxWait = time.Minute
)

// Address is the address of a node's server. A state from this address is rejected if it names
// another node.
type Address struct {
	Node string
	URL  string // http://HOST:PORT or https://HOST:PORT; "": not declared
}

// Source is a ready copy on a peer.
type Source struct {
	Address
	Disk           string
	ID             ident.ID
	ManifestDigest ident.Digest // of its chunk manifest; zero: it has no manifest
	Size           int64        // of the copy, in bytes
}

// contents describes the bytes that a source offers, as its node claims. Two sources with the same digest
// of the image may have different contents if one of their nodes lies.
type contents struct {
	manifest ident.Digest
	size     int64
}

func (s Source) contents() contents { return contents{s.ManifestDigest, s.Size} }

// Client sends requests to peers. It is safe for concurrent use.
type Client struct {
	token       func() string
	tlsConfig   func() *tls.Config // nil: the configuration never changes
	activePulls atomic.Int32       // the pulls share memory, see transfer.run
	decoding    sync.Mutex         // held while a state is decoded, see decodeResponse

	mu       sync.Mutex
	http     *http.Client
	builtFor *tls.Config // the configuration with which the connections of http were made
}

// NewClient returns the client of a node. The client sends the token ("" means no token) and the
// certificate of the TLS configuration, and trusts the authorities in this configuration. Both functions
// may be nil. The client calls them for each request, because tokens and certificates may be replaced
// while a node runs. It does not reuse a connection that was made with an earlier configuration. It uses
// no proxy and follows no redirects.
func NewClient(token func() string, config func() *tls.Config) *Client {
	c := clientWith(token, &http.Transport{DialContext: newDialer().DialContext, TLSHandshakeTimeout: connectTimeout})
	c.tlsConfig = config
	return c
}

// NewCLIClient returns a client for one command of a user, outside a node. It uses the proxy of the
// environment, but never for loopback. The token may be "" and config may be nil.
func NewCLIClient(token string, config *tls.Config) *Client {
	return clientWith(func() string { return token }, &http.Transport{
		DialContext:     newDialer().DialContext,
		TLSClientConfig: config,
		Proxy:           http.ProxyFromEnvironment,
	})
}

func clientWith(token func() string, t *http.Transport) *Client {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.DisableCompression = true // the client must limit the decompressed bytes, see decodeResponse
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 1024, 4
	t.IdleConnTimeout = time.Minute // less than the idle timeout of the server
	t.MaxResponseHeaderBytes = 64 << 10
	return &Client{
		token: token,
		http: &http.Client{
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     t,
		},
	}
}

// Close closes idle connections.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http.CloseIdleConnections()
}

// request is one GET request to a peer.
type request struct {
	address Address
	path    []string // path elements; they are escaped
	query   url.Values
	header  http.Header
	timeout time.Duration // for the response headers
	stall   time.Duration // how long the body may stall, see fetch.CancelBody
}

// do sends the request. The caller must close the body of the response. Errors contain the URL of the
// peer.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	resp, err := c.send(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("query %s: %w", r.address.URL, stripAddress(err))
	}
	return resp, nil
}

func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	if r.address.URL == "" {
		return nil, errNoAddress
	}
	base, err := url.Parse(r.address.URL)
	if err != nil {
		return nil, errors.New("invalid URL")
	}
	u := base.JoinPath(r.path...)
	u.RawQuery = r.query.Encode()
	ctx, cancel := context.WithCancelCause(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	req.Header = r.header.Clone()
	req.Header.Set("User-Agent", "") // no User-Agent
	if c.token != nil {
		if token := c.token(); token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	timeout := time.AfterFunc(r.timeout, func() { cancel(errTimeout) })
	resp, err := c.httpClient().Do(req)
	if !timeout.Stop() && err == nil {
		resp.Body.Close()
		err = errTimeout
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = fetch.CancelBody(ctx, cancel, resp.Body, r.stall)
	return resp, nil
}

// deadPeerTimeout limits how long sent data may stay unacknowledged, and how long an idle connection
// may stay without a response to keep-alive probes. A peer behind an interface that drops all packets
// sends no RST: without these limits the kernel would wait for minutes.
const deadPeerTimeout = 12 * time.Second

func newDialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 8 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         setUserTimeout,
	}
}

func setUserTimeout(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(deadPeerTimeout.Milliseconds()))
	})
	if failed != nil {
		return failed
	}
	return err
}

// httpClient returns a client whose connections were made with the current TLS configuration. An older
// connection would use the old certificate, and trust the old CA, as long as the node runs: the connection
// never becomes idle, because one long poll follows another.
func (c *Client) httpClient() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tlsConfig == nil {
		return c.http
	}
	if now := c.tlsConfig(); now != c.builtFor {
		next, transport := *c.http, c.http.Transport.(*http.Transport).Clone()
		transport.TLSClientConfig, next.Transport = now, transport
		c.http.CloseIdleConnections()
		c.http, c.builtFor = &next, now
	}
	return c.http
}

var (
	errTimeout   = errors.New("no response in time")
	errNoAddress = errors.New("no address is declared for this node: declare it in nodes")
)

// stripAddress removes the addresses and ports of a single attempt from an error. A repeated failure
// then always has the same text, and the status does not change with every attempt.
func stripAddress(err error) error {
	var ofURL *url.Error
	if errors.As(err, &ofURL) {
		err = ofURL.Err
	}
	var ofNet *net.OpError
	var late net.Error
	switch {
	case errors.As(err, &ofNet) && ofNet.Timeout():
		return fmt.Errorf("%s: %w", ofNet.Op, errTimeout)
	case errors.As(err, &ofNet):
		return fmt.Errorf("%s: %w", ofNet.Op, ofNet.Err)
	case errors.As(err, &late) && late.Timeout():
		return errTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the peer closed the connection: %w", err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the peer uses http, not https: start it with --tls-cert, --tls-key and --tls-ca, too")
	}
	return err
}

// busyError is the error for a 429 response: the peer has reached its sending limit for this image.
type busyError struct {
	retryAfter time.Duration // minRetryAfter to maxRetryAfter
}

// RetryAfter implements assemble.Busy.
func (e *busyError) RetryAfter() time.Duration { return e.retryAfter }

func (e *busyError) Error() string {
	return fmt.Sprintf("busy: the sending limit is reached, retry in %v", e.retryAfter)
}

// Limits of the delay that Retry-After may request.
const (
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = 30 * time.Second
)

// responseError returns the error for a response with an unexpected status, and closes the response:
// a *busyError, an *httperror.Error, or another error if the status is not an error status. It reads
// at most 4 KiB of the message.
func responseError(resp *http.Response) error {
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusTooManyRequests:
		return &busyError{retryAfter: parseRetryAfter(resp.Header)}
	case resp.StatusCode < 400:
		return fmt.Errorf("unexpected response %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil {
		text = nil // the status is more important than the reason why the message is missing
	}
	e := httperror.Read(resp.StatusCode, text)
	e.Message = shortLine(e.Message, maxMessage)
	return e
}

func parseRetryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || !(seconds >= 0) { // also rejects NaN
		return time.Second
	}
	return time.Duration(min(max(seconds, minRetryAfter.Seconds()), maxRetryAfter.Seconds()) * float64(time.Second))
}
