package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

func TestPollerNoticesAChangeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		h := v.add(t.Context(), "node1")
		s := State{Node: "node1", Config: "one"}
		h.cache.Publish(s)
		w := v.newPoller(t, "node1")
		<-w.Changed()
		if a := w.Observations()["node1"]; !a.Polled || a.Problem != "" || a.State.Config != "one" {
			t.Fatalf("got %+v", a)
		}
		time.Sleep(10 * time.Second)
		published := time.Now()
		s.Config = "two"
		h.cache.Publish(s)
		<-w.Changed()
		a := w.Observations()["node1"]
		if took := time.Since(published); took != 0 || a.State.Config != "two" {
			t.Errorf("got %+v after %v", a, took)
		}
		if !a.LastSuccess.Before(published) || a.LastSeen.Before(published) {
			t.Errorf("published at %v: last %v, since %v", published, a.LastSuccess, a.LastSeen)
		}
	})
}

func TestPollerSendsFewRequestsWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		h := v.add(t.Context(), "node1")
		h.cache.Publish(State{Node: "node1"})
		w := v.newPoller(t, "node1")
		<-w.Changed()
		time.Sleep(10 * time.Minute)
		if asked := h.requests.Load(); asked > 22 {
			t.Errorf("%d questions in 10 minutes", asked)
		}
		if notifications(w) != 0 {
			t.Error("it says that something changed")
		}
		if a := w.Observations()["node1"]; time.Since(a.LastSuccess) > 61*time.Second || time.Since(a.LastSeen) > 31*time.Second {
			t.Errorf("last %v ago, since %v ago", time.Since(a.LastSuccess), time.Since(a.LastSeen))
		}
		if v.dials != 1 {
			t.Errorf("%d connections", v.dials)
		}
	})
}

func TestPollerCombinesFrequentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		h := v.add(t.Context(), "node1")
		w := v.newPoller(t, "node1")
		for i := range 2000 {
			h.cache.Publish(State{Node: "node1", Config: fmt.Sprint(i)})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if asked := h.requests.Load(); asked > 23 {
			t.Errorf("%d questions in 2 seconds", asked)
		}
		if a := w.Observations()["node1"]; a.State.Config != "1999" {
			t.Errorf("got %+v", a)
		}
	})
}

func TestPollerBacksOffFromAnUnreachablePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		begun := time.Now()
		w := v.newPoller(t, "node1")
		<-w.Changed()
		time.Sleep(time.Minute)
		if notifications(w) != 0 {
			t.Error("the same problem is taken for another one")
		}
		if v.dials < 12 || v.dials > 22 {
			t.Errorf("asked %d times in a minute", v.dials)
		}
		a := w.Observations()["node1"]
		if !a.Polled || a.Problem != "query http://node1:8000: dial: connection refused" || !a.LastSuccess.IsZero() || !a.LastSeen.Equal(begun) {
			t.Errorf("followed at %v, got %+v", begun, a)
		}
		v.add(t.Context(), "node1").cache.Publish(State{Node: "node1"})
		came := time.Now()
		<-w.Changed()
		if a := w.Observations()["node1"]; a.Problem != "" || time.Since(came) > 7*time.Second {
			t.Errorf("after %v got %+v", time.Since(came), a)
		}
	})
}

// A node that comes back with the state it had is asked without a wait, so that it is
// not silent for the length of a long poll.
func TestPollerNoticesAnUnchangedPeerThatReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		h := v.add(t.Context(), "node1")
		h.cache.Publish(State{Node: "node1", Config: "one"})
		w := v.newPoller(t, "node1")
		<-w.Changed()
		time.Sleep(20 * time.Second) // a question is open, and the node is not silent
		broke := time.Now()
		h.down.Store(true)
		h.server.Close()
		<-w.Changed()
		a := w.Observations()["node1"]
		if a.Problem == "" || a.State.Config != "one" || !a.LastSeen.Equal(broke) {
			t.Fatalf("broke at %v, got %+v", broke, a)
		}
		for range 3 { // whatever else the problem was, it settles
			time.Sleep(10 * time.Second)
			notifications(w)
		}
		v.add(t.Context(), "node1").cache.Publish(State{Node: "node1", Config: "one"})
		came := time.Now()
		<-w.Changed()
		if a := w.Observations()["node1"]; a.Problem != "" || time.Since(came) > 7*time.Second {
			t.Errorf("after %v got %+v", time.Since(came), a)
		}
	})
}

func TestSetPeersReplacesThePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		for _, name := range []string{"node1", "node2"} {
			v.add(t.Context(), name).cache.Publish(State{Node: name})
		}
		w := v.newPoller(t, "node1")
		synctest.Wait()
		notifications(w)
		w.SetPeers(t.Context(), map[string]string{"node2": "http://node2:8000", "node3": ""})
		if notifications(w) != 1 {
			t.Error("nothing changed")
		}
		answers := w.Observations()
		if len(answers) != 2 || answers["node2"].State.Node != "node2" {
			t.Errorf("got %+v", answers)
		}
		if a := answers["node3"]; !a.Polled || a.Problem != "no address is declared for this node" {
			t.Errorf("got %+v", a)
		}
		asked := v.nodes["node1"].requests.Load()
		time.Sleep(10 * time.Minute)
		if again := v.nodes["node1"].requests.Load(); again != asked {
			t.Errorf("a node that is not followed any more was asked %d times", again-asked)
		}
	})
}

func TestSetPeersForgetsAPeerAtANewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		v.add(t.Context(), "node1").cache.Publish(State{Node: "node1"})
		v.add(t.Context(), "node2").cache.Publish(State{Node: "node2"})
		w := v.newPoller(t, "node1")
		synctest.Wait()
		w.SetPeers(t.Context(), map[string]string{"node1": "http://node2:8000"})
		synctest.Wait()
		a := w.Observations()["node1"]
		if !strings.HasSuffix(a.Problem, "is node node2, not node1") || !a.LastSuccess.IsZero() {
			t.Errorf("got %+v", a)
		}
	})
}

func TestPollerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		v.add(t.Context(), "node1").cache.Publish(State{Node: "node1"})
		ctx, cancel := context.WithCancel(t.Context())
		w := NewPoller(v.client)
		w.SetPeers(ctx, map[string]string{"node1": "http://node1:8000", "node2": "http://node2:8000"})
		synctest.Wait()
		cancel()
		w.running.Wait() // a deadlock unless they end
		w.Close()
		w.SetPeers(t.Context(), map[string]string{"node1": "http://node1:8000"})
		w.running.Wait()
	})
}

// A failure that goes on under the same ETag does not grow older for who watches.
func TestFailureAgesWhileTheETagIsUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newFakeNetwork(t)
		h := v.add(t.Context(), "b")
		begun := time.Now()
		state := func() State {
			return State{Node: "b", Config: "d", Disks: []Disk{{Name: "disk1", UUID: "u", Copies: []Copy{{
				Copy:    disk.Copy{ID: disk.ID{Name: "parrot", UUID: "0000000a"}, State: disk.Pending},
				Failure: &Failure{Action: "download", Message: "no", Attempts: 3, Link: true, Since: -time.Since(begun).Seconds() - 180, RetryIn: 240},
			}}}}}
		}
		h.cache.Publish(state())
		w := NewPoller(v.client)
		defer w.Close()
		w.SetPeers(t.Context(), map[string]string{"b": "http://b:1"})
		for range 360 { // six hours of rounds, each minute
			time.Sleep(time.Minute)
			h.cache.Publish(state())
		}
		a := w.Observations()["b"]
		try := a.State.Disks[0].Copies[0].Failure
		since := a.Received.Add(time.Duration(try.Since * float64(time.Second))) // as reconcile reads it
		t.Logf("it has failed since %v; the watcher, at its last answer %v ago, believes %v", time.Since(begun)+180*time.Second, time.Since(a.LastSuccess), time.Since(since))
		if time.Since(since) < 6*time.Hour {
			t.Error("who watches believes that the failure is young for ever")
		}
	})
}

// fakeNetwork is nodes without disks on a network without sockets, where time is fake.
type fakeNetwork struct {
	client *Client

	mu    sync.Mutex
	nodes map[string]*fakeNode // by host
	dials int
}

type fakeNode struct {
	cache    *StateCache
	conns    chan net.Conn
	requests atomic.Int64
	down     atomic.Bool
	server   *http.Server
}

func newFakeNetwork(t *testing.T) *fakeNetwork {
	v := &fakeNetwork{client: NewClient(nil, nil), nodes: map[string]*fakeNode{}}
	v.client.http.Transport.(*http.Transport).DialContext = v.dial
	t.Cleanup(func() {
		v.client.Close()
		for _, h := range v.nodes {
			h.server.Close()
		}
	})
	return v
}

func (v *fakeNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
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
	h.conns <- theirs
	return ours, nil
}

func (v *fakeNetwork) add(ctx context.Context, name string) *fakeNode {
	h := &fakeNode{cache: NewStateCache(), conns: make(chan net.Conn, 16)}
	handler := NewServer(h.cache, nil).Handler()
	h.server = &http.Server{
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h.requests.Add(1)
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
func (h *fakeNode) Accept() (net.Conn, error) {
	if c, ok := <-h.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (h *fakeNode) Close() error { close(h.conns); return nil }

func (h *fakeNode) Addr() net.Addr { return &net.TCPAddr{} }

func (v *fakeNetwork) newPoller(t *testing.T, nodes ...string) *Poller {
	w := NewPoller(v.client)
	t.Cleanup(w.Close)
	urls := map[string]string{}
	for _, name := range nodes {
		urls[name] = "http://" + name + ":8000"
	}
	w.SetPeers(t.Context(), urls)
	return w
}

// notifications counts what was sent to Changed since the last call.
func notifications(w *Poller) int {
	synctest.Wait()
	select {
	case <-w.Changed():
		return 1
	default:
		return 0
	}
}
