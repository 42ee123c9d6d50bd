package auth

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

func newLimiter(limit int) *ConnLimiter {
	l := NewConnLimiter()
	l.max, l.maxPerAddress = limit, limit
	return l
}

func TestNewConnectionsReplaceIdleOnes(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ConnState = newLimiter(8).ConnState
	s.Config.ReadHeaderTimeout = time.Minute
	s.Start()
	defer s.Close()
	var idle []net.Conn
	for i := range 30 {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nX-Slow: "); err != nil {
				t.Fatal(err)
			}
		}
		idle = append(idle, conn)
	}
	if answer, err := http.Get(s.URL); err != nil || answer.StatusCode != 200 {
		t.Errorf("the response to a request is %v, error %v", answer, err)
	}
	if _, err := idle[0].Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the longest idle connection is still open: %v", err)
	}
}

func TestActiveConnectionsStay(t *testing.T) {
	l := newLimiter(2)
	conns := make([]net.Conn, 4)
	for i := range conns {
		conns[i], _ = net.Pipe()
		t.Cleanup(func() { conns[i].Close() })
	}
	closed := func(conn net.Conn) bool { return conn.SetDeadline(time.Now()) != nil }
	for _, conn := range conns[:2] {
		l.ConnState(conn, http.StateNew)
		l.ConnState(conn, http.StateActive)
	}
	l.ConnState(conns[2], http.StateNew)
	if closed(conns[0]) || closed(conns[1]) || !closed(conns[2]) {
		t.Error("a new connection replaced an active one, or exceeds the limit")
	}
	l.ConnState(conns[2], http.StateClosed)
	l.ConnState(conns[1], http.StateIdle)
	l.ConnState(conns[3], http.StateNew)
	if closed(conns[0]) || !closed(conns[1]) || closed(conns[3]) {
		t.Error("the new connection did not replace the idle one")
	}
	l.ConnState(conns[1], http.StateClosed)
	l.ConnState(conns[3], http.StateClosed)
	l.ConnState(conns[0], http.StateClosed)
	if len(l.conns) != 0 {
		t.Errorf("%d closed connections are still counted", len(l.conns))
	}
}

// addressedConn is a connection from a given remote address.
type addressedConn struct {
	net.Conn
	from string
}

func (c addressedConn) RemoteAddr() net.Addr {
	a, err := net.ResolveTCPAddr("tcp", c.from)
	if err != nil {
		panic(err)
	}
	return a
}

func TestOneAddressReplacesOnlyItsOwnConnections(t *testing.T) {
	l := newLimiter(8)
	l.maxPerAddress = 2
	connect := func(from string) net.Conn {
		conn, _ := net.Pipe()
		t.Cleanup(func() { conn.Close() })
		c := addressedConn{conn, from}
		l.ConnState(c, http.StateNew)
		return c
	}
	other := connect("10.0.0.9:1")
	var conns []net.Conn
	for i := range 5 {
		conns = append(conns, connect(fmt.Sprintf("10.0.0.1:%d", i+1)))
	}
	closed := func(conn net.Conn) bool { return conn.SetDeadline(time.Now()) != nil }
	if closed(other) || !closed(conns[0]) || !closed(conns[2]) || closed(conns[3]) || closed(conns[4]) {
		t.Error("one address exceeds its limit, or replaced a connection of another address")
	}
}
