package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/assemble"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// proxied returns s behind a proxy. fault may change the responses of the proxy.
func proxied(t *testing.T, s Source, fault func(next http.Handler) http.Handler) Source {
	t.Helper()
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = discardLog
	server := httptest.NewUnstartedServer(fault(proxy))
	server.Config.ErrorLog = discardLog
	server.Start()
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// onData changes the responses to requests for data. The requests are numbered from 1.
func onData(change func(n int64, w http.ResponseWriter, r *http.Request, next http.Handler)) func(http.Handler) http.Handler {
	var n atomic.Int64
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/data") {
				change(n.Add(1), w, r, next)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// alteredResponse is a response whose body the function write changes.
type alteredResponse struct {
	http.ResponseWriter
	write func(p []byte) (int, error)
}

func (a alteredResponse) Write(p []byte) (int, error) { return a.write(p) }

func (a alteredResponse) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a alteredResponse) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{a}, r)
}

// corruptByte changes one byte in each response.
func corruptByte(_ int64, w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(alteredResponse{w, func(p []byte) (int, error) {
		p = bytes.Clone(p)
		p[0] ^= 1
		return w.Write(p)
	}}, r)
}

// stopAfter sends the given number of bytes and then calls then.
func stopAfter(after int, then func(r *http.Request)) func(int64, http.ResponseWriter, *http.Request, http.Handler) {
	return func(_ int64, w http.ResponseWriter, r *http.Request, next http.Handler) {
		left := after
		next.ServeHTTP(alteredResponse{w, func(p []byte) (int, error) {
			n, err := w.Write(p[:min(left, len(p))])
			if left -= n; left == 0 {
				_ = http.NewResponseController(w).Flush()
				then(r)
			}
			return len(p), err
		}}, r)
	}
}

func abort(*http.Request) { panic(http.ErrAbortHandler) }

func TestPullSucceedsDespiteAFailingSource(t *testing.T) {
	t.Parallel()
	const size = 24 * mib
	want := image(size)
	tests := []struct {
		name  string
		fault func(int64, http.ResponseWriter, *http.Request, http.Handler)
		warns string // expected warning; "": none
	}{
		{"sends wrong bytes", corruptByte, "does not match the chunk manifest"},
		{"drops the connection", stopAfter(mib+mib/2, abort), ""},
		{"drops the connection at once", stopAfter(1, abort), ""},
		{"responds 409", func(_ int64, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			httperror.New(http.StatusConflict, "leaving").Write(w)
		}, ""},
		{"responds 500", func(_ int64, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			httperror.New(http.StatusInternalServerError, "fault").Write(w)
		}, ""},
		{"responds 429", func(_ int64, w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Retry-After", "1")
			httperror.New(http.StatusTooManyRequests, "later").Write(w)
		}, ""},
		{"sends another range", func(_ int64, w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Set("Range", "bytes=0-1048575")
			next.ServeHTTP(w, r)
		}, ""},
		{"ignores the range", func(_ int64, w http.ResponseWriter, r *http.Request, next http.Handler) {
			r.Header.Del("Range")
			next.ServeHTTP(w, r)
		}, ""},
		{"sends an endless body", func(_ int64, w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.WriteHeader(http.StatusPartialContent)
			for zeros := make([]byte, mib); r.Context().Err() == nil; {
				if _, err := w.Write(zeros); err != nil {
					return
				}
			}
		}, ""},
		{"sends headers without a body", func(_ int64, w http.ResponseWriter, r *http.Request, _ http.Handler) {
			first, last, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Range"), "bytes="), "-")
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %s-%s/%d", first, last, size))
			from, _ := strconv.Atoi(first)
			to, _ := strconv.Atoi(last)
			w.Header().Set("Content-Length", strconv.Itoa(to-from+1))
			w.WriteHeader(http.StatusPartialContent)
		}, ""},
	}
	for i, test := range tests {
		if race.Enabled && i%4 != 0 {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			good, bad := startNode(t, "node1"), startNode(t, "node2")
			var failed atomic.Int64
			fault := onData(func(n int64, w http.ResponseWriter, r *http.Request, next http.Handler) {
				failed.Add(1)
				test.fault(n, w, r, next)
			})
			r := newReceiver(t, good.put(t, parrot, want), proxied(t, bad.put(t, parrot, want), fault))
			var warned []error
			r.pull.Warn = func(err error) { warned = append(warned, err) }
			r.pullsAndCommits(want)
			r.checkWaste(want, failed.Load())
			warnings := errors.Join(warned...)
			if (warnings != nil) != (test.warns != "") || warnings != nil && !strings.Contains(warnings.Error(), test.warns) {
				t.Errorf("got the warning %v, want %q", warnings, test.warns)
			}
			for _, err := range warned {
				if w, ok := errors.AsType[*InvalidDataError](err); !ok || w.Node != "node2" || w.Disk != "disk1" {
					t.Errorf("got the warning %v, want one about disk1 of node2", err)
				}
			}
		})
	}
}

