package auth

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// The default limits of a ConnLimiter. Several managers behind NAT may share one address, but a
// single address must not use all connections.
const (
	maxConns           = 1024
	maxConnsPerAddress = 256
)

// ConnLimiter limits the number of connections to a server, in total and for each remote address. A
// new connection over a limit replaces the connection that was idle longest; if the limit of the
// address is exceeded, it replaces one of the same address. If no such connection is idle, the new
// one is closed. A ConnLimiter is safe for concurrent use.
type ConnLimiter struct {
	max, maxPerAddress int

	mu    sync.Mutex
	conns map[net.Conn]limitedConn
}

type limitedConn struct {
	from      netip.Addr
	idleSince time.Time // zero: the connection serves a request
}

// NewConnLimiter returns a ConnLimiter for one server with the default limits.
func NewConnLimiter() *ConnLimiter {
	return &ConnLimiter{max: maxConns, maxPerAddress: maxConnsPerAddress, conns: map[net.Conn]limitedConn{}}
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
	case state == http.StateActive:
		l.conns[conn] = limitedConn{from: c.from}
	case state == http.StateIdle:
		l.conns[conn] = limitedConn{c.from, time.Now()}
	}
}

func (l *ConnLimiter) add(conn net.Conn) {
	from := addressOf(conn)
	fromSame := 0
	var idle, idleSame net.Conn // the connections that were idle longest: of all addresses, and of the same address
	older := func(c limitedConn, than net.Conn) bool {
		return !c.idleSince.IsZero() && (than == nil || c.idleSince.Before(l.conns[than].idleSince))
	}
	for other, c := range l.conns {
		if older(c, idle) {
			idle = other
		}
		if c.from != from {
			continue
		}
		fromSame++
		if older(c, idleSame) {
			idleSame = other
		}
	}
	switch {
	case fromSame >= l.maxPerAddress:
		idle = idleSame
	case len(l.conns) < l.max:
		l.conns[conn] = limitedConn{from, time.Now()}
		return
	}
	if idle == nil {
		closeConn(conn)
		return
	}
	delete(l.conns, idle)
	closeConn(idle)
	l.conns[conn] = limitedConn{from, time.Now()}
}

// closeConn closes the TCP connection without the TLS close message, which would block on a peer that
// does not read. The server detects this and releases the other resources.
func closeConn(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close()
}

// addressOf returns the remote address. All addresses without an IP share the zero Addr.
func addressOf(conn net.Conn) netip.Addr {
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return from.Addr().Unmap()
}
