package main

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// How many connections a daemon has at most. Several managers may be behind one
// address; one that is only misbehaving leaves room for others.
const (
	maxConnections    = 1024
	maxFromOneAddress = 256
)

// crowd bounds the connections to a server. When there are too many, the one that
// has been silent for longest makes room; when all of them are being answered, the
// new one is closed.
type crowd struct {
	most, mostOfOne int

	mu  sync.Mutex
	all map[net.Conn]*visitor
}

type visitor struct {
	from   netip.Addr
	silent time.Time // since when; zero: it is being answered
}

func newCrowd() *crowd {
	return &crowd{most: maxConnections, mostOfOne: maxFromOneAddress, all: map[net.Conn]*visitor{}}
}

// follow is told by the server what becomes of each connection.
func (c *crowd) follow(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		c.enter(conn)
	case http.StateActive:
		if v := c.all[conn]; v != nil {
			v.silent = time.Time{}
		}
	case http.StateIdle:
		if v := c.all[conn]; v != nil {
			v.silent = time.Now()
		}
	case http.StateClosed, http.StateHijacked:
		delete(c.all, conn)
	}
}

func (c *crowd) enter(conn net.Conn) {
	now := &visitor{from: addressOf(conn), silent: time.Now()}
	all, longest := c.count(func(*visitor) bool { return true })
	same, longestSame := c.count(func(v *visitor) bool { return v.from == now.from })
	switch {
	case same >= c.mostOfOne:
		longest = longestSame
	case all < c.most:
		c.all[conn] = now
		return
	}
	if longest == nil {
		hangUp(conn)
		return
	}
	delete(c.all, longest)
	hangUp(longest)
	c.all[conn] = now
}

// count counts visitors, and returns the one of them that is silent for longest; nil
// when none is.
func (c *crowd) count(among func(*visitor) bool) (n int, longest net.Conn) {
	for conn, v := range c.all {
		if !among(v) {
			continue
		}
		n++
		if !v.silent.IsZero() && (longest == nil || v.silent.Before(c.all[longest].silent)) {
			longest = conn
		}
	}
	return n, longest
}

// hangUp does not say goodbye by TLS, for which somebody would have to listen. The
// server notices, and sees to the rest.
func hangUp(conn net.Conn) {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	_ = conn.Close()
}

func addressOf(conn net.Conn) netip.Addr {
	from, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // the zero Addr counts like any
	return from.Addr().Unmap()
}
