package peer

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// village is nodes without disks on a network without sockets, where time is fake.
type village struct {
	client *Client

	mu    sync.Mutex
	nodes map[string]*hut // by host
	dials int
}

type hut struct {
	board  *Board
	calls  chan net.Conn
	asked  atomic.Int64
	down   atomic.Bool
	server *http.Server
}

func newVillage(t *testing.T) *village {
	v := &village{client: NewClient(nil, nil), nodes: map[string]*hut{}}
	v.client.http.Transport.(*http.Transport).DialContext = v.dial
	t.Cleanup(func() {
		v.client.Close()
		for _, h := range v.nodes {
			h.server.Close()
		}
	})
	return v
}

func (v *village) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	v.mu.Lock()
	h := v.nodes[host]
	v.dials++
	port := v.dials
	v.mu.Unlock()
	if h == nil || h.down.Load() {
		from := &net.TCPAddr{Port: port} // another one each time, as in real life
		return nil, &net.OpError{Op: "dial", Net: network, Source: from, Err: errors.New("connection refused")}
	}
	ours, theirs := net.Pipe()
	h.calls <- theirs
	return ours, nil
}

func (v *village) add(ctx context.Context, name string) *hut {
	h := &hut{board: NewBoard(), calls: make(chan net.Conn, 16)}
	handler := NewServer(Host{Board: h.board}).Handler()
	h.server = &http.Server{
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.asked.Add(1)
			handler.ServeHTTP(w, r)
		}),
	}
	go h.server.Serve(h)
	v.mu.Lock()
	defer v.mu.Unlock()
	v.nodes[name] = h
	return h
}

// A hut is its own listener.
func (h *hut) Accept() (net.Conn, error) {
	if c, ok := <-h.calls; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (h *hut) Close() error { close(h.calls); return nil }

func (h *hut) Addr() net.Addr { return &net.TCPAddr{} }

func (v *village) watch(t *testing.T, nodes ...string) *Watch {
	w := NewWatch(v.client)
	t.Cleanup(w.Close)
	urls := map[string]string{}
	for _, name := range nodes {
		urls[name] = "http://" + name + ":8000"
	}
	w.Follow(t.Context(), urls)
	return w
}

// pokes counts what was sent to Changed since the last call.
func pokes(w *Watch) int {
	synctest.Wait()
	select {
	case <-w.Changed():
		return 1
	default:
		return 0
	}
}
