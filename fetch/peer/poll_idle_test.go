package peer

import (
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// The test of an idle cluster is scaled: a question waits for a second and not for
// 30, and what is counted in a second is what would take 30.
const (
	idleWait   = time.Second
	idlePeriod = 2 * time.Second
)

// countingListener counts all bytes of the connections of a listener.
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

// serveAt starts a node without disks at an address of this machine.
func serveAt(t *testing.T, host string, board *StateCache, bytes *atomic.Int64) string {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: NewServer(board, nil).Handler(), ReadTimeout: 5 * time.Second, WriteTimeout: time.Minute}
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

// One node follows 99 others, and these follow it. The others cost as much as it
// does, all in one process, so that what is measured is twice what a node has.
func TestIdleClusterTraffic(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	idlePeers := 99
	if race.Enabled {
		idlePeers = 9
	}
	var idle, told atomic.Int64 // told is what the busy node says and is asked
	board, busy := NewStateCache(), NewStateCache()
	board.Publish(stateWith("node0", 1000))
	urls, ours := map[string]string{}, serveAt(t, "127.0.1.1", board, &idle)
	watches := []*Poller{NewPoller(newClient(t))}
	for i := range idlePeers {
		name := fmt.Sprintf("node%d", i+1)
		other, bytes := NewStateCache(), &idle
		if i == idlePeers-1 {
			other, bytes = busy, &told
		}
		other.Publish(stateWith(name, 10))
		urls[name] = serveAt(t, fmt.Sprintf("127.0.1.%d", i+2), other, bytes)
		watches = append(watches, NewPoller(newClient(t)))
	}
	for i, w := range watches {
		w.config.wait = idleWait
		t.Cleanup(w.Close)
		if i == 0 {
			w.SetPeers(t.Context(), urls)
		} else {
			w.SetPeers(t.Context(), map[string]string{"node0": ours})
		}
	}
	for _, w := range watches {
		for countResponding(w) < len(w.Observations()) {
			<-w.Changed()
		}
	}
	sleep(t.Context(), 2*idleWait) // what was known at first is on its way no more
	moved, used := idle.Load()+told.Load(), processCPUTime(t)
	sleep(t.Context(), idlePeriod)
	moved, used = idle.Load()+told.Load()-moved, processCPUTime(t)-used
	real := idlePeriod.Seconds() * defaultPolling.wait.Seconds() / idleWait.Seconds()
	rate, share := float64(moved)/real, used.Seconds()/real/2
	t.Logf("%d nodes: %.1f kB/s at each, %.2f %% of a core", idlePeers+1, rate/1e3, 100*share)
	if rate > 5e3 {
		t.Errorf("an idle node moves %.0f bytes a second", rate)
	}
	if moved == 0 {
		t.Error("nothing is asked")
	}
	moved = told.Load()
	publishTransfer(t, busy, fmt.Sprintf("node%d", idlePeers), watches[0])
	sleep(t.Context(), idlePeriod)
	moved = told.Load() - moved
	t.Logf("an image in transfer on one of them: %.1f kB to a node that is not concerned", float64(moved)/1e3)
	if moved > int64(10e3*idlePeriod.Seconds()) {
		t.Errorf("a transfer elsewhere moves %d bytes to a node", moved)
	}
}

// transfer has a node tell all that it tells while it makes a copy: that it begins, that
// bytes came, that it is ready, and what it does no more. w hears each.
func publishTransfer(t *testing.T, b *StateCache, name string, w *Poller) {
	for i, change := range []func(*Copy){
		func(c *Copy) { c.State, c.Action = disk.Pending, "sync" },
		func(c *Copy) { c.State, c.Action, c.PartBytes = disk.Pending, "sync", 1 },
		func(c *Copy) { c.Action = "sync" },
		func(*Copy) {},
	} {
		s := stateWith(name, 11)
		s.Config = fmt.Sprint("revision", i)
		change(&s.Disks[0].Copies[10])
		b.Publish(s)
		for w.Observations()[name].State.Config != s.Config {
			<-w.Changed()
		}
	}
}

// countResponding is how many nodes answer.
func countResponding(w *Poller) int {
	n := 0
	for _, a := range w.Observations() {
		if a.Polled && a.Problem == "" {
			n++
		}
	}
	return n
}
