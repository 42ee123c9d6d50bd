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
	connectTime = 3 * time.Second
	// answerTime is for an answer to begin, beyond what it was allowed to wait.
	answerTime = 10 * time.Second
	// stateTime is for a whole State, beyond what it was allowed to wait.
	stateTime = 30 * time.Second
	// longestWait is the most that a long poll may ask for.
	longestWait = time.Minute
)

// Address is where a node answers. What is answered there has to be of that node.
type Address struct {
	Node string
	URL  string // http://HOST:PORT or https://HOST:PORT
}

// Source is a ready copy on another node.
type Source struct {
	Address
	Disk   string
	ID     disk.ID
	Chunks disk.Digest // of its manifest
}

// Client asks other nodes. Its methods may be called concurrently.
type Client struct {
	token  func() string
	config func() *tls.Config // nil: it does not change
	pulls  atomic.Int32       // under way, which share memory

	mu   sync.Mutex
	http *http.Client
	of   *tls.Config // that the connections of http were made with
}

// NewClient returns a client that says who it is with the token, "" for none, and
// with the certificates of config, which also says whom it believes to be a peer.
// Both are asked anew for each request, and either may be nil; connections that were
// made with another config are not used any more. It never uses a proxy and follows no
// redirect.
func NewClient(token func() string, config func() *tls.Config) *Client {
	c := clientOver(token, &http.Transport{
		DialContext:    dialer().DialContext,
		DialTLSContext: dialTLS(config),
	})
	c.config = config
	return c
}

// NewVisitor returns a client of somebody who is no node, for one command: it uses the
// proxy that the environment names, if any, and either of token and config may be zero.
func NewVisitor(token string, config *tls.Config) *Client {
	return clientOver(func() string { return token }, &http.Transport{
		DialContext:     dialer().DialContext,
		TLSClientConfig: config,
		Proxy:           http.ProxyFromEnvironment, // but never for loopback
	})
}

func clientOver(token func() string, t *http.Transport) *Client {
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

// question is one request to a peer.
type question struct {
	at     Address
	path   []string
	query  url.Values
	header http.Header
	limit  time.Duration // for the answer to begin
}

// ask makes the request. The body of the answer has to be closed.
func (c *Client) ask(ctx context.Context, q question) (*http.Response, error) {
	resp, err := c.send(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("ask %s: %w", q.at.URL, plain(err))
	}
	return resp, nil
}

func (c *Client) send(ctx context.Context, q question) (*http.Response, error) {
	if q.at.URL == "" {
		return nil, errNoAddress
	}
	base, err := url.Parse(q.at.URL)
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
	if token := c.bearer(); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	silence := time.AfterFunc(q.limit, func() { cancel(errSilent) })
	resp, err := c.connected().Do(r)
	if !silence.Stop() && err == nil {
		resp.Body.Close()
		err = errSilent
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		cancel(nil)
		return nil, err
	}
	resp.Body = &body{ReadCloser: resp.Body, cancel: cancel, cause: func() error { return context.Cause(ctx) }}
	return resp, nil
}

func (c *Client) bearer() string {
	if c.token == nil {
		return ""
	}
	return c.token()
}

// body ends the request's context when it is closed, and tells when it was that
// context which ended the reading.
type body struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
	cause  func() error
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		if cause := b.cause(); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *body) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

var (
	errSilent    = errors.New("it does not answer in time")
	errNoAddress = errors.New("no address is declared for it")
)

// plain returns what is wrong without the addresses and ports of one attempt, so
// that the same trouble is called the same each time.
func plain(err error) error {
	var ofURL *url.Error
	if errors.As(err, &ofURL) {
		err = ofURL.Err
	}
	var ofNet *net.OpError
	switch {
	case errors.As(err, &ofNet) && ofNet.Timeout():
		return fmt.Errorf("%s: %w", ofNet.Op, errSilent)
	case errors.As(err, &ofNet):
		return fmt.Errorf("%s: %w", ofNet.Op, ofNet.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return errSilent
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("it ends the connection: %w", err)
	case strings.Contains(err.Error(), "HTTP response to HTTPS client"):
		return errors.New("it speaks http and not https")
	}
	return err
}

// A peer behind an interface that drops everything sends no RST. The kernel is told
// to notice within unheard, whether something was sent to it or is awaited from it.
const unheard = 12 * time.Second

func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTime,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 8 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         noticeSilence,
	}
}

// dialTLS asks for the configuration each time: whom to believe may change while a
// node runs. The time to connect includes the handshake.
func dialTLS(config func() *tls.Config) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		d := tls.Dialer{NetDialer: dialer()}
		if config != nil {
			d.Config = config()
		}
		return d.DialContext(ctx, network, address)
	}
}

// connected returns what asks over connections of the configuration as it is now. One
// that is kept would be believed, and show its old certificate, for as long as a node
// runs: with the next question waiting, it is never idle.
func (c *Client) connected() *http.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.config == nil {
		return c.http
	}
	if now := c.config(); now != c.of {
		next := *c.http
		next.Transport = next.Transport.(*http.Transport).Clone()
		c.http.CloseIdleConnections()
		c.http, c.of = &next, now
	}
	return c.http
}

func noticeSilence(_, _ string, c syscall.RawConn) error {
	var err error
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unheard.Milliseconds()))
	})
	if failed != nil {
		return failed
	}
	return err
}
