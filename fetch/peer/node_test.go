package peer

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// testNode implements Node. It has one disk, disk1.
type testNode struct {
	name     string
	disk     *disk.Disk
	declared string                                 // uuid; "": not declared
	damaged  func(ctx context.Context, name string) // nil: must not be called

	mu      sync.Mutex
	leaving map[ident.ID]bool
}

func (n *testNode) Disk(name string) (*disk.Disk, bool) { return n.disk, name == "disk1" }

func (n *testNode) Leaving(_ string, id ident.ID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.leaving[id]
}

func (n *testNode) DeclaredUUID(string) (string, bool) { return n.declared, n.declared != "" }

func (n *testNode) ReportDamage(ctx context.Context, name string) { n.damaged(ctx, name) }

func (n *testNode) Copies(_ context.Context, name, mark string) (model.Node, error) {
	l, err := n.disk.List()
	copies := model.Copies{}
	for _, c := range l.Copies {
		if c.ID.Name == name {
			c.Leaving = n.Leaving("disk1", c.ID)
			copies[c.ID] = c
		}
	}
	s := model.Node{Version: model.Version, Node: n.name, Mark: mark, Disks: map[string]model.Disk{"disk1": {UUID: n.disk.UUID(), Copies: copies}}}
	return s, err
}

// node is a testNode with a Server that listens on loopback.
type node struct {
	testNode
	*httptest.Server
	cache  *StateCache
	server *Server
}

// startNode starts a node. Its http.Server has shorter timeouts than the one of a daemon.
func startNode(t *testing.T, name string) *node {
	t.Helper()
	path := t.TempDir()
	if _, err := disk.Init(path); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	n := &node{testNode: testNode{name: name, disk: d, leaving: map[ident.ID]bool{}}, cache: NewStateCache()}
	n.server = NewServer(n.cache, &n.testNode)
	n.Server = httptest.NewUnstartedServer(n.server.Handler())
	n.Config.ReadTimeout, n.Config.WriteTimeout = time.Second, 2*time.Second // requests must arrive before
	n.Start()
	t.Cleanup(n.Server.Close)
	return n
}

func (n *node) address() Address { return Address{Node: n.name, URL: n.URL} }

// put creates a ready copy with the given content.
func (n *node) put(t *testing.T, id ident.ID, content []byte) Source {
	t.Helper()
	p, err := n.disk.OpenPart(t.Context(), id, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(disk.PartSource{ID: "test", Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	c, err := p.Commit(ident.Digest{})
	if err != nil {
		t.Fatal(err)
	}
	return Source{Address: n.address(), Disk: "disk1", ID: id, ManifestDigest: c.ManifestDigest, Size: c.Size}
}

func (n *testNode) backing(id ident.ID) string {
	return filepath.Join(n.disk.Path(), "backing-images", id.String(), "backing")
}

// withdraw marks the copies of id as leaving.
func (n *node) withdraw(id ident.ID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaving[id] = true
}

func newClient(t *testing.T) *Client {
	c := NewClient(nil, nil)
	t.Cleanup(c.Close)
	return c
}

// randomBytes returns n pseudo-random bytes: no two chunks are equal.
func randomBytes(n int) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{}).Read(b)
	return b
}

// digestOf returns the digest of a text.
func digestOf(a ident.Algorithm, text string) ident.Digest {
	h := a.New()
	h.Write([]byte(text))
	return a.Digest(h)
}

// stateWith returns the state of a node with the given number of ready copies on disk1.
func stateWith(node string, copies int) model.Node {
	d := model.Disk{UUID: "3f1e", Space: model.Space{Total: 1 << 40, Free: 1 << 39}, Copies: model.Copies{}}
	for i := range copies {
		id := imageID(i)
		d.Copies[id] = model.Copy{
			ID:    id,
			State: model.Ready, Format: model.Raw, Size: 2 << 30, VirtualSize: 2 << 30, RealSize: 1 << 30,
			Owned: true, VerifiedAt: time.Unix(1_700_000_000, 0).UTC(),
			SHA512: digestOf(ident.SHA512, fmt.Sprint(i)), ManifestDigest: digestOf(ident.SHA256, fmt.Sprint("chunks", i)),
		}
	}
	return model.Node{Version: model.Version, Node: node, ConfigDigest: "c0ffee", Disks: map[string]model.Disk{"disk1": d}}
}

// imageID returns the i-th image of stateWith.
func imageID(i int) ident.ID {
	return ident.ID{Name: fmt.Sprintf("image-%04d", i), UUID: fmt.Sprintf("%08x", i)}
}

// changeCopy changes a copy on disk1.
func changeCopy(s model.Node, id ident.ID, change func(*model.Copy)) {
	c := s.Disks["disk1"].Copies[id]
	change(&c)
	s.Disks["disk1"].Copies[id] = c
}

// get sends a GET request for a path without normalizing the path.
func (n *node) get(t *testing.T, path string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.URL.Opaque = "//" + r.URL.Host + path
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	_, _ = text.ReadFrom(resp.Body)
	return resp, text.String()
}

func overwrite(t *testing.T, path string, content []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
}
