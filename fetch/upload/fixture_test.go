package upload

import (
	"bytes"
	"context"
	"encoding/base64"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

var parrot = ident.ID{Name: "parrot", UUID: "6846a0b2"}

// fixture is a server with a disk, and with jobs like those of a manager.
type fixture struct {
	t    *testing.T
	path string
	disk *disk.Disk
	url  string
	*Server

	mu      sync.Mutex
	outcome error
	stop    context.CancelFunc
	jobs    sync.WaitGroup
}

func newFixture(t *testing.T) *fixture {
	r := &fixture{t: t, path: t.TempDir()}
	if _, err := disk.Init(r.path); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.disk, err = disk.Open(r.path); err != nil {
		t.Fatal(err)
	}
	r.Server = NewServer(NewSessions(), r)
	mux := http.NewServeMux()
	mux.Handle(Path, r)
	mux.Handle(Path+"/{id}", r)
	server := httptest.NewServer(mux)
	r.url = server.URL
	t.Cleanup(func() {
		r.stopJob()
		server.Close()
		if err := r.disk.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// Begin implements Host.
func (r *fixture) Begin(_ context.Context, image string, digest ident.Digest) error {
	if image != parrot.Name {
		return httperror.New(http.StatusNotFound, "no image %s is declared", image)
	}
	r.startJob(digest)
	return nil
}

// Interrupted implements Host.
func (r *fixture) Interrupted(id string) bool { return r.disk.PartSource(parrot).ETag == id }

// startJob starts a job for a created or interrupted upload.
func (r *fixture) startJob(want ident.Digest) {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	r.jobs.Go(func() {
		err := r.runJob(ctx, want)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.outcome = err
	})
}

func (r *fixture) runJob(ctx context.Context, want ident.Digest) error {
	one, err := r.sessions.Begin(ctx, parrot, r.disk.PartSource(parrot))
	if err != nil {
		return err
	}
	part, err := r.disk.OpenPart(ctx, parrot, disk.PartOptions{})
	if err == nil {
		err = one.Fill(ctx, part, 0, &fetch.Progress{})
		switch {
		case err == nil:
			_, err = part.Commit(want)
		case ctx.Err() != nil:
			_ = part.Close()
		default:
			_ = part.Discard()
		}
	}
	r.sessions.End(one, err, r.disk.PartSource(parrot).ETag == one.ID)
	return err
}

// stopJob stops the job like a daemon that shuts down, and returns the error of the job.
func (r *fixture) stopJob() error {
	if r.stop != nil {
		r.stop()
	}
	r.jobs.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.outcome
}

// restart stops the job and starts another job, as after a restart of the daemon.
func (r *fixture) restart() {
	r.t.Helper()
	r.stopJob()
	r.sessions.mu.Lock()
	r.sessions.running, r.sessions.ended = map[string]*Session{}, nil
	r.sessions.mu.Unlock()
	r.startJob(ident.Digest{})
}

// waitOpen waits until the server accepts requests for the upload.
func (r *fixture) waitOpen(id string) {
	r.t.Helper()
	for {
		if now := r.sessions.find(id); now != nil {
			<-now.opened
			return
		}
	}
}

// wantImage fails the test unless the image has the bytes want.
func (r *fixture) wantImage(want []byte) {
	r.t.Helper()
	r.jobs.Wait()
	if c := r.disk.Stat(parrot); c.State != model.Ready {
		r.t.Fatalf("the image is %s: %s; the job: %v", c.State, c.Message, r.outcome)
	}
	got, err := os.ReadFile(filepath.Join(r.path, "backing-images", parrot.String(), "backing"))
	if err != nil || !bytes.Equal(got, want) {
		r.t.Fatalf("the image has %d bytes that differ from the %d sent bytes: %v", len(got), len(want), err)
	}
}

// wantEmptyDisk fails the test if any file of an upload remains.
func (r *fixture) wantEmptyDisk() {
	r.t.Helper()
	r.jobs.Wait()
	left, _ := filepath.Glob(filepath.Join(r.path, "backing-images", parrot.String(), "backing*"))
	for _, name := range left {
		if filepath.Base(name) != "backing.record" {
			r.t.Errorf("%s remains", name)
		}
	}
	if c := r.disk.Stat(parrot); c.State == model.Ready || r.disk.PartSource(parrot) != (disk.PartSource{}) {
		r.t.Errorf("the copy is %+v", c)
	}
}

// request sends a request like any tus client. Headers have the form "Name: value".
func (r *fixture) request(method, path string, body io.Reader, headers ...string) response {
	r.t.Helper()
	q, err := http.NewRequest(method, r.url+path, body)
	if err != nil {
		r.t.Fatal(err)
	}
	q.Header.Set("Tus-Resumable", version)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if q.Header.Set(name, value); value == "" {
			q.Header.Del(name)
		}
	}
	a, err := http.DefaultClient.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	text, _ := io.ReadAll(a.Body)
	return response{a.StatusCode, a.Header, text}
}

// patch sends a body at an offset.
func (r *fixture) patch(at string, offset string, body []byte, headers ...string) response {
	r.t.Helper()
	return r.request("PATCH", at, bytes.NewReader(body), append([]string{"Content-Type: " + bodyType, "Upload-Offset: " + offset}, headers...)...)
}

// create starts an upload of length bytes.
func (r *fixture) create(length string, headers ...string) (at string) {
	r.t.Helper()
	a := r.request("POST", Path, nil, append([]string{"Upload-Length: " + length, named}, headers...)...)
	if a.status != http.StatusCreated {
		r.t.Fatalf("create: %d %s", a.status, a.body)
	}
	return a.header.Get("Location")
}

var named = "Upload-Metadata: name " + base64.StdEncoding.EncodeToString([]byte("parrot"))

func (a response) want(t *testing.T, status int, words string) {
	t.Helper()
	if a.status != status || !strings.Contains(string(a.body), words) {
		t.Errorf("the response is %d %s, want %d with %q", a.status, a.body, status, words)
	}
	if a.header.Get("Tus-Resumable") != version {
		t.Error("the response has no Tus-Resumable")
	}
}

// testImage returns bytes with holes.
func testImage(seed uint64, size int) []byte {
	noise := rand.NewChaCha8([32]byte{byte(seed)})
	r := rand.New(noise)
	b := make([]byte, size)
	for at := 0; at < size; {
		n := min(size-at, 1+r.IntN(3<<20))
		if r.IntN(2) == 0 {
			noise.Read(b[at : at+n])
		}
		at += n
	}
	return b
}

// testFile writes bytes to a file, with holes for zeros.
func testFile(t *testing.T, data []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	for at := 0; at < len(data); at += 4096 {
		b := data[at:min(at+4096, len(data))]
		if !bytes.Equal(b, make([]byte, len(b))) {
			if _, err := f.WriteAt(b, int64(at)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Hour) // old enough for a later write to change the modification time
	if err := os.Chtimes(f.Name(), old, old); err != nil {
		t.Fatal(err)
	}
	return f
}
