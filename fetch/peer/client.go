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

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// Timeouts of requests to a peer. A peer is a machine nearby that runs the same program:
// if it needs longer, it is as good as unreachable.
const (
	connectTimeout = 3 * time.Second // includes the TLS handshake
	// responseTimeout is for the response headers, in addition to the wait of a long poll.
	responseTimeout = 10 * time.Second
	// stateTimeout is for a whole State, in addition to the wait of a long poll.
	stateTimeout = 30 * time.Second
	// maxWait is the longest wait of a long poll, for client and server.
	maxWait = time.Minute
)

// Address is where a node's server listens. A State received from there is rejected if it
// names another node.
type Address struct {
	Node string
	URL  string // http://HOST:PORT or https://HOST:PORT; "": not declared
}

// Source is a ready copy on a peer.
type Source struct {
	Address
	Disk           string
	ID             disk.ID
	ManifestDigest disk.Digest // of its chunk manifest; zero: it has none
}

// Client sends requests to peers. Its methods may be called concurrently.
type Client struct {
	token       func() string
	tlsConfig   func() *tls.Config // nil: it never changes
	activePulls atomic.Int32       // they share memory, see window.size

	mu       sync.Mutex
	http     *http.Client
	builtFor *tls.Config // the configuration of the connections of http
}

// NewClient returns the client of a node. It authenticates with the token, unless that is
// "", and with the certificates of the TLS configuration, which also says which peers to
// trust. Both functions may be nil, and are called for each request, because tokens and
// certificates may be replaced while a node runs: a connection that was made with an
// earlier configuration is not used again. The client never uses a proxy and follows no
// redirect.
func NewClient(token func() string, config func() *tls.Config) *Client {
	c := clientWith(token, &http.Transport{
		DialContext:    newDialer().DialContext,
		DialTLSContext: dialTLS(config),
	})
	c.tlsConfig = config
	return c
}

// NewCLIClient returns a client for one command of a user, outside a node. It uses the
// proxy from the environment, but never for loopback. The token may be "" and config nil.
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
	t.DisableCompression = true // decompressed bytes must be limited, see decodeResponse
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 1024, 4
	t.IdleConnTimeout = time.Minute // less than the server's
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
	path    []string // elements, which are escaped
	query   url.Values
	header  http.Header
	timeout time.Duration // for the response headers
}

// do sends the request. The caller must close the body of the response. Errors name the
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
	req.Header.Set("User-Agent", "") // sends none
	if token := c.bearerToken(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
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
	resp.Body = &responseBody{ReadCloser: resp.Body, cancel: cancel, cause: func() error { return context.Cause(ctx) }}
	return resp, nil
}

func (c *Client) bearerToken() string {
	if c.token == nil {
		return ""
	}
	return c.token()
}

// responseBody ends the context of its request when it is closed. If that context ends
// first, Read returns the cause.
type responseBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
	cause  func() error
}

func (b *responseBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		if cause := b.cause(); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *responseBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// deadPeerTimeout is how long sent data may stay unacknowledged, and how long an idle
// connection may stay unanswered by keep-alive probes. A peer behind an interface that
// drops all packets sends no RST; without these two the kernel would wait for minutes.
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

// dialTLS reads the TLS configuration for each new connection, because the trusted
// certificates may change while a node runs.
func dialTLS(config func() *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d := tls.Dialer{NetDialer: newDialer()}
		if config != nil {
			d.Config = config()
		}
		return d.DialContext(ctx, network, address)
	}
}

// httpClient returns a client whose connections were made with the current TLS
// configuration. A kept connection would present the old certificate, and trust the old
// CA, for as long as the node runs: it is never idle, because the next long poll follows
// at once.
func (c *Client) httpClient() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tlsConfig == nil {
		return c.http
	}
	if now := c.tlsConfig(); now != c.builtFor {
		next := *c.http
		next.Transport = next.Transport.(*http.Transport).Clone()
		c.http.CloseIdleConnections()
		c.http, c.builtFor = &next, now
	}
	return c.http
}

var (
	errTimeout   = errors.New("no response in time")
	errNoAddress = errors.New("no address is declared for this node")
)

// stripAddress removes the addresses and ports of one attempt from an error. The same
// fault then has the same text each time, and a status does not change with every attempt.
func stripAddress(err error) error {
	var ofURL *url.Error
	if errors.As(err, &ofURL) {
		err = ofURL.Err
	}
	var ofNet *net.OpError
	switch {
	case errors.As(err, &ofNet) && ofNet.Timeout():
		return fmt.Errorf("%s: %w", ofNet.Op, errTimeout)
	case errors.As(err, &ofNet):
		return fmt.Errorf("%s: %w", ofNet.Op, ofNet.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return errTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("the peer closed the connection: %w", err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return errors.New("the peer uses http, not https")
	}
	return err
}

// busyError is the error for a 429: the peer already sends this image as often as it may.
type busyError struct {
	retryAfter time.Duration // minRetryAfter to maxRetryAfter
}

func (e *busyError) Error() string {
	return fmt.Sprintf("busy: the sending limit is reached, retry in %v", e.retryAfter)
}

// Limits of what Retry-After may demand.
const (
	minRetryAfter = 100 * time.Millisecond
	maxRetryAfter = 30 * time.Second
)

// responseError returns the error for a response whose status is not the expected one, and
// closes the response: a *busyError, an *httperror.Error, or another error if the status
// is no error status. It reads at most 4 KiB of the message.
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
		text = nil // the status is worth more than the reason for a missing message
	}
	e := httperror.Read(resp.StatusCode, text)
	e.Message = printable(e.Message, maxMessage)
	return e
}

func parseRetryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseFloat(h.Get("Retry-After"), 64)
	if err != nil || !(seconds >= 0) { // also rejects NaN
		return time.Second
	}
	return time.Duration(min(max(seconds, minRetryAfter.Seconds()), maxRetryAfter.Seconds()) * float64(time.Second))
}
