package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile"
)

func TestSilentCallersMakeRoom(t *testing.T) {
	c := newCrowd()
	c.most, c.mostOfOne = 8, 8
	f := newFortress(t, guard{host: "127.0.0.1"}, func(s *http.Server) { s.ConnState = c.follow })
	var silent []net.Conn
	for i := range 30 {
		conn := f.connect()
		if i%2 == 0 {
			if _, err := fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nX-Slow: "); err != nil {
				t.Fatal(err)
			}
		}
		silent = append(silent, conn)
	}
	if status, body := f.say("GET /healthz HTTP/1.1", "Host: localhost"); status != 200 {
		t.Errorf("health is %d %s", status, body)
	}
	if _, err := silent[0].Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
		t.Errorf("the one that has been silent for longest is still there: %v", err)
	}
}

func TestBusyConnectionsAreKept(t *testing.T) {
	c := newCrowd()
	c.most, c.mostOfOne = 2, 2
	conns := make([]net.Conn, 4)
	for i := range conns {
		conns[i], _ = net.Pipe()
		t.Cleanup(func() { conns[i].Close() })
	}
	closed := func(conn net.Conn) bool { return conn.SetDeadline(time.Now()) != nil }
	for _, conn := range conns[:2] {
		c.follow(conn, http.StateNew)
		c.follow(conn, http.StateActive)
	}
	c.follow(conns[2], http.StateNew)
	if closed(conns[0]) || closed(conns[1]) || !closed(conns[2]) {
		t.Error("a new connection drove out one that is being answered, or was let in beyond the limit")
	}
	c.follow(conns[2], http.StateClosed)
	c.follow(conns[1], http.StateIdle)
	c.follow(conns[3], http.StateNew)
	if closed(conns[0]) || !closed(conns[1]) || closed(conns[3]) {
		t.Error("the idle connection did not make room")
	}
	c.follow(conns[1], http.StateClosed)
	c.follow(conns[3], http.StateClosed)
	c.follow(conns[0], http.StateClosed)
	if len(c.all) != 0 {
		t.Errorf("%d connections are not forgotten", len(c.all))
	}
}

// What takes longer than a request may take to be read goes on, and ends when the
// caller goes away.
func TestAnswersOutliveTheTimeToRead(t *testing.T) {
	ended := make(chan error, 1)
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.Context().Done():
			ended <- r.Context().Err()
		}
		if r.URL.RawQuery != "" {
			<-r.Context().Done()
			ended <- r.Context().Err()
		}
	})
	loop := reconcile.NewLoop(nil, reconcile.LoopOptions{})
	s := newServer(server{loop: loop, guard: guard{host: "127.0.0.1"}, peers: slow}, slog.New(slog.DiscardHandler))
	s.ReadTimeout = 50 * time.Millisecond
	f := &fortress{t: t, address: listen(t, s)}
	if status, _ := f.say("GET /v1/state HTTP/1.1", "Host: localhost"); status != 200 || len(ended) > 0 {
		t.Errorf("the request ended early, with status %d", status)
	}
	conn := f.connect()
	if _, err := io.WriteString(conn, "GET /v1/state?forever HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the caller is gone, and the request goes on")
	}
}
