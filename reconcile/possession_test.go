package reconcile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// liar is a peer with valid credentials and without any bytes. It publishes the state of an honest node
// as its own, and never that a copy is leaving.
type liar struct {
	name   string
	honest *manager
	client *peer.Client
	proof  func(w http.ResponseWriter, r *http.Request) // responds to requests for bytes
	change func(*model.Copy)                            // changes what it claims; nil: nothing
}

func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := peer.Address{Node: l.honest.name, URL: l.honest.server.URL}
	var s model.Node
	var err error
	switch {
	case r.URL.Path == "/v1/state":
		s, _, err = l.client.State(r.Context(), at, "", 0)
	case isQuery(r):
		s, err = l.client.Copies(r.Context(), at, "parrot", r.URL.Query().Get("mark"))
	case strings.HasSuffix(r.URL.Path, "/data"):
		l.proof(w, r)
		return
	default:
		l.relay(w, r)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s.Node = l.name
	for name, d := range s.Disks {
		d.UUID = "the disk of the liar"
		s.Disks[name] = d
		for id, c := range d.Copies {
			c.Leaving, c.Job, c.UsedBy, c.ReadBackAt = false, "", "", time.Now()
			if l.change != nil {
				l.change(&c)
			}
			d.Copies[id] = c
		}
	}
	must(l.honest.t, json.NewEncoder(w).Encode(s))
}

// newLiar serves a liar as the node evil.
func newLiar(t *testing.T, honest, evil *manager) *liar {
	l := &liar{name: evil.name, honest: honest, client: peer.NewClient(nil, nil)}
	t.Cleanup(l.client.Close)
	evil.server.Config.Handler = l
	evil.server.Start()
	t.Cleanup(evil.server.Close)
	return l
}

// relay sends a request to the honest node and returns its response.
func (l *liar) relay(w http.ResponseWriter, r *http.Request) {
	out, err := http.NewRequestWithContext(r.Context(), r.Method, l.honest.server.URL+r.URL.RequestURI(), nil)
	must(l.honest.t, err)
	out.Header = r.Header.Clone()
	resp, err := http.DefaultClient.Do(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	for key, values := range resp.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // fails if the honest node breaks the connection
}

// respondWith responds to a request for a range with other bytes.
func respondWith(content []byte) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, r *http.Request) {
		var from, to int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(content)))
		w.Header().Set("Content-Length", fmt.Sprint(to+1-from))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(content[from : to+1])
	}
}

// lines collects the lines of a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// A peer without any bytes claims to have every copy of an honest node, whose disk is to be drained, and
// answers the requests for proofs in several ways. The honest node must keep its copy, which is the last
// one.
func TestLyingPeerCannotHaveTheLastCopyDeleted(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	content := fetchtest.Random(1, size)
	for _, tt := range []struct {
		name  string
		proof func(*liar) func(http.ResponseWriter, *http.Request)
		want  plan.ProofResult
	}{
		{"relay", func(l *liar) func(http.ResponseWriter, *http.Request) { return l.relay }, plan.ProofMissing},
		{"random bytes", func(*liar) func(http.ResponseWriter, *http.Request) { return respondWith(fetchtest.Random(2, size)) }, plan.ProofWrong},
		{"zeros", func(*liar) func(http.ResponseWriter, *http.Request) { return respondWith(make([]byte, size)) }, plan.ProofWrong},
		{"not found", func(*liar) func(http.ResponseWriter, *http.Request) { return http.NotFound }, plan.ProofMissing},
		{"a chunk from before", func(*liar) func(http.ResponseWriter, *http.Request) {
			return respondWith(append(bytes.Clone(content[:disk.ChunkSize/2]), make([]byte, size-disk.ChunkSize/2)...))
		}, plan.ProofWrong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newLAN(t, 2)
			honest, evil := c.nodes[0], c.nodes[1]
			url := c.upstream.Serve("/a", fetchtest.Bytes(content))
			log := &lines{}
			c.nodes, c.log = c.nodes[:1], slog.New(slog.NewTextHandler(log, nil))
			c.start(clusterSettings + "\n" + c.image(1, url))
			honest.until("a copy", honest.holds)

			l := newLiar(t, honest, evil)
			l.proof = tt.proof(l)
			c.nodes, c.evicted = []*manager{honest, evil}, honest
			c.declare(clusterSettings+"\n"+c.image(1, url), honest)
			v := honest.until("two cancelled deletions, or one that was not", func(v *status.View) bool {
				return honest.Counts().Proofs[tt.want] >= 2 || honest.Counts().Proofs[plan.ProofWrong] > 0 || !honest.holds(v)
			})
			if !honest.holds(v) {
				t.Fatalf("the last copy was deleted; the proofs were %v", honest.Counts().Proofs)
			}
			if tt.want != plan.ProofWrong {
				return
			}
			v = honest.until("the claim disproved", func(v *status.View) bool {
				return v.Observed.Disks[ident.DiskRef{Node: evil.name, Disk: "a"}].Copies[v.Desired.Config.Images["parrot"].ID].Unproven
			})
			for _, image := range v.Status(nil).Images {
				for _, one := range image.Copies {
					if one.Node == evil.name && (one.State != model.Unknown || one.Code != plan.CodeUnproven) {
						t.Errorf("the status has the copy of the liar as %+v", one)
					}
				}
			}
			if v := honest.rounds(5); !honest.holds(v) || log.count("level=WARN msg=\"a node did not show") != 1 {
				t.Errorf("the copy is there: %v; the log is %s", honest.holds(v), log.text.String())
			}
		})
	}
}

