package reconcile

import (
	"bytes"
	"context"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/heap"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// claimant is a node with valid credentials that answers whatever a test wants.
type claimant struct {
	*httptest.Server
	mux     *http.ServeMux
	mu      sync.Mutex
	version int
	state   func() model.Node
}

// newClaimant returns a node that publishes a state, anew at each request, and has no bytes.
func newClaimant(t *testing.T, state func() model.Node) *claimant {
	l := &claimant{state: state, mux: http.NewServeMux()}
	l.mux.HandleFunc("GET /v1/state", l.serveState)
	l.mux.HandleFunc("GET /v1/images/{name}/copies", func(w http.ResponseWriter, _ *http.Request) { l.write(w) })
	l.Server = httptest.NewServer(l.mux)
	t.Cleanup(l.Close)
	return l
}

func (l *claimant) write(w http.ResponseWriter) {
	_ = json.NewEncoder(w).Encode(l.state()) // fails if the manager has closed the connection
}

// serveState sends a new state at each request.
func (l *claimant) serveState(w http.ResponseWriter, _ *http.Request) {
	l.mu.Lock()
	l.version++
	w.Header().Set("ETag", fmt.Sprintf(`"%d"`, l.version))
	l.mu.Unlock()
	l.write(w)
}

// startBeside runs the node n1, whose configuration also declares the node evil at a URL.
func startBeside(t *testing.T, evil, config string) *looping {
	t.Helper()
	conf := t.TempDir()
	text := fmt.Sprintf("nodes:\n  n1: {address: \"http://127.0.0.1:1\", tags: [own], disks: {a: {path: %q}}}\n  evil: {address: %q, disks: {a: {path: /evil}}}\n", newDisk(t), evil)
	files.Put(t, text+config, conf, "config.yaml")
	log := slog.New(slog.DiscardHandler)
	l := NewLoop(New(fetch.Client{}, peer.NewClient(nil, nil), log, false), LoopOptions{Dir: conf, Interval: 100 * time.Millisecond, Node: "n1", Log: log})
	ctx, stop := context.WithCancel(t.Context())
	running := &looping{Loop: l, t: t, stop: stop, ended: make(chan error, 1)}
	go func() { running.ended <- l.Run(ctx) }()
	t.Cleanup(func() { must(t, running.end()) })
	return running
}

// A node publishes tens of thousands of orphans, with other texts in each response. The manager, its
// rounds and three documents of its status hold less than 48 MiB for it.
func TestLoopBoundsTheMemoryForAPeer(t *testing.T) {
	race.Skip(t)
	var served atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n := served.Add(1)
		w.Header().Set("ETag", fmt.Sprintf(`"%d"`, n))
		var text strings.Builder
		text.WriteString(`{"version":1,"node":"evil","configDigest":"x","disks":{"a":{"uuid":"u","copies":[`)
		for i := range 10_000 {
			fmt.Fprintf(&text, `{"id":"n%d-%08x","state":"ready","owned":true,"sha512":"%0128x","message":"%d %d","usedBy":"%d x","failure":{"message":"%d y","attempts":1}},`, i, n, i, n, i, i, i)
		}
		text.WriteString(`{"id":"zz-00000001"}]}}}`)
		_, _ = io.WriteString(w, text.String())
	}))
	defer server.Close()
	grown := heap.Watch(t)
	l := startBeside(t, server.URL, "images: {parrot: {source: {upload: {}}}}\n")
	l.until("two floods", func(v *status.View) bool {
		return served.Load() > 1 && len(v.Observed.Peers) > 0 && v.Observed.Peers["evil"].Omitted > 0
	})
	for range 3 {
		_, s := l.Status()
		must(t, json.NewEncoder(io.Discard).Encode(s))
		if s.Peers[0].Omitted == 0 || s.Peers[0].Problem != "" {
			t.Errorf("the status of the node is %+v", s.Peers[0])
		}
	}
	if grown := grown() >> 20; grown > 48 {
		t.Errorf("%d MiB were in use", grown)
	} else {
		t.Logf("%d MiB were in use", grown)
	}
}

