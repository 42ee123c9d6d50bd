package peer

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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
