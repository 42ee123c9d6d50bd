package auth

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// The default limits of a ConnLimiter. Several managers may share one address behind NAT,
// and one address must not use up all connections.
const (
	maxConns           = 1024
	maxConnsPerAddress = 256
)

// ConnLimiter limits the connections to a server, in total and for each remote address. A
// connection over a limit replaces the longest idle one, of the same address if that has
// too many. If no connection is idle, the new one is closed. It is safe for concurrent use.
type ConnLimiter struct {
	max, maxPerAddress int

	mu    sync.Mutex
	conns map[net.Conn]limitedConn
}

type limitedConn struct {
	from      netip.Addr
	idleSince time.Time // zero: it serves a request
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
	case !known: // it was replaced, and its goroutine has not noticed yet
	case state == http.StateActive:
		l.conns[conn] = limitedConn{from: c.from}
	case state == http.StateIdle:
		l.conns[conn] = limitedConn{c.from, time.Now()}
	}
}

func (l *ConnLimiter) add(conn net.Conn) {
	from := addressOf(conn)
	fromSame := 0
	var idle, idleSame net.Conn // the longest idle connections: of all, and of the address
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

// closeConn closes the TCP connection without the TLS close message, which would block on
// a peer that does not read. The server notices and releases the rest.
func closeConn(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close()
}

// addressOf returns the zero Addr for an address without IP, which counts like any other.
func addressOf(conn net.Conn) netip.Addr {
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String())
	return from.Addr().Unmap()
}
