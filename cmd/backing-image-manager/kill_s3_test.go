package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/s3test"
)

var killTimes = flag.Int("kill.times", 2, "how often TestKilledBackupAndRestoreRecover kills a backup, and how often a restore")

// killingProxy is a reverse proxy that kills a process at a given request: before the request is
// forwarded, in the middle of the body of the request or of the response, or after the server has
// executed the request and before the response arrives.
type killingProxy struct {
	*httputil.ReverseProxy

	mu     sync.Mutex
	victim *os.Process // nil: killed
	left   int         // requests until the kill; if that request ends without it, the next one kills
	moment moment
}

const never = 1 << 30

// moment is the part of a request at which the proxy kills.
type moment int

const (
	notNow moment = iota
	beforeRequest
	duringBody
	beforeResponse
)

var moments = []moment{beforeRequest, duringBody, beforeResponse}

func newKillingProxy(target string) *killingProxy {
	at, err := url.Parse(target)
	if err != nil {
		panic(err)
	}
	s := &killingProxy{}
	s.ReverseProxy = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = at.Scheme, at.Host // the signature covers the host, so it stays
			r.Out.Host = r.In.Host
		},
		ModifyResponse: s.respond,
		ErrorLog:       log.New(io.Discard, "", 0), // the errors of killed clients
	}
	return s
}

type momentKey struct{}

func (s *killingProxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	due := notNow
	if s.left--; s.left <= 0 {
		due = s.moment
	}
	s.mu.Unlock()
	switch due {
	case beforeRequest:
		s.kill()
	case duringBody:
		if r.ContentLength > 0 {
			r.Body = &killingBody{r.Body, r.ContentLength / 2, s.kill}
		}
	}
	s.ReverseProxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), momentKey{}, due)))
}

func (s *killingProxy) respond(resp *http.Response) error {
	switch due := resp.Request.Context().Value(momentKey{}); {
	case due == beforeResponse, due == duringBody && resp.ContentLength <= 0:
		s.kill()
	case due == duringBody:
		resp.Body = &killingBody{resp.Body, resp.ContentLength / 2, s.kill}
	}
	return nil
}

func (s *killingProxy) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.victim != nil {
		_ = s.victim.Kill() // it may have ended
		s.victim = nil
	}
}

// killingBody calls kill when left bytes have been read.
type killingBody struct {
	io.ReadCloser
	left int64
	kill func()
}

func (h *killingBody) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p[:min(int64(len(p)), max(1, h.left))])
	if h.left -= int64(n); h.left <= 0 {
		h.kill()
	}
	return n, err
}

// runKilled runs the program again and again until a run ends before it is killed. It kills at most
// the given number of runs, and returns the output of the last one.
func (s *killingProxy) runKilled(t *testing.T, random *rand.Rand, kills int, args ...string) string {
	t.Helper()
	for ; ; kills-- {
		cmd := exec.Command("backing-image-manager", args...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		s.mu.Lock()
		s.left, s.moment = never, moments[random.IntN(len(moments))]
		if kills > 0 {
			s.left = 1 + random.IntN(14)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.victim = cmd.Process
		s.mu.Unlock()
		err := cmd.Wait()
		s.mu.Lock()
		alive := s.victim != nil
		s.victim = nil
		s.mu.Unlock()
		if alive && err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out.Bytes())
		}
		if alive {
			return out.String()
		}
	}
}

// The program is killed by SIGKILL again and again while it backs up an image to a bucket, and then
// while it restores it. The restored image must have the same bytes, and the attempts must leave
// nothing behind.
func TestKilledBackupAndRestoreRecover(t *testing.T) {
	skipKilled(t)
	t.Parallel()
	server := s3test.Start(t, "images")
	s := newKillingProxy(server.URL)
	proxy := httptest.NewServer(s)
	defer proxy.Close()
	random := rand.New(rand.NewPCG(*killSeed, 1))
	dir := t.TempDir()
	secrets, before, after, from, to := filepath.Join(dir, "secrets"), filepath.Join(dir, "before"), filepath.Join(dir, "after"), filepath.Join(dir, "from"), filepath.Join(dir, "to")
	image := fetchtest.Random(7, 17<<20+512)
	clear(image[5<<20 : 9<<20])
	const target = "s3://images@us-east-1/deep"
	if err := server.Credentials(filepath.Join(secrets, "store")); err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string]string{
		filepath.Join(secrets, "store/endpoint"): proxy.URL,
		filepath.Join(dir, "parrot.raw"):         string(image),
		filepath.Join(before, "images.yaml"):     fmt.Sprintf("images: {parrot: {source: {download: {url: %q}}}}", "file://"+filepath.Join(dir, "parrot.raw")),
		filepath.Join(after, "images.yaml"): fmt.Sprintf("settings: {allowLoopbackSources: true}\n"+
			"images: {parrot: {source: {restore: {backupURL: %q, credentials: store}}}}", target+"?backingImage=parrot"),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{from, to} {
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := disk.Init(path); err != nil {
			t.Fatal(err)
		}
	}
	s.runKilled(t, random, 0, "reconcile", "--config-dir", before, "--disk", from)

	backUp := []string{"backing-image", "backup", "parrot", target, "--disk", from, "--secrets-dir", secrets, "--credentials", "store"}
	s.runKilled(t, random, *killTimes, backUp...)
	if out := s.runKilled(t, random, 0, backUp...); !strings.Contains(out, " 0 B stored") {
		t.Errorf("a repeated backup prints %q", out)
	}
	s.runKilled(t, random, *killTimes, "reconcile", "--config-dir", after, "--disk", to, "--secrets-dir", secrets)
	if n := server.Uploads(t, "images"); n > 0 {
		t.Errorf("%d multipart uploads were started and not ended", n)
	}
	folders, err := filepath.Glob(filepath.Join(to, "backing-images", "*"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("images: %q, error %v", folders, err)
	}
	got, err := os.ReadFile(filepath.Join(folders[0], "backing"))
	if err != nil || !bytes.Equal(got, image) {
		t.Errorf("the restored image has %d bytes, which are not the %d bytes of the original (error %v)", len(got), len(image), err)
	}
	for _, left := range []string{filepath.Join(folders[0], "*part*"), filepath.Join(server.Dir, "images", ".sgwtmp", "multipart", "*")} {
		if found, err := filepath.Glob(left); err != nil || len(found) > 0 {
			t.Errorf("the attempts left %q, error %v", found, err)
		}
	}
}
