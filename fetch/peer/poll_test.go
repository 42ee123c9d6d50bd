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

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

func TestPollerNoticesAChangeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		h := network.add(t.Context(), "node1")
		s := model.Node{Version: model.Version, Node: "node1", ConfigDigest: "one"}
		h.cache.Publish(s)
		p := network.newPoller(t, "node1")
		<-p.Changed()
		if a := p.Observations()["node1"]; !a.Polled || a.Problem != "" || a.State.ConfigDigest != "one" {
			t.Fatalf("got %+v", a)
		}
		time.Sleep(10 * time.Second)
		published := time.Now()
		s.ConfigDigest = "two"
		h.cache.Publish(s)
		<-p.Changed()
		a := p.Observations()["node1"]
		if took := time.Since(published); took != 0 || a.State.ConfigDigest != "two" {
			t.Errorf("got %+v after %v", a, took)
		}
		if !a.LastSuccess.Before(published) || a.LastSeen.Before(published) {
			t.Errorf("published at %v: last success %v, last seen %v", published, a.LastSuccess, a.LastSeen)
		}
	})
}

func TestPollerSendsFewRequestsWhenIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		h := network.add(t.Context(), "node1")
		h.cache.Publish(model.Node{Node: "node1"})
		p := network.newPoller(t, "node1")
		<-p.Changed()
		time.Sleep(10 * time.Minute)
		if n := h.requests.Load(); n > 22 {
			t.Errorf("%d requests in 10 minutes", n)
		}
		if notifications(p) != 0 {
			t.Error("a notification without a change")
		}
		if a := p.Observations()["node1"]; time.Since(a.LastSuccess) > 61*time.Second || time.Since(a.LastSeen) > 31*time.Second {
			t.Errorf("last success %v ago, last seen %v ago", time.Since(a.LastSuccess), time.Since(a.LastSeen))
		}
		if network.dials != 1 {
			t.Errorf("%d connections", network.dials)
		}
	})
}

func TestPollerCombinesFrequentChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		h := network.add(t.Context(), "node1")
		p := network.newPoller(t, "node1")
		for i := range 2000 {
			h.cache.Publish(model.Node{Version: model.Version, Node: "node1", ConfigDigest: fmt.Sprint(i)})
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
		if n := h.requests.Load(); n > 23 {
			t.Errorf("%d requests in 2 seconds", n)
		}
		if a := p.Observations()["node1"]; a.State.ConfigDigest != "1999" {
			t.Errorf("got %+v", a)
		}
	})
}

func TestPollerBacksOffFromAnUnreachablePeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		start := time.Now()
		p := network.newPoller(t, "node1")
		<-p.Changed()
		time.Sleep(time.Minute)
		if notifications(p) != 0 {
			t.Error("a notification although the problem is the same")
		}
		if network.dials < 12 || network.dials > 22 {
			t.Errorf("%d attempts in a minute", network.dials)
		}
		a := p.Observations()["node1"]
		if !a.Polled || a.Problem != "query http://node1:8000: dial: connection refused" || !a.LastSuccess.IsZero() || !a.LastSeen.Equal(start) {
			t.Errorf("polled since %v, got %+v", start, a)
		}
		network.add(t.Context(), "node1").cache.Publish(model.Node{Node: "node1"})
		returned := time.Now()
		<-p.Changed()
		if a := p.Observations()["node1"]; a.Problem != "" || time.Since(returned) > 7*time.Second {
			t.Errorf("after %v got %+v", time.Since(returned), a)
		}
	})
}

