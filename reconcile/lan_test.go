package reconcile

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// lan is a cluster of nodes with one disk each, which query each other over real connections.
type lan struct {
	t        *testing.T
	nodes    []*manager
	upstream *fetchtest.Server
	// interval is the longest time between two rounds.
	interval time.Duration
	log      *slog.Logger
	evicted  *manager // eviction of its disk is requested; nil: of none
}

// manager is a node of a lan. The requests of other nodes pass its gate.
type manager struct {
	*looping
	name, conf, disk string
	server           *httptest.Server

	mu   sync.Mutex
	gate func(from string, r *http.Request) bool // false: the response is an error
}

const clusterSettings = `settings: {allowLoopbackSources: true, cleanupWaitInterval: "0s", recoveryWaitInterval: 300}`

// newLAN returns n nodes, called n1 and so on, that do not run yet.
func newLAN(t *testing.T, n int) *lan {
	c := &lan{t: t, upstream: fetchtest.Start(t), interval: 100 * time.Millisecond, log: slog.New(slog.DiscardHandler)}
	for i := range n {
		m := &manager{name: fmt.Sprint("n", i+1), conf: t.TempDir(), disk: newDisk(t)}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+1))
		must(t, err)
		m.server = &httptest.Server{Listener: l, Config: &http.Server{}}
		c.nodes = append(c.nodes, m)
	}
	return c
}

// start runs the nodes with this configuration and the declarations of all nodes.
func (c *lan) start(config string) {
	c.declare(config, c.nodes...)
	for _, m := range c.nodes {
		client := peer.NewClient(func() string { return m.name }, nil)
		r := New(fetch.Client{}, client, c.log, false)
		l := NewLoop(r, LoopOptions{Dir: m.conf, Interval: c.interval, Node: m.name, Log: c.log})
		ctx, stop := context.WithCancel(c.t.Context())
		m.looping = &looping{Loop: l, t: c.t, stop: stop, ended: make(chan error, 1)}
		m.server.Config.Handler = m.guarded(l.PeerServer().Handler())
		m.server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
		m.server.Start()
		go func() { m.ended <- l.Run(ctx) }()
		c.t.Cleanup(func() { must(c.t, m.end()); m.server.Close() })
	}
}

// guarded returns h behind the gate. The token of a node is its name.
func (m *manager) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		gate := m.gate
		m.mu.Unlock()
		from := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if gate != nil && !gate(from, r) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// pass sets the gate. It closes the connections, so that long polls pass the new gate.
func (m *manager) pass(gate func(from string, r *http.Request) bool) {
	m.mu.Lock()
	m.gate = gate
	m.mu.Unlock()
	m.server.CloseClientConnections()
}

// declare writes the configuration of some managers.
func (c *lan) declare(config string, to ...*manager) {
	text := "nodes:\n"
	for _, m := range c.nodes {
		text += fmt.Sprintf("  %s: {address: %q, disks: {a: {path: %q, evictionRequested: %v}}}\n", m.name, "http://"+m.server.Listener.Addr().String(), m.disk, m == c.evicted)
	}
	for _, m := range to {
		files.Put(c.t, text+config, m.conf, "config.yaml.new")
		files.Rename(c.t, filepath.Join(m.conf, "config.yaml.new"), filepath.Join(m.conf, "config.yaml"))
	}
}

func (c *lan) image(copies int, url string) string {
	return fmt.Sprintf("images: {parrot: {minNumberOfCopies: %d, source: {download: {url: %q}}}}\n", copies, url)
}

// ranked returns the nodes in the order of their disks for the image.
func (c *lan) ranked() []*manager {
	v := c.nodes[0].until("a configuration", func(v *status.View) bool { return v.Loaded })
	list := plantest.RankedDisks(v.Desired.Config, v.Desired.Config.Images["parrot"])
	byName := map[string]*manager{}
	for _, m := range c.nodes {
		byName[m.name] = m
	}
	var members []*manager
	for i := range len(list) {
		members = append(members, byName[list[i].Node])
	}
	return members
}

// holds reports whether the node has a ready copy in the view v.
func (m *manager) holds(v *status.View) bool {
	return isReadyOn(v, ident.DiskRef{Node: m.name, Disk: "a"})
}

func isReadyOn(v *status.View, ref ident.DiskRef) bool {
	for id, c := range v.Observed.Disks[ref].Copies {
		if id.Name == "parrot" && c.State == model.Ready {
			return true
		}
	}
	return false
}

// everywhere waits until every node observes a ready copy on every node.
func (c *lan) everywhere() {
	for _, m := range c.nodes {
		m.until("ready everywhere", func(v *status.View) bool {
			for _, other := range c.nodes {
				if !isReadyOn(v, ident.DiskRef{Node: other.name, Disk: "a"}) {
					return false
				}
			}
			return len(v.Observed.Running) == 0
		})
	}
}

// Only one node must download from the upstream. The others sync from it.
func TestOneDownloadServesAllNodes(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 3)
	c.interval = time.Hour // the test needs no periodic round
	const size = 5<<20 + 512
	url := c.upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, size)))
	c.start(clusterSettings + "\n" + c.image(3, url))
	c.everywhere()
	if n := len(c.upstream.Requests()); n != 1 {
		t.Errorf("the upstream had %d requests", n)
	}
	var fetched, pulled int64
	for _, m := range c.nodes {
		counts := m.Counts()
		fetched, pulled = fetched+counts.Fetched, pulled+counts.FromPeers
	}
	if fetched != size || pulled < 2*size {
		t.Errorf("%d bytes came from the upstream and %d from other nodes", fetched, pulled)
	}
}
