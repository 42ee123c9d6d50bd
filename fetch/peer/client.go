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
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// How long a peer may take. A peer is a machine nearby with the same program on
// it, or it is as good as gone.
const (
	connectTimeout = 3 * time.Second
	// responseTimeout is for an answer to begin, beyond what it was allowed to wait.
	responseTimeout = 10 * time.Second
	// stateTimeout is for a whole State, beyond what it was allowed to wait.
	stateTimeout = 30 * time.Second
	// maxWait is the most that a long poll may ask for.
	maxWait = time.Minute
)

// Address is where a node answers. What is answered there has to be of that node.
type Address struct {
	Node string
	URL  string // http://HOST:PORT or https://HOST:PORT
}

// Source is a ready copy on another node.
type Source struct {
	Address
	Disk           string
	ID             disk.ID
	ManifestDigest disk.Digest // of its manifest
}

// Client asks other nodes. Its methods may be called concurrently.
type Client struct {
	token       func() string
	tlsConfig   func() *tls.Config // nil: it does not change
	activePulls atomic.Int32       // under way, which share memory

	mu       sync.Mutex
	http     *http.Client
	builtFor *tls.Config // that the connections of http were made with
}

// NewClient returns a client that says who it is with the token, "" for none, and
// with the certificates of config, which also says whom it believes to be a peer.
// Both are asked anew for each request, and either may be nil; connections that were
// made with another config are not used any more. It never uses a proxy and follows no
// redirect.
func NewClient(token func() string, config func() *tls.Config) *Client {
	c := clientWith(token, &http.Transport{
		DialContext:    newDialer().DialContext,
		DialTLSContext: dialTLS(config),
	})
	c.tlsConfig = config
	return c
}

// NewCLIClient returns a client of somebody who is no node, for one command: it uses the
// proxy that the environment names, if any, and either of token and config may be zero.
func NewCLIClient(token string, config *tls.Config) *Client {
	return clientWith(func() string { return token }, &http.Transport{
		DialContext:     newDialer().DialContext,
		TLSClientConfig: config,
		Proxy:           http.ProxyFromEnvironment, // but never for loopback
	})
}

func clientWith(token func() string, t *http.Transport) *Client {
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.DisableCompression = true // what is compressed is bounded by hand
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

// Close lets go of connections that nothing uses.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.http.CloseIdleConnections()
}

// request is one request to a peer.
type request struct {
	address Address
	path    []string
	query   url.Values
	header  http.Header
	timeout time.Duration // for the answer to begin
}

// do makes the request. The body of the answer has to be closed.
func (c *Client) do(ctx context.Context, q request) (*http.Response, error) {
	resp, err := c.send(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", q.address.URL, stripAddress(err))
	}
	return resp, nil
}

func (c *Client) send(ctx context.Context, q request) (*http.Response, error) {
	if q.address.URL == "" {
		return nil, errNoAddress
	}
	base, err := url.Parse(q.address.URL)
	if err != nil {
		return nil, errors.New("it is not an address")
	}
	u := base.JoinPath(q.path...)
	u.RawQuery = q.query.Encode()
	ctx, cancel := context.WithCancelCause(ctx)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	r.Header = q.header.Clone()
	r.Header.Set("User-Agent", "") // none is sent
	if token := c.bearerToken(); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	silence := time.AfterFunc(q.timeout, func() { cancel(errTimeout) })
	resp, err := c.httpClient().Do(r)
	if !silence.Stop() && err == nil {
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

// responseBody ends the request's context when it is closed, and tells when it was that
// context which ended the reading.
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

var (
	errTimeout   = errors.New("it does not answer in time")
	errNoAddress = errors.New("no address is declared for it")
)

// stripAddress returns what is wrong without the addresses and ports of one attempt, so
// that the same trouble is called the same each time.
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
		return fmt.Errorf("it ends the connection: %w", err)
	case strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return errors.New("it speaks http and not https")
	}
	return err
}

// A peer behind an interface that drops everything sends no RST. The kernel is told
// to notice within unheard, whether something was sent to it or is awaited from it.
const deadPeerTimeout = 12 * time.Second

func newDialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 8 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         setUserTimeout,
	}
}

// dialTLS asks for the configuration each time: whom to believe may change while a
// node runs. The time to connect includes the handshake.
func dialTLS(config func() *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d := tls.Dialer{NetDialer: newDialer()}
		if config != nil {
			d.Config = config()
		}
		return d.DialContext(ctx, network, address)
	}
}

// httpClient returns what asks over connections of the configuration as it is now. One
// that is kept would be believed, and show its old certificate, for as long as a node
// runs: with the next question waiting, it is never idle.
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
