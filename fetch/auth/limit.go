package auth

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// The default limits of a ConnLimiter.
const (
	// maxConns limits memory: a connection needs up to 50 KiB, and a long poll or a transfer more.
	maxConns = 1024
	// maxStrangers leaves room for callers with a role. A new connection is a stranger for some
	// milliseconds, so the limit is reached only by connections that never send a request with a role.
	maxStrangers = 512
	// maxCallers leaves room for new connections, which begin without a role.
	maxCallers = 896
)

// ConnLimiter limits the number of connections to a server. A connection is a stranger until it has
// sent a request with a role, and then it is a caller. Each kind has a limit: strangers cannot keep
// callers from being served, and callers cannot keep out new connections.
//
// At a limit, a new connection replaces another connection of its kind: the one that has waited longest,
// in the network with the most connections. A network is an IPv4 address, or the first 64 bits of an
// IPv6 address, because one machine may own all addresses that begin with them. A flood from a few networks
// therefore replaces only its own connections. A stranger can be replaced even while it is active. A
// caller that is being served is replaced only if its network has more connections than the newcomer's.
//
// A ConnLimiter is safe for concurrent use.
type ConnLimiter struct {
	max, maxStrangers, maxCallers int

	mu    sync.Mutex
	conns map[net.Conn]*limitedConn
}

// limitedConn is an open connection.
type limitedConn struct {
	network netip.Prefix
	caller  bool      // it has sent a request with a role
	waits   bool      // it is idle, or a request waits for a change: the caller can simply repeat it
	since   time.Time // the last change of its state
}

// NewConnLimiter returns a ConnLimiter for one server with the default limits.
func NewConnLimiter() *ConnLimiter {
	return &ConnLimiter{max: maxConns, maxStrangers: maxStrangers, maxCallers: maxCallers, conns: map[net.Conn]*limitedConn{}}
}

// ConnState is the hook for http.Server.ConnState.
func (l *ConnLimiter) ConnState(conn net.Conn, state http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, known := l.conns[conn]
	switch {
	case state == http.StateNew:
		l.add(conn)
	case state == http.StateClosed, state == http.StateHijacked:
		delete(l.conns, conn)
	case !known: // it was replaced, and its goroutine has not detected this yet
	default:
		c.waits, c.since = state == http.StateIdle, time.Now()
	}
}

// admission is the value in the context of a connection.
type admission struct {
	limiter *ConnLimiter
	conn    net.Conn
}

type admissionKey struct{}

// ConnContext is the hook for http.Server.ConnContext. Admit needs it.
func (l *ConnLimiter) ConnContext(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, admissionKey{}, admission{l, conn})
}

// ErrTooManyConnections is the response to a request that Admit does not admit.
var ErrTooManyConnections = httperror.New(http.StatusServiceUnavailable, "too many connections: close some of them, or retry later")

// Admit records that the connection of a request belongs to a caller with a role. ctx is the context of
// the request. waits means that the request waits for a change, like a long poll. Admit returns false if
// there are too many callers, and the connection must then be closed. Without a ConnLimiter in ctx,
// it returns true.
func Admit(ctx context.Context, waits bool) bool {
	a, ok := ctx.Value(admissionKey{}).(admission)
	return !ok || a.limiter.admit(a.conn, waits)
}

func (l *ConnLimiter) admit(conn net.Conn, waits bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c, known := l.conns[conn]
	if !known {
		return false // it was replaced
	}
	if !c.caller {
		if _, callers := l.count(); callers >= l.maxCallers && !l.replace(true, c.network) {
			return false
		}
	}
	c.caller, c.waits = true, waits
	return true
}

// add adds a new connection, which is a stranger.
func (l *ConnLimiter) add(conn net.Conn) {
	from := networkOfAddress(conn.RemoteAddr().String())
	if strangers, callers := l.count(); strangers >= l.maxStrangers || strangers+callers >= l.max {
		if !l.replace(false, from) {
			closeConn(conn)
			return
		}
	}
	l.conns[conn] = &limitedConn{network: from, since: time.Now()}
}

func (l *ConnLimiter) count() (strangers, callers int) {
	for _, c := range l.conns {
		if c.caller {
			callers++
		}
	}
	return len(l.conns) - callers, callers
}

// replace closes a connection, to make room for one from the network newcomer: that of a caller, or of a
// stranger if caller is false. It returns false if no connection may be closed for the new one.
func (l *ConnLimiter) replace(caller bool, newcomer netip.Prefix) bool {
	perNetwork := map[netip.Prefix]int{newcomer: 1}
	for _, c := range l.conns {
		if c.caller == caller {
			perNetwork[c.network]++
		}
	}
	mayReplace := func(c *limitedConn) bool {
		n := perNetwork[c.network]
		return c.caller == caller && (n > perNetwork[newcomer] || n == perNetwork[newcomer] && (c.waits || !caller))
	}
	// less reports whether connection a is replaced before connection b.
	less := func(a, b *limitedConn) bool {
		switch n, m := perNetwork[a.network], perNetwork[b.network]; {
		case n != m:
			return n > m
		case caller && a.waits != b.waits:
			return a.waits
		}
		return a.since.Before(b.since)
	}
	var replaced net.Conn
	for conn, c := range l.conns {
		if mayReplace(c) && (replaced == nil || less(c, l.conns[replaced])) {
			replaced = conn
		}
	}
	if replaced == nil {
		return false
	}
	delete(l.conns, replaced)
	closeConn(replaced)
	return true
}

// closeConn closes the TCP connection without the TLS close message, which would block on a peer that
// does not read. The server detects this and releases the other resources.
func closeConn(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close()
}

// networkOfAddress returns the network of HOST:PORT. All addresses without an IP share the zero Prefix.
func networkOfAddress(address string) netip.Prefix {
	from, _ := netip.ParseAddrPort(address)
	return networkOfIP(from.Addr())
}

func networkOfIP(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits)
	return network
}
