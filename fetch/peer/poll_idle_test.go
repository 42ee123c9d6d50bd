package peer

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// The test of an idle cluster is faster than reality: a long poll waits 1 s instead of 30 s, so the
// traffic of one second corresponds to 30 s.
const (
	idleWait   = time.Second
	idlePeriod = 2 * time.Second
)

// countingListener counts the bytes of all connections that it accepts.
type countingListener struct {
	net.Listener
	bytes *atomic.Int64
}

func (l countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return countingConn{c, l.bytes}, nil
}

type countingConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countingConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

func (c countingConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.bytes.Add(int64(n))
	return n, err
}

// serveAt starts the server of a node without disks and returns its URL.
func serveAt(t *testing.T, host string, cache *StateCache, bytes *atomic.Int64) string {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: NewServer(cache, nil).Handler(), ReadTimeout: 5 * time.Second, WriteTimeout: time.Minute}
	go s.Serve(countingListener{l, bytes})
	t.Cleanup(func() { s.Close() })
	return "http://" + l.Addr().String()
}

func processCPUTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestIdleClusterTraffic: one node polls 99 peers, and these peers poll the node. All of them run in
// this process and use the same CPU time, so the measured CPU time is twice that of one node.
func TestIdleClusterTraffic(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	idlePeers := 99
	if race.Enabled {
		idlePeers = 9
	}
	var idle, transfers atomic.Int64 // number of bytes; transfers: those of the node with a transfer
	cache, busy := NewStateCache(), NewStateCache()
	cache.Publish(stateWith("node0", 1000))
	urls, own := map[string]string{}, serveAt(t, "127.0.1.1", cache, &idle)
	pollers := []*Poller{NewPoller(newClient(t))}
	for i := range idlePeers {
		name := fmt.Sprintf("node%d", i+1)
		other, counter := NewStateCache(), &idle
		if i == idlePeers-1 {
			other, counter = busy, &transfers
		}
		other.Publish(stateWith(name, 10))
		urls[name] = serveAt(t, fmt.Sprintf("127.0.1.%d", i+2), other, counter)
		pollers = append(pollers, NewPoller(newClient(t)))
	}
	for i, p := range pollers {
		p.config.wait = idleWait
		t.Cleanup(p.Close)
		if i == 0 {
			p.SetPeers(t.Context(), targets(urls))
		} else {
			p.SetPeers(t.Context(), targets(map[string]string{"node0": own}))
		}
	}
	for _, p := range pollers {
		for countResponding(p) < len(p.Observations()) {
			<-p.Changed()
		}
	}
	_ = fetch.Sleep(t.Context(), 2*idleWait) // wait until the first responses have arrived
	bytes, used := idle.Load()+transfers.Load(), processCPUTime(t)
	_ = fetch.Sleep(t.Context(), idlePeriod)
	bytes, used = idle.Load()+transfers.Load()-bytes, processCPUTime(t)-used
	real := idlePeriod.Seconds() * defaultPolling.wait.Seconds() / idleWait.Seconds()
	rate, share := float64(bytes)/real, used.Seconds()/real/2
	t.Logf("%d nodes: %.1f kB/s at each, %.2f %% of a core", idlePeers+1, rate/1e3, 100*share)
	if rate > 5e3 {
		t.Errorf("an idle node sends and receives %.0f bytes per second", rate)
	}
	if bytes == 0 {
		t.Error("no requests")
	}
	bytes = transfers.Load()
	publishTransfer(t, busy, fmt.Sprintf("node%d", idlePeers), pollers[0])
	_ = fetch.Sleep(t.Context(), idlePeriod)
	bytes = transfers.Load() - bytes
	t.Logf("a transfer to one node: %.1f kB to each other node", float64(bytes)/1e3)
	if bytes > int64(10e3*idlePeriod.Seconds()) {
		t.Errorf("a transfer to another node costs %d bytes", bytes)
	}
}

// publishTransfer publishes the states of a node during a sync: running, with a partial file,
// complete, and idle again. It waits until p has received each of them.
func publishTransfer(t *testing.T, cache *StateCache, name string, p *Poller) {
	for i, change := range []func(*model.Copy){
		func(c *model.Copy) { c.State, c.Job = model.Pending, model.Sync },
		func(c *model.Copy) { c.State, c.Job, c.PartBytes = model.Pending, model.Sync, 1 },
		func(c *model.Copy) { c.Job = model.Sync },
		func(*model.Copy) {},
	} {
		s := stateWith(name, 11)
		s.ConfigDigest = fmt.Sprint("revision", i)
		changeCopy(s, imageID(10), change)
		cache.Publish(s)
		for p.Observations()[name].State.ConfigDigest != s.ConfigDigest {
			<-p.Changed()
		}
	}
}

// countResponding returns the number of peers that respond.
func countResponding(p *Poller) int {
	n := 0
	for _, o := range p.Observations() {
		if o.Polled && o.Problem == "" {
			n++
		}
	}
	return n
}