// A peer asks the holder itself for the mark of the withdrawn copy, and claims to have the same folder. That prevents no
// deletion.
func TestLyingPeerCannotClaimTheFolder(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 3)
	content := fetchtest.Random(1, 3<<20)
	holder, other, evil := c.nodes[0], c.nodes[1], c.nodes[2]
	url := c.upstream.Serve("/a", fetchtest.Bytes(content))
	c.nodes = c.nodes[:2]
	c.start(clusterSettings + "\n" + c.image(2, url))
	c.everywhere()
	l := newLiar(t, holder, evil)
	l.proof = respondWith(content) // relayed from the other node
	c.nodes, c.evicted = []*manager{holder, other, evil}, holder
	c.declare(clusterSettings+"\n"+c.image(2, url), holder, other)
	holder.until("the copy deleted", func(v *status.View) bool { return !holder.holds(v) })
}

// A node has only a copy of an older generation, and a single other node claims to have the declared one.
// The node has no chunk manifest of it, so it reads that copy in full first. It deletes its own copy only if
// the other one has the declared bytes.
func TestOlderGenerationCountsOnACopyThatWasRead(t *testing.T) {
	t.Parallel()
	first, second := fetchtest.Random(1, 3<<20), fetchtest.Random(2, 3<<20+512)
	image := func(c *lan, content []byte, path string) string {
		url := c.upstream.Serve(path, fetchtest.Bytes(content))
		return clusterSettings + fmt.Sprintf("\nimages: {parrot: {checksum: %q, source: {download: {url: %q}}}}\n", digestOfBytes(content), url)
	}
	t.Run("honest", func(t *testing.T) {
		t.Parallel()
		c := newLAN(t, 2)
		holder, other := c.nodes[0], c.nodes[1]
		c.evicted = other
		c.start(image(c, first, "/a"))
		holder.until("the first generation", holder.holds)
		c.evicted = holder
		c.declare(image(c, second, "/b"), c.nodes...)
		other.until("the second generation", other.holds)
		holder.until("the older copy deleted", func(v *status.View) bool { return !holder.holds(v) })
		if done, got := holder.Counts().Done[model.Verify], holder.Counts().FromPeers; done != 1 || got != int64(len(second)) {
			t.Errorf("%d verifications read %d bytes of the other node, want %d", done, got, len(second))
		}
	})
	t.Run("liar", func(t *testing.T) {
		t.Parallel()
		c := newLAN(t, 2)
		holder, evil := c.nodes[0], c.nodes[1]
		c.nodes = c.nodes[:1]
		c.start(image(c, first, "/a"))
		holder.until("the first generation", holder.holds)
		l := newLiar(t, holder, evil)
		l.proof = respondWith(fetchtest.Random(3, len(second)))
		c.nodes, c.evicted = []*manager{holder, evil}, holder
		next := image(c, second, "/b")
		uuid := plantest.Load(t, "nodes: {node1: {disks: {a: {path: /a}}}}\n"+next).Config.Images["parrot"].ID.UUID
		l.change = func(c *model.Copy) {
			c.ID.UUID, c.SHA512, c.Size = uuid, digestOfBytes(second), int64(len(second))
		}
		c.declare(next, holder)
		v := holder.until("the claim disproved", func(v *status.View) bool {
			claimed := v.Observed.Disks[ident.DiskRef{Node: evil.name, Disk: "a"}].Copies[ident.ID{Name: "parrot", UUID: uuid}]
			return claimed.Unproven || !holder.holds(v)
		})
		if !holder.holds(v) {
			t.Error("the last copy was deleted")
		}
	})
	// It relays the right bytes, with a chunk manifest that does not describe them.
	t.Run("made-up manifest", func(t *testing.T) {
		t.Parallel()
		c := newLAN(t, 2)
		holder, evil := c.nodes[0], c.nodes[1]
		c.nodes = c.nodes[:1]
		c.start(image(c, first, "/a"))
		holder.until("the first generation", holder.holds)
		l := newLiar(t, holder, evil)
		l.proof = respondWith(second)
		c.nodes, c.evicted = []*manager{holder, evil}, holder
		next := image(c, second, "/b")
		uuid := plantest.Load(t, "nodes: {node1: {disks: {a: {path: /a}}}}\n"+next).Config.Images["parrot"].ID.UUID
		l.change = func(c *model.Copy) {
			c.ID.UUID, c.SHA512, c.Size = uuid, digestOfBytes(second), int64(len(second))
		}
		c.declare(next, holder)
		v := holder.until("the claim disproved, or read again", func(v *status.View) bool {
			claimed := v.Observed.Disks[ident.DiskRef{Node: evil.name, Disk: "a"}].Copies[ident.ID{Name: "parrot", UUID: uuid}]
			return claimed.Unproven || holder.Counts().Done[model.Verify] >= 3
		})
		if done := holder.Counts().Done[model.Verify]; done > 0 || !holder.holds(v) {
			t.Errorf("%d verifications of a copy with another manifest are done; the older copy is there: %v", done, holder.holds(v))
		}
	})
}

