package auth

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"
)

// newLimiter returns a ConnLimiter for limit strangers and as many callers.
func newLimiter(limit int) *ConnLimiter {
	l := NewConnLimiter()
	l.max, l.maxStrangers, l.maxCallers = 2*limit, limit, limit
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
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
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

func (c addressedConn) isClosed() bool { return c.SetDeadline(time.Now()) != nil }

// limiterRig has connections to a server that a ConnLimiter limits.
type limiterRig struct {
	t *testing.T
	*ConnLimiter
	opened int
}

// connect opens a connection of a stranger.
func (r *limiterRig) connect(host string) addressedConn {
	conn, _ := net.Pipe()
	r.t.Cleanup(func() { conn.Close() })
	r.opened++
	c := addressedConn{conn, net.JoinHostPort(host, fmt.Sprint(r.opened))}
	r.ConnState(c, http.StateNew)
	return c
}

// request lets a connection send a request with a role.
func (r *limiterRig) request(c addressedConn, waits bool) (served bool) {
	r.ConnState(c, http.StateActive)
	return Admit(r.ConnContext(context.Background(), c), waits)
}

// call opens a connection and sends a request with a role.
func (r *limiterRig) call(host string, waits bool) addressedConn {
	c := r.connect(host)
	if !r.request(c, waits) {
		c.Close()
	}
	return c
}

// wantOpen checks which connections are open, in their order.
func (r *limiterRig) wantOpen(conns []addressedConn, want ...bool) {
	r.t.Helper()
	for i, c := range conns {
		if c.isClosed() == want[i] {
			r.t.Errorf("connection %d from %s is closed: %v", i, c.from, c.isClosed())
		}
	}
}

func TestCallersThatAreServedStay(t *testing.T) {
	r := &limiterRig{t: t, ConnLimiter: newLimiter(2)}
	conns := []addressedConn{r.call("10.0.0.1", false), r.call("10.0.0.1", false), r.call("10.0.0.1", false)}
	r.wantOpen(conns, true, true, false)
	r.ConnState(conns[2], http.StateClosed)
	r.ConnState(conns[1], http.StateIdle)
	conns = append(conns, r.call("10.0.0.1", false))
	r.wantOpen(conns, true, false, false, true)
	for _, c := range conns {
		r.ConnState(c, http.StateClosed)
	}
	if len(r.conns) != 0 {
		t.Errorf("%d closed connections are still counted", len(r.conns))
	}
}

func TestStrangersDoNotReplaceCallers(t *testing.T) {
	r := &limiterRig{t: t, ConnLimiter: newLimiter(4)}
	r.maxStrangers = 2
	callers := []addressedConn{r.call("10.0.0.1", false), r.call("10.0.0.1", true)}
	r.ConnState(callers[0], http.StateIdle)
	for i := range 20 {
		r.ConnState(r.connect(fmt.Sprintf("10.0.1.%d", i)), http.StateActive)
	}
	r.wantOpen(callers, true, true)
	if caller := r.call("10.0.2.1", false); caller.isClosed() {
		t.Error("a caller is not served beside strangers")
	}
}

// An address has no limit of its own, but a flood from one address closes only its own connections.
func TestNetworkWithTheMostConnectionsLosesThem(t *testing.T) {
	for name, many := range map[string]func(i int) string{
		"one IPv4 address":       func(int) string { return "10.0.0.1" },
		"a mapped address":       func(i int) string { return []string{"10.0.0.1", "::ffff:10.0.0.1"}[i%2] },
		"one IPv6 network of 64": func(i int) string { return fmt.Sprintf("2001:db8:0:1:%x::%x", i, i) },
	} {
		r := &limiterRig{t: t, ConnLimiter: newLimiter(8)}
		others := []addressedConn{r.connect("10.0.0.9"), r.connect("2001:db8:0:2::1"), r.connect("2001:db8:0:2::2")}
		var flood []addressedConn
		for i := range 20 {
			flood = append(flood, r.connect(many(i)))
		}
		for i, c := range flood {
			if open := i >= 15; c.isClosed() == open {
				t.Errorf("%s: connection %d is closed: %v", name, i, c.isClosed())
			}
		}
		r.wantOpen(others, true, true, true)
	}
}

func TestLongPollsOfFewAddressesLeaveRoomForOtherCallers(t *testing.T) {
	r := &limiterRig{t: t, ConnLimiter: newLimiter(8)}
	for i := range 40 {
		r.call(fmt.Sprintf("10.0.0.%d", i%4), true)
	}
	others := []addressedConn{r.call("10.0.1.1", false), r.call("10.0.1.2", true), r.call("10.0.1.3", false)}
	r.wantOpen(others, true, true, true)
	// The same with requests that are being served, such as slow transfers.
	r = &limiterRig{t: t, ConnLimiter: newLimiter(8)}
	for i := range 40 {
		r.call(fmt.Sprintf("10.0.0.%d", i%4), false)
	}
	others = []addressedConn{r.call("10.0.1.1", false), r.call("10.0.1.2", true), r.call("10.0.1.3", false)}
	r.wantOpen(others, true, true, true)
	// A network with as many connections as the others gets no more.
	if c := r.call("10.0.1.1", false); !c.isClosed() {
		t.Error("a caller replaced one that is being served and has as many connections")
	}
}