// TestPollerNoticesAnUnchangedPeerThatReturns checks that the poller sends no long poll after a
// failure. Otherwise a peer that returns with the same state would count as unreachable until the end
// of the long poll.
func TestPollerNoticesAnUnchangedPeerThatReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		h := network.add(t.Context(), "node1")
		h.cache.Publish(model.Node{Version: model.Version, Node: "node1", ConfigDigest: "one"})
		p := network.newPoller(t, "node1")
		<-p.Changed()
		time.Sleep(20 * time.Second) // a long poll is pending
		failed := time.Now()
		h.down.Store(true)
		h.server.Close()
		<-p.Changed()
		a := p.Observations()["node1"]
		if a.Problem == "" || a.State.ConfigDigest != "one" || !a.LastSeen.Equal(failed) {
			t.Fatalf("failed at %v, got %+v", failed, a)
		}
		for range 3 { // wait until the problem does not change any more
			time.Sleep(10 * time.Second)
			notifications(p)
		}
		network.add(t.Context(), "node1").cache.Publish(model.Node{Version: model.Version, Node: "node1", ConfigDigest: "one"})
		returned := time.Now()
		<-p.Changed()
		if a := p.Observations()["node1"]; a.Problem != "" || time.Since(returned) > 7*time.Second {
			t.Errorf("after %v got %+v", time.Since(returned), a)
		}
	})
}

func TestSetPeersReplacesThePeers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		for _, name := range []string{"node1", "node2"} {
			network.add(t.Context(), name).cache.Publish(model.Node{Node: name})
		}
		p := network.newPoller(t, "node1")
		synctest.Wait()
		notifications(p)
		p.SetPeers(t.Context(), targets(map[string]string{"node2": "http://node2:8000", "node3": ""}))
		if notifications(p) != 1 {
			t.Error("no notification")
		}
		all := p.Observations()
		if len(all) != 2 || all["node2"].State.Node != "node2" {
			t.Errorf("got %+v", all)
		}
		if a := all["node3"]; !a.Polled || a.Problem != "no address is declared for this node: declare it in nodes" {
			t.Errorf("got %+v", a)
		}
		before := network.nodes["node1"].requests.Load()
		time.Sleep(10 * time.Minute)
		if after := network.nodes["node1"].requests.Load(); after != before {
			t.Errorf("%d requests to a node that is no peer any more", after-before)
		}
	})
}

func TestSetPeersForgetsAPeerAtANewAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		network.add(t.Context(), "node1").cache.Publish(model.Node{Node: "node1"})
		network.add(t.Context(), "node2").cache.Publish(model.Node{Node: "node2"})
		p := network.newPoller(t, "node1")
		synctest.Wait()
		p.SetPeers(t.Context(), targets(map[string]string{"node1": "http://node2:8000"}))
		synctest.Wait()
		a := p.Observations()["node1"]
		if !strings.HasSuffix(a.Problem, "is node node2, not node1: correct the address of node1") || !a.LastSuccess.IsZero() {
			t.Errorf("got %+v", a)
		}
	})
}

// A disk is declared after its node has published it: the state is requested again at once, and is
// known to be outdated until then. A change of the scope that leaves out nothing causes no request.
func TestPollerRequestsWhatANewScopeNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		h := network.add(t.Context(), "node1")
		h.cache.Publish(model.Node{Node: "node1", Disks: map[string]model.Disk{"disk1": {}, "disk2": {}}})
		p := NewPoller(network.client)
		t.Cleanup(p.Close)
		declare := func(image string, disks ...string) {
			scope := Scope{Disks: map[string]bool{}, Images: map[string]string{image: "00000001"}}
			for _, name := range disks {
				scope.Disks[name] = true
			}
			p.SetPeers(t.Context(), map[string]Target{"node1": {URL: "http://node1:8000", Scope: scope}})
		}
		expect := func(disks int, outdated bool, requests int64) {
			t.Helper()
			a := p.Observations()["node1"]
			if len(a.State.Disks) != disks || a.Outdated != outdated || a.Problem != "" || h.requests.Load() != requests {
				t.Fatalf("%d requests, got %+v", h.requests.Load(), a)
			}
		}
		declare("parrot", "disk1")
		<-p.Changed()
		time.Sleep(10 * time.Second)
		expect(1, false, 2) // one of them is a long poll
		h.delay.Store(int64(time.Second))
		declare("parrot", "disk1", "disk2")
		synctest.Wait()
		expect(1, true, 3)
		time.Sleep(2 * time.Second)
		expect(2, false, 4) // with the next long poll
		<-p.Changed()
		time.Sleep(10 * time.Second)
		declare("macaw", "disk1", "disk2")
		synctest.Wait()
		expect(2, false, 4)

		h.delay.Store(0)
		p.SetPeers(t.Context(), nil)
		<-p.Changed()
		declare("parrot", "disk1")
		<-p.Changed()
		declare("parrot", "disk1", "disk2") // in the pause between two requests
		time.Sleep(time.Second)
		expect(2, false, 7)
	})
}

func TestPollerEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		network.add(t.Context(), "node1").cache.Publish(model.Node{Node: "node1"})
		ctx, cancel := context.WithCancel(t.Context())
		p := NewPoller(network.client)
		p.SetPeers(ctx, targets(map[string]string{"node1": "http://node1:8000", "node2": "http://node2:8000"}))
		synctest.Wait()
		cancel()
		p.running.Wait() // deadlocks unless all requests have ended
		p.Close()
		p.SetPeers(t.Context(), targets(map[string]string{"node1": "http://node1:8000"}))
		p.running.Wait()
	})
}

// fakeNetwork is a network in memory, for nodes without disks and tests with fake time.
type fakeNetwork struct {
	client *Client

	mu    sync.Mutex
	nodes map[string]*fakeNode // by host name
	dials int
}

// fakeNode is a node and the net.Listener of its server.
type fakeNode struct {
	cache    *StateCache
	conns    chan net.Conn
	requests atomic.Int64
	down     atomic.Bool
	delay    atomic.Int64 // of each response, in nanoseconds
	server   *http.Server
}

func newFakeNetwork(t *testing.T) *fakeNetwork {
	n := &fakeNetwork{client: NewClient(nil, nil), nodes: map[string]*fakeNode{}}
	n.client.http.Transport.(*http.Transport).DialContext = n.dial
	t.Cleanup(func() {
		n.client.Close()
		for _, node := range n.nodes {
			node.server.Close()
		}
	})
	return n
}

func (n *fakeNetwork) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(address)
	n.mu.Lock()
	node := n.nodes[host]
	n.dials++
	port := n.dials
	n.mu.Unlock()
	if node == nil || node.down.Load() {
		from := &net.TCPAddr{Port: port} // a different port for each attempt, as in reality
		return nil, &net.OpError{Op: "dial", Net: network, Source: from, Err: errors.New("connection refused")}
	}
	ours, theirs := net.Pipe()
	node.conns <- theirs
	return ours, nil
}

// add starts a node. The server of the node shuts down when ctx ends.
func (n *fakeNetwork) add(ctx context.Context, name string) *fakeNode {
	node := &fakeNode{cache: NewStateCache(), conns: make(chan net.Conn, 16)}
	handler := NewServer(node.cache, nil).Handler()
	node.server = &http.Server{
		BaseContext: func(net.Listener) context.Context { return ctx },
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			node.requests.Add(1)
			time.Sleep(time.Duration(node.delay.Load()))
			handler.ServeHTTP(w, r)
		}),
	}
	go node.server.Serve(node)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.nodes[name] = node
	return node
}

func (f *fakeNode) Accept() (net.Conn, error) {
	if c, ok := <-f.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (f *fakeNode) Close() error { close(f.conns); return nil }

func (f *fakeNode) Addr() net.Addr { return &net.TCPAddr{} }

// newPoller returns a Poller of the given nodes.
func (n *fakeNetwork) newPoller(t *testing.T, nodes ...string) *Poller {
	p := NewPoller(n.client)
	t.Cleanup(p.Close)
	urls := map[string]string{}
	for _, name := range nodes {
		urls[name] = "http://" + name + ":8000"
	}
	p.SetPeers(t.Context(), targets(urls))
	return p
}

// notifications waits until all goroutines are idle, and returns the number of values in Changed.
func notifications(p *Poller) int {
	synctest.Wait()
	select {
	case <-p.Changed():
		return 1
	default:
		return 0
	}
}

// targets returns the nodes with these URLs. All their disks and images are declared.
func targets(urls map[string]string) map[string]Target {
	nodes := map[string]Target{}
	for name, url := range urls {
		nodes[name] = Target{URL: url}
	}
	return nodes
}
