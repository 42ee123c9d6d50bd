package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// selectChunk selects a chunk of a copy by the manifest of the node itself.
func (n *node) selectChunk(t *testing.T, id ident.ID, secret uint64) disk.SelectedChunk {
	t.Helper()
	m, err := n.disk.Manifest(id)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	chunk, err := disk.SelectChunk(m.Encoded(), m.Size(), secret)
	if err != nil {
		t.Fatal(err)
	}
	return chunk
}

func TestProve(t *testing.T) {
	content := image(3*mib + 512)
	honest, other := startNode(t, "node1"), startNode(t, "node2")
	s, wrong := honest.put(t, parrot, content), other.put(t, parrot, randomBytes(len(content)))
	c := newClient(t)
	for secret := range uint64(8) {
		chunk := honest.selectChunk(t, parrot, secret)
		if err := c.Prove(t.Context(), s, chunk); err != nil {
			t.Errorf("%+v: %v", chunk, err)
		}
		if err := c.Prove(t.Context(), wrong, chunk); !errors.Is(err, ErrWrongChunk) {
			t.Errorf("%+v of another image: %v", chunk, err)
		}
		served, err := c.SelectChunk(t.Context(), s, int64(len(content)), secret)
		if err != nil || served != chunk {
			t.Errorf("from the served manifest: got %+v, %v, want %+v", served, err, chunk)
		}
	}
	wrong.ManifestDigest = s.ManifestDigest
	if _, err := c.SelectChunk(t.Context(), wrong, int64(len(content)), 1); err == nil {
		t.Error("a manifest with another digest than the published one is accepted")
	}
	honest.withdraw(parrot)
	if err := c.Prove(t.Context(), s, honest.selectChunk(t, parrot, 1)); err == nil || errors.Is(err, ErrWrongChunk) {
		t.Errorf("from a withdrawn copy: %v", err)
	}
}

// The slots for sending an image are in use for hours. A proof must not wait for them.
func TestProofNeedsNoSlot(t *testing.T) {
	n := startNode(t, "node1")
	s := n.put(t, parrot, randomBytes(large))
	for range maxSends {
		defer occupySlot(t, n, parrot).Close()
	}
	if err := newClient(t).Prove(t.Context(), s, n.selectChunk(t, parrot, 1)); err != nil {
		t.Error(err)
	}
}

// A peer of an earlier version knows no proofs and may be busy for a while.
func TestProveWaitsForABusyPeer(t *testing.T) {
	content := randomBytes(512)
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if requests++; requests == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Range", "bytes 0-511/512")
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(content)
	}))
	defer server.Close()
	s := Source{Address: Address{Node: "node1", URL: server.URL}, Disk: "disk1", ID: parrot}
	err := newClient(t).Prove(t.Context(), s, disk.SelectedChunk{To: 512, Hash: disk.NewChunks.Hash(content)})
	if err != nil || requests != 2 {
		t.Errorf("%v after %d requests", err, requests)
	}
}

// A damaged copy proves nothing. Its node notices the damage and verifies the copy.
func TestProofOfADamagedChunk(t *testing.T) {
	n := startNode(t, "node1")
	damaged := make(chan string, 1)
	n.damaged = func(_ context.Context, name string) { damaged <- name }
	n.put(t, parrot, randomBytes(4096))
	image, err := openVerifiedImage(n.disk, parrot, n.disk.Open)
	if err != nil {
		t.Fatal(err)
	}
	defer image.Close()
	overwrite(t, n.backing(parrot), []byte("something else"))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	r.Header.Set("Range", "bytes=0-4095")
	w := httptest.NewRecorder()
	if refused := n.server.sendChunk(w, r, localCopy{n.disk, "disk1", parrot}, image); refused != nil {
		t.Error(refused)
	}
	if w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "damaged") {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	if name := <-damaged; name != parrot.Name {
		t.Errorf("the damage of %s was reported", name)
	}
}

func TestProofIsExactlyOneChunk(t *testing.T) {
	n := startNode(t, "node1")
	n.put(t, parrot, randomBytes(2*mib+512))
	for _, test := range []struct {
		header string
		status int
	}{
		{"bytes=0-1048575", 206}, {"bytes=2097152-2097663", 206}, {"bytes=2097152-", 206},
		{"bytes=0-1048574", 400}, {"bytes=1-1048576", 400}, {"bytes=0-2097151", 400}, {"", 400}, {"bytes=0-", 400},
		{"bytes=2097152-3145727", 416},
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, n.URL+"/v1/images/parrot/0a1b2c3d/data?disk=disk1&proof=chunk", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Range", test.header)
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != test.status {
			t.Errorf("%q: got %d, %v, want %d", test.header, resp.StatusCode, err, test.status)
		}
		resp.Body.Close()
	}
}