// A node publishes the uuid of a disk of this node, and the uuids of many more. The disk stays in
// service: its copy is served, new images are placed on it, and the manager is ready.
func TestClaimedDiskStaysInService(t *testing.T) {
	t.Parallel()
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/a", fetchtest.Bytes(fetchtest.Random(1, 1<<20)))
	var claimed atomic.Pointer[string]
	evil := newClaimant(t, func() model.Node {
		uuid := "nothing yet"
		if c := claimed.Load(); c != nil {
			uuid = *c
		}
		return model.Node{Version: model.Version, Node: "evil", Disks: map[string]model.Disk{"a": {UUID: uuid, Copies: model.NewCopies(), Space: model.Space{Total: 1 << 40, Free: 1 << 40}}, "b": {UUID: uuid}}}
	})
	l := startBeside(t, evil.URL, fmt.Sprintf("%s\nimages: {parrot: {nodeSelector: [own], source: {download: {url: %q}}}}\n", clusterSettings, url))
	own := ident.DiskRef{Node: "n1", Disk: "a"}
	v := l.until("ready", isReady("parrot"))
	claimed.Store(new(v.Observed.Disks[own].UUID))
	v = l.until("disputed", func(v *status.View) bool { return v.Observed.Disks[own].Disputed != "" })
	for range 2 {
		if seen := v.Observed.Disks[own]; seen.Problem != "" || !isReady("parrot")(v) || len(v.Unready(v.Observed.Now, time.Hour)) > 0 {
			t.Fatalf("the disk is %+v, unready: %v", seen, v.Unready(v.Observed.Now, time.Hour))
		}
		if _, ok := l.PeerNode().Disk("a"); !ok {
			t.Fatal("the disk is not served")
		}
		v = l.rounds(2)
	}
	claimed.Store(new("another disk"))
	l.until("no dispute", func(v *status.View) bool { return v.Observed.Disks[own].Disputed == "" })
}

// wrongBytes is a peer.Node that sends the copies of one disk.
type wrongBytes struct {
	peer.Node
	disk *disk.Disk
}

func (w wrongBytes) Disk(string) (*disk.Disk, bool)       { return w.disk, true }
func (w wrongBytes) Leaving(string, ident.ID) bool        { return false }
func (w wrongBytes) DeclaredUUID(string) (string, bool)   { return "", false }
func (w wrongBytes) ReportDamage(context.Context, string) {}

// commitCopy creates a ready copy with these bytes on a new disk.
func commitCopy(t *testing.T, id ident.ID, content []byte) (*disk.Disk, model.Copy) {
	t.Helper()
	d, err := disk.Open(newDisk(t))
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	part, err := d.OpenPart(t.Context(), id, disk.PartOptions{})
	must(t, err)
	must(t, part.Begin(disk.PartSource{ID: "test", Size: int64(len(content))}))
	_, err = part.ReadFrom(bytes.NewReader(content))
	must(t, err)
	c, err := part.Commit(ident.Digest{})
	must(t, err)
	return d, c
}