func digestOfBytes(content []byte) ident.Digest {
	h := ident.SHA512.New()
	h.Write(content)
	return ident.SHA512.Digest(h)
}

// A deletion costs at most one chunk for each copy that it counts on, and asks no others. It must not
// depend on the slots for sending the image.
func TestDeletionCostsOneChunkForEachCountedCopy(t *testing.T) {
	t.Parallel()
	c := newLAN(t, 4)
	const size = 5<<20 + 512
	url := c.upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, size)))
	c.start(clusterSettings + "\n" + c.image(4, url))
	c.everywhere()
	nodes := c.ranked()
	var mu sync.Mutex
	requests := map[string][]string{} // the ranges by the node that was asked
	for _, m := range c.nodes {
		m.pass(func(_ string, r *http.Request) bool {
			if !isQuery(r) && r.URL.Path != "/v1/state" {
				mu.Lock()
				defer mu.Unlock()
				requests[m.name] = append(requests[m.name], r.URL.Path[strings.LastIndex(r.URL.Path, "/"):]+" "+r.Header.Get("Range"))
			}
			return true
		})
	}
	c.declare(clusterSettings+"\n"+c.image(3, url), c.nodes...)
	last := nodes[3]
	last.until("the copy deleted", func(v *status.View) bool { return !last.holds(v) })
	mu.Lock()
	defer mu.Unlock()
	for _, m := range nodes[:3] {
		if len(requests[m.name]) != 1 || !strings.HasPrefix(requests[m.name][0], "/data ") {
			t.Errorf("%s had the requests %v, want one for a chunk", m.name, requests[m.name])
			continue
		}
		var from, to int64
		_, err := fmt.Sscanf(requests[m.name][0], "/data bytes=%d-%d", &from, &to)
		if err != nil || from%disk.ChunkSize != 0 || to-from >= disk.ChunkSize {
			t.Errorf("%s had the request %v (error %v), want one chunk", m.name, requests[m.name], err)
		}
	}
	if got := last.Counts().Proofs[plan.ProofPassed]; got != 3 || len(requests[last.name]) > 0 {
		t.Errorf("%d proofs passed, and the deleting node had the requests %v", got, requests[last.name])
	}
}

// While a node asks another one for a proof, nobody can read its own copy. When the deletion was
// cancelled, everybody can again.
func TestWithdrawnCopyServesNobodyUntilTheDeletionIsCancelled(t *testing.T) {
	t.Parallel()
	c, nodes, oneCopy := surplus(t, 2, clusterSettings)
	best, other := nodes[0], nodes[1]
	asked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	best.pass(func(_ string, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/data") {
			once.Do(func() { close(asked) })
			waitFor(r, release)
			return false
		}
		return true
	})
	id := other.View().Desired.Config.Images["parrot"].ID
	read := func(route string) int {
		resp, err := http.Get(fmt.Sprintf("%s/v1/images/%s/%s", other.server.URL, id.Name, route))
		must(t, err)
		defer resp.Body.Close()
		_, err = io.Copy(io.Discard, resp.Body)
		must(t, err)
		return resp.StatusCode
	}
	routes := []string{id.UUID + "/data?disk=a", id.UUID + "/manifest?disk=a", "download"}
	c.declare(oneCopy, c.nodes...)
	<-asked
	for _, route := range routes {
		if got := read(route); got != http.StatusConflict {
			t.Errorf("during the proof, %s has the status %d", route, got)
		}
	}
	close(release)
	other.until("the deletion cancelled", func(*status.View) bool { return !other.response().Leaving })
	for _, route := range routes {
		if got := read(route); got != http.StatusOK {
			t.Errorf("after the cancelled deletion, %s has the status %d", route, got)
		}
	}
	best.pass(nil)
	other.until("the copy deleted", func(v *status.View) bool { return !other.holds(v) })
}