// checkWaste fails the test if the receiver got more than the data of the image, one chunk for each request that failed, and two
// chunks that were requested twice at the end. How many requests fail depends on how fast the other sources are.
func (r *receiver) checkWaste(image []byte, failed int64) {
	r.t.Helper()
	data := dataBytes(image)
	received := r.pull.Progress.PeerBytes.Load()
	r.t.Logf("%d bytes more than the %d of the data, with %d requests that failed", received-data, data, failed)
	if received > data+(failed+2)*mib {
		r.t.Errorf("received %d bytes for %d, with %d requests that failed", received, data, failed)
	}
}

func TestPullContinuesWhenAPeerDies(t *testing.T) {
	t.Parallel()
	size := 96 * mib
	if race.Enabled {
		size /= 2
	}
	want := image(size)
	nodes := []*node{startNode(t, "node0"), startNode(t, "node1"), startNode(t, "node2")}
	var sources []Source
	for _, n := range nodes {
		sources = append(sources, n.put(t, parrot, want))
	}
	r := newReceiver(t, sources...)
	r.pull.Limit = 100 * mib
	go func() {
		for r.pull.Progress.Done.Load() < 20*mib {
			<-time.After(time.Millisecond)
		}
		nodes[0].CloseClientConnections()
		nodes[0].Listener.Close()
	}()
	r.pullsAndCommits(want)
	r.checkWaste(want, 1)
	if err := r.pull.health.NoProvider(0); !strings.Contains(err.Error(), "node0/disk1: ") {
		t.Error("the peer died after the transfer")
	}
}

func TestPullErrorWhenNoSourceHasAManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Pull{Client: new(Client), Sources: func() []Source { return []Source{{Address: Address{Node: "node1"}, Disk: "disk1"}} }}
		start := time.Now()
		_, err := p.Manifest(t.Context(), nil)
		if e, ok := errors.AsType[*fetch.Error](err); !ok || e.Class != fetch.Network || !strings.Contains(err.Error(), "node1/disk1: no chunk manifest") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took < giveUpAfter || took > giveUpAfter+time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestPullRejectsForgedManifests(t *testing.T) {
	want := image(6 * mib)
	other := bytes.Clone(want)
	for at := 0; at < len(other); at += mib { // so that every chunk differs
		other[at]++
	}
	a, b, c, d := startNode(t, "node1"), startNode(t, "node2"), startNode(t, "node3"), startNode(t, "node4")
	// node1 and node3 publish the same manifest digest, but node3 sends another manifest, whose digest
	// node2 publishes. node4 sends a manifest that is too long.
	good := a.put(t, parrot, want)
	minority := b.put(t, parrot, other)
	forged := c.put(t, parrot, other)
	forged.ManifestDigest = good.ManifestDigest
	long := proxied(t, d.put(t, parrot, want), func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/manifest") {
				_, _ = w.Write(make([]byte, 1<<20))
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	r := newReceiver(t, minority, forged, long, good)
	var mu sync.Mutex
	warned := map[string]int{}
	r.pull.Warn = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		warned[err.(*InvalidDataError).Node]++
	}
	r.pullsAndCommits(want)
	if warned["node1"] > 0 || warned["node2"] > 0 {
		t.Errorf("got warnings about %v", warned)
	}
}

// A source claims another size than the others, with the same chunk manifest or with another one. It must
// not make the others look wrong.
func TestPullDoesNotBlameSourcesForAnotherSize(t *testing.T) {
	t.Parallel()
	want := image(3*mib + 512)
	liar := startNode(t, "liar").put(t, parrot, want)
	for name, change := range map[string]func(*Source){
		"shorter":                     func(s *Source) { s.Size -= 512 },
		"longer, in the last chunk":   func(s *Source) { s.Size += 512 },
		"one chunk":                   func(s *Source) { s.Size = mib },
		"a pebibyte":                  func(s *Source) { s.Size = 1 << 50 },
		"shorter, with a manifest":    func(s *Source) { s.Size = 512; s.ManifestDigest = digestOf(ident.SHA256, "x") },
		"a pebibyte, with a manifest": func(s *Source) { s.Size = 1 << 50; s.ManifestDigest = digestOf(ident.SHA256, "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claimed := liar
			change(&claimed)
			good := startNode(t, "node1").put(t, parrot, want)
			r := newReceiver(t, claimed, good)
			r.pullsAndCommits(want)
			for _, s := range r.pull.WrongSources(nil) {
				if s.Node != "liar" {
					t.Errorf("%s looks wrong", s.Node)
				}
			}
		})
	}
}

