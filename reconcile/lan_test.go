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

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// lan is some nodes with a disk each, which ask each other over real connections.
type lan struct {
	t      *testing.T
	nodes  []*manager
	origin *fetchtest.Server
	// interval is how often they look even if nothing happens.
	interval time.Duration
}

// manager is a node. The questions of the others pass its gate.
type manager struct {
	*looping
	name, conf, disk string
	server           *httptest.Server

	mu   sync.Mutex
	gate func(asker string, r *http.Request) bool // false: no answer
}

const clusterSettings = `settings: {allowLoopbackSources: true, cleanupWaitInterval: "0s", recoveryWaitInterval: 300}`

// newLAN makes n nodes, called n1 and so on, that do not run yet.
func newLAN(t *testing.T, n int) *lan {
	c := &lan{t: t, origin: fetchtest.Start(t), interval: 100 * time.Millisecond}
	for i := range n {
		m := &manager{name: fmt.Sprint("n", i+1), conf: t.TempDir(), disk: newDisk(t)}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", i+1))
		must(t, err)
		m.server = &httptest.Server{Listener: l, Config: &http.Server{}}
		c.nodes = append(c.nodes, m)
	}
	return c
}

// start runs the nodes, each with this configuration besides the nodes themselves.
func (c *lan) start(config string) {
	c.declare(config, c.nodes...)
	for _, m := range c.nodes {
		r := New(fetch.Client{}, slog.New(slog.DiscardHandler), false)
		client := peer.NewClient(func() string { return m.name }, nil)
		l := NewLoop(r, LoopOptions{Dir: m.conf, Interval: c.interval, Node: m.name, Peers: client, Log: slog.New(slog.DiscardHandler)})
		ctx, stop := context.WithCancel(c.t.Context())
		m.looping = &looping{Loop: l, t: c.t, stop: stop, ended: make(chan error, 1)}
		m.server.Config.Handler = m.guarded(l.PeerServer().Handler())
		m.server.Config.BaseContext = func(net.Listener) context.Context { return ctx }
		m.server.Start()
		go func() { m.ended <- l.Run(ctx) }()
		c.t.Cleanup(func() { must(c.t, m.end()); m.server.Close() })
	}
}

// guarded lets through what the gate does. The askers' tokens are their names.
func (m *manager) guarded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		gate := m.gate
		m.mu.Unlock()
		asker := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if gate != nil && !gate(asker, r) {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// pass sets the gate. Questions that wait for news have to come again.
func (m *manager) pass(gate func(asker string, r *http.Request) bool) {
	m.mu.Lock()
	m.gate = gate
	m.mu.Unlock()
	m.server.CloseClientConnections()
}

// declare writes the configuration of some nodes.
func (c *lan) declare(config string, of ...*manager) {
	text := "nodes:\n"
	for _, m := range c.nodes {
		text += fmt.Sprintf("  %s: {address: %q, disks: {a: {path: %q}}}\n", m.name, "http://"+m.server.Listener.Addr().String(), m.disk)
	}
	for _, m := range of {
		files.Put(c.t, text+config, m.conf, "config.yaml.new")
		files.Rename(c.t, filepath.Join(m.conf, "config.yaml.new"), filepath.Join(m.conf, "config.yaml"))
	}
}

func (c *lan) image(copies int, url string) string {
	return fmt.Sprintf("images: {parrot: {minNumberOfCopies: %d, source: {download: {url: %q}}}}\n", copies, url)
}

// ranked returns the nodes as they rank for the image.
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

// holds reports whether a node has a ready copy, by its own look.
func (m *manager) holds(v *status.View) bool {
	return isReadyOn(v, schema.DiskRef{Node: m.name, Disk: "a"})
}

func isReadyOn(v *status.View, ref schema.DiskRef) bool {
	for id, c := range v.Observed.Disks[ref].Copies {
		if id.Name == "parrot" && c.State == disk.Ready {
			return true
		}
	}
	return false
}

// everywhere waits until all nodes have a ready copy, and see that all have.
func (c *lan) everywhere() {
	for _, m := range c.nodes {
		m.until("ready everywhere", func(v *status.View) bool {
			for _, other := range c.nodes {
				if !isReadyOn(v, schema.DiskRef{Node: other.name, Disk: "a"}) {
					return false
				}
			}
			return len(v.Observed.Running) == 0
		})
	}
}

// TestNodesSync: one node asks the origin, and the others that one.
func TestNodesSync(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 3)
	c.interval = time.Hour // nobody waits for that
	const size = 5<<20 + 512
	url := c.origin.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, size)))
	c.start(clusterSettings + "\n" + c.image(3, url))
	c.everywhere()
	if n := len(c.origin.Requests()); n != 1 {
		t.Errorf("the origin was asked %d times", n)
	}
	var fetched, pulled int64
	for _, m := range c.nodes {
		counts := m.Counts()
		fetched, pulled = fetched+counts.Fetched, pulled+counts.FromPeers
	}
	if fetched != size || pulled < 2*size {
		t.Errorf("%d bytes came from the origin and %d from other nodes", fetched, pulled)
	}
}