// A node claims to have an image with its declared checksum, and sends other bytes, with a chunk
// manifest that matches them. The manager reads them once, leaves that copy aside, and downloads the
// image at once, not after a backoff.
func TestSourceOfWrongBytesIsLeftAside(t *testing.T) {
	t.Parallel()
	const size = 3<<20 + 512
	right := fetchtest.Random(1, size)
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/a", fetchtest.Bytes(right))
	id := ident.ID{Name: "parrot", UUID: "0000000a"}
	checksum := fmt.Sprintf("%x", sha512.Sum512(right))
	wrong, c := commitCopy(t, id, fetchtest.Random(2, size))
	digest, err := ident.ParseDigest(checksum)
	must(t, err)
	c.SHA512 = digest
	evil := newClaimant(t, func() model.Node {
		return model.Node{Version: model.Version, Node: "evil", Disks: map[string]model.Disk{"a": {UUID: "u", Copies: model.NewCopies(c.ForPeers()), Space: model.Space{Total: 1 << 40, Free: 1 << 40}}}}
	})
	var sent atomic.Int64
	bytes := peer.NewServer(peer.NewStateCache(), wrongBytes{disk: wrong}).Handler()
	evil.mux.HandleFunc("GET /v1/images/{name}/{uuid}/{part}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("part") == "manifest" {
			sent.Add(1)
		}
		bytes.ServeHTTP(w, r)
	})
	l := startBeside(t, evil.URL, fmt.Sprintf("%s\nimages: {parrot: {uuid: \"0000000a\", minNumberOfCopies: 2, checksum: %q, source: {download: {url: %q}}}}\n", clusterSettings, checksum, url))
	own := ident.CopyRef{Disk: ident.DiskRef{Node: "n1", Disk: "a"}, ID: id}
	v := l.until("ready", func(v *status.View) bool { return v.Observed.Disks[own.Disk].Copies[id].State == model.Ready })
	if got := plan.NewRound(v.Desired, v.Observed).ReadyCopies(v.Desired.Config.Images["parrot"]); !slices.Equal(got, []ident.CopyRef{own}) {
		t.Errorf("the ready copies are %v", got)
	}
	if sent.Load() != 1 || len(upstream.Requests()) != 1 || v.Observed.Disks[own.Disk].Copies[id].SHA512 != digest {
		t.Errorf("the manifest was sent %d times, and the upstream had %d requests", sent.Load(), len(upstream.Requests()))
	}
}

// A node publishes final failures of all images, whether it is ranked for them or not, or copies that are
// to be verified. The images become ready on this node: at once, or after the recovery interval if that
// node has the best rank.
func TestFailuresOfAPeerDelayNobodyForLong(t *testing.T) {
	t.Parallel()
	content := fetchtest.Random(1, 1<<20)
	checksum := fmt.Sprintf("%x", sha512.Sum512(content))
	for name, claim := range map[string]model.Copy{
		"final failures": {State: model.Pending, Failure: &model.Failure{Op: "download", Message: "not found", Attempts: 1, Final: true, RetryAt: time.Now().Add(9e8 * time.Second)}},
		"retries":        {State: model.Pending, Failure: &model.Failure{Op: "download", Message: "not found", Attempts: 1, RetryAt: time.Now().Add(9e8 * time.Second)}},
		"unknown files":  {State: model.Unknown},
		"leaving copies": {State: model.Ready, SHA512: plantest.Digest(ident.SHA512, "a"), Leaving: true},
		"nothing":        {State: model.Pending},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream := fetchtest.Start(t)
			images, copies := "images:\n", model.Copies{}
			var names []string
			for i := range 6 {
				names = append(names, fmt.Sprint("parrot", i))
				url := upstream.Serve("/"+names[i], fetchtest.Bytes(content))
				images += fmt.Sprintf("  %s: {uuid: \"0000000a\", checksum: %q, source: {download: {url: %q}}}\n", names[i], checksum, url)
				c := claim
				c.ID = ident.ID{Name: names[i], UUID: "0000000a"}
				copies[c.ID] = c
			}
			var digest atomic.Pointer[string]
			evil := newClaimant(t, func() model.Node {
				s := model.Node{Version: model.Version, Node: "evil", Disks: map[string]model.Disk{"a": {UUID: "u", Copies: copies, Space: model.Space{Total: 1 << 40, Free: 1 << 40}}}}
				if d := digest.Load(); d != nil {
					s.ConfigDigest = *d
				}
				return s
			})
			l := startBeside(t, evil.URL, "settings: {allowLoopbackSources: true, recoveryWaitInterval: 1s, pruneLimit: \"100%\"}\n"+images)
			v := l.until("a configuration", func(v *status.View) bool { return v.Loaded })
			digest.Store(&v.Desired.Digest)
			own := ident.DiskRef{Node: "n1", Disk: "a"}
			l.until("ready", func(v *status.View) bool {
				for _, name := range names {
					if v.Observed.Disks[own].Copies[ident.ID{Name: name, UUID: "0000000a"}].State != model.Ready {
						return false
					}
				}
				return true
			})
			for _, name := range names {
				if n := len(slices.DeleteFunc(upstream.Requests(), func(r fetchtest.Request) bool { return r.Path != "/"+name })); n > 1 {
					t.Errorf("%s was requested %d times", name, n)
				}
			}
		})
	}
}