// A peer claims a size at which its chunk manifest has, for the short last chunk, the hash of a whole chunk that a seed has.
func TestPullFromASourceWithAnotherSizeThanItsManifest(t *testing.T) {
	want := image(3 * mib)
	claimed := startNode(t, "liar").put(t, parrot, want)
	claimed.Size -= 512
	r := newReceiver(t, claimed)
	var damaged atomic.Int32
	seed, _ := seedOf(t, want, &damaged)
	r.pull.Seeds = []assemble.Seed{seed}
	r.pull.Final = func(error) bool { return true }
	err := r.pull.Into(t.Context(), r.openPart())
	if _, ok := errors.AsType[*InvalidDataError](err); !ok || damaged.Load() > 0 {
		t.Errorf("got %v, and %d reports of damage", err, damaged.Load())
	}
	if wrong := r.pull.WrongSources(err); len(wrong) != 1 {
		t.Errorf("%d sources look wrong", len(wrong))
	}
}

// A source claims a size that this node has no room for, while the right one is busy. That ends no pull.
func TestPullSurvivesAClaimThatDoesNotFit(t *testing.T) {
	t.Parallel()
	const claim = 64 << 30
	want := image(3*mib + 512)
	n := startNode(t, "node1")
	good := n.put(t, parrot, want)
	m, err := n.disk.Manifest(parrot)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	forged := bytes.Repeat([]byte{1}, int(model.ChunkFileSize(claim)))
	if _, err := io.ReadFull(m.Encoded(), forged[:model.ChunkHeaderSize]); err != nil {
		t.Fatal(err)
	}
	var free unix.Statfs_t
	if err := unix.Statfs(t.TempDir(), &free); err != nil {
		t.Fatal(err)
	}
	for name, options := range map[string]disk.PartOptions{
		"too large": {MaxSize: int64(len(want))},
		"no space":  {Reserve: int64(free.Bavail)*free.Bsize - 1<<30},
	} {
		t.Run(name, func(t *testing.T) {
			busy := proxied(t, good, func(next http.Handler) http.Handler {
				requests := 0
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if requests++; requests == 1 {
						w.Header().Set("Retry-After", "0")
						w.WriteHeader(http.StatusTooManyRequests)
						return
					}
					next.ServeHTTP(w, r)
				})
			})
			asked := false
			liar := startFakePeer(t, func(w http.ResponseWriter, _ *http.Request) {
				asked = true
				w.Header().Set("Content-Length", strconv.Itoa(len(forged)))
				_, _ = w.Write(forged)
			})
			liar.Node = "liar"
			r := newReceiver(t, busy, Source{Address: liar, Disk: "disk1", ID: parrot, ManifestDigest: digestOf(ident.SHA256, string(forged)), Size: claim})
			part, err := r.disk.OpenPart(t.Context(), parrot, options)
			if err != nil {
				t.Fatal(err)
			}
			defer part.Close()
			if err := r.pull.Into(t.Context(), part); err != nil || !asked {
				t.Errorf("got %v; the liar was asked: %v", err, asked)
			}
		})
	}
}

// A node has many sources with contents that it made up. They must not outvote two other nodes.
func TestVotesAreOfNodes(t *testing.T) {
	made, right := digestOf(ident.SHA256, "made up"), digestOf(ident.SHA256, "right")
	var sources []Source
	for i := range 10 {
		sources = append(sources, Source{Address: Address{Node: "liar"}, Disk: fmt.Sprint("disk", i), ManifestDigest: made, Size: mib})
	}
	for _, node := range []string{"node1", "node2"} {
		sources = append(sources, Source{Address: Address{Node: node}, Disk: "disk1", ManifestDigest: right, Size: 2 * mib})
	}
	if first := byVotes(sources)[0]; first.ManifestDigest != right {
		t.Errorf("%s of %s is the first one", first.Disk, first.Node)
	}
}