// A copy is withdrawn while it is sent, to a peer and to a user. Both sends must end within a chunk and
// the buffers of the connection: a peer could otherwise relay them as its own bytes.
func TestWithdrawalEndsRunningSends(t *testing.T) {
	for _, route := range []string{"/v1/images/parrot/0a1b2c3d/data?disk=disk1", "/v1/images/parrot/download", "/v1/images/parrot/download?compress=gzip"} {
		n := startNode(t, "node1")
		n.declared = parrot.UUID
		n.put(t, parrot, randomBytes(2*large))
		resp, err := http.Get(n.URL + route)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, resp.Body, 1<<10); err != nil {
			t.Fatal(err)
		}
		n.withdraw(parrot)
		got, err := io.Copy(io.Discard, resp.Body)
		if err == nil || got > large {
			t.Errorf("%s: %d bytes were received after the withdrawal, error %v", route, got, err)
		}
		resp.Body.Close()
	}
}

// Prove must end with its context while the peer does not respond.
func TestProveEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}))
	defer server.Close()
	s := Source{Address: Address{Node: "node1", URL: server.URL}, Disk: "disk1", ID: parrot}
	if err := newClient(t).Prove(ctx, s, disk.SelectedChunk{To: 512}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// busy responds as a node that has reached a limit.
var busy handler = func(http.ResponseWriter, *http.Request) *httperror.Error {
	return httperror.New(http.StatusTooManyRequests, "busy")
}

// ReadChunks reads the whole copy in order, also through a connection that breaks and a busy peer.
func TestReadChunks(t *testing.T) {
	content := randomBytes(3*mib + 512)
	n := startNode(t, "node1")
	s := n.put(t, parrot, content)
	requests := 0
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests++; requests {
		case 1:
			busy.ServeHTTP(w, r)
		case 2:
			n.Config.Handler.ServeHTTP(&breakingWriter{w, mib + 4096}, r)
		default:
			n.Config.Handler.ServeHTTP(w, r)
		}
	}))
	defer front.Close()
	s.URL = front.URL
	var got []byte
	if err := newClient(t).ReadChunks(t.Context(), s, int64(len(content)), 0, func(chunk []byte) { got = append(got, chunk...) }); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, content) || requests != 3 {
		t.Errorf("%d bytes in %d requests; they are right: %v", len(got), requests, bytes.Equal(got, content))
	}
	n.withdraw(parrot)
	if err := newClient(t).ReadChunks(t.Context(), s, int64(len(content)), 0, func([]byte) {}); err == nil {
		t.Error("a withdrawn copy was read")
	}
}

// breakingWriter breaks the connection after some bytes of the body.
type breakingWriter struct {
	http.ResponseWriter
	left int
}

func (w *breakingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *breakingWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b[:min(len(b), w.left)])
	if w.left -= n; w.left == 0 {
		_ = http.NewResponseController(w.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// pipes is a listener for connections in memory, whose clock a test controls.
type pipes struct {
	connections chan net.Conn
	closed      chan struct{}
}

func newPipes() pipes { return pipes{make(chan net.Conn), make(chan struct{})} }

func (p pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.connections:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p pipes) Close() error { close(p.closed); return nil }

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p pipes) dial(context.Context, string, string) (net.Conn, error) {
	a, b := net.Pipe()
	select {
	case p.connections <- b:
		return a, nil
	case <-p.closed: // a transport may dial once more than it has requests
		return nil, net.ErrClosed
	}
}

// A peer is busy for ever, or sends a byte now and then. A caller must not read from it for ever.
func TestReadChunksEnds(t *testing.T) {
	const size = 4 * mib
	for name, respond := range map[string]func(w http.ResponseWriter, r *http.Request){
		"busy": busy.ServeHTTP,
		"drips": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "4194304")
			w.Header().Set("Content-Range", "bytes 0-4194303/4194304")
			w.WriteHeader(http.StatusPartialContent)
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte{1})
				_ = http.NewResponseController(w).Flush()
				_ = fetch.Sleep(r.Context(), 30*time.Second)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPipes()
				server := &http.Server{Handler: http.HandlerFunc(respond), ErrorLog: log.New(io.Discard, "", 0)}
				go func() { _ = server.Serve(p) }()
				c := clientWith(nil, &http.Transport{DialContext: p.dial})
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
				defer cancel()
				began := time.Now()
				err := c.ReadChunks(ctx, Source{Address: Address{URL: "http://node1"}, ID: parrot}, size, 0, func([]byte) {})
				if took := time.Since(began); err == nil || took > longestRead(size, 0)+time.Second {
					t.Errorf("after %v: %v", took, err)
				}
				c.Close()
				_ = server.Close()
			})
		})
	}
	if got := longestRead(1<<30, 8<<10); got < time.Duration(1<<30/(8<<10))*time.Second {
		t.Errorf("a read at its limit may take %v only", got)
	}
	if got := longestRead(maxSize, 64<<10); got < maxRead { // a claimed size
		t.Errorf("a read of %d bytes may take %v only", int64(maxSize), got)
	}
}
