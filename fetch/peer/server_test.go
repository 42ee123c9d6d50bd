package peer

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// TestServerRejectsInvalidRequests tests the routes. It has no slow and no endless requests: the
// http.Server handles them.
func TestServerRejectsInvalidRequests(t *testing.T) {
	n := startNode(t, "node1")
	n.cache.Publish(stateWith("node1", 1))
	for path, want := range map[string]int{
		"/v1/state":                       200,
		"/v1/state?wait=-5s":              200,
		"/v1/state?wait=1e99h":            400,
		"/v1/state?wait=9999999999h":      400,
		"/v1/state?wait=soon":             400,
		"/v1/state/":                      404,
		"/v1/./state":                     404,
		"/v1/images/%2e%2e/copies":        404,
		"/v1/images/..%2f..%2fetc/copies": 404,
		"/v1/images/Parrot/copies":        400,
		"/v1/images/" + strings.Repeat("a", 41) + "/copies": 400,
		"/v1/images/parrot/copies":                          200,
		"/":                                                 404,
	} {
		if resp, text := n.get(t, path); resp.StatusCode != want || want >= 400 && !strings.HasPrefix(text, `{"error":"`) {
			t.Errorf("%s: got %d %.100s, want %d", path, resp.StatusCode, text, want)
		}
	}
}

func TestStateIsCompressedOnRequest(t *testing.T) {
	n := startNode(t, "node1")
	n.cache.Publish(stateWith("node1", 100))
	resp, plain := n.get(t, "/v1/state", "Accept-Encoding", "identity")
	if resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("plain: got %v", resp.Header)
	}
	resp, compressed := n.get(t, "/v1/state", "Accept-Encoding", "gzip")
	if resp.Header.Get("Content-Encoding") != "gzip" || len(compressed) > len(plain)*2/3 {
		t.Errorf("compressed: %d of %d bytes, %v", len(compressed), len(plain), resp.Header)
	}
	z, err := gzip.NewReader(strings.NewReader(compressed))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || !bytes.Equal(got, []byte(plain)) {
		t.Errorf("decompressed it differs, error %v", err)
	}
	n.cache.Publish(stateWith("node1", 0))
	if resp, _ := n.get(t, "/v1/state", "Accept-Encoding", "gzip"); resp.Header.Get("Content-Encoding") != "" {
		t.Errorf("small: got %v", resp.Header)
	}
}

func TestTooManyLongPollsReturnAtOnce(t *testing.T) {
	n := startNode(t, "node1")
	n.cache.Publish(stateWith("node1", 1))
	_, etag, err := newClient(t).State(t.Context(), n.address(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	n.server.longPolls.Store(maxLongPolls)
	start := time.Now()
	if _, _, err := newClient(t).State(t.Context(), n.address(), etag, time.Minute); !errors.Is(err, ErrUnchanged) || time.Since(start) >= time.Minute {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
	if left := n.server.longPolls.Load(); left != maxLongPolls {
		t.Errorf("%d long polls are counted, want %d", left, maxLongPolls)
	}
}

func TestServerAllowsOnlyGET(t *testing.T) {
	n := startNode(t, "node1")
	n.cache.Publish(stateWith("node1", 1))
	for _, method := range []string{http.MethodHead, http.MethodPost, http.MethodDelete} {
		r, err := http.NewRequestWithContext(t.Context(), method, n.URL+"/v1/state", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: got %s", method, resp.Status)
		}
	}
}

func TestShutdownEndsLongPolls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := newFakeNetwork(t)
		ctx, cancel := context.WithCancel(t.Context())
		h := network.add(ctx, "node1")
		h.cache.Publish(model.Node{Node: "node1"})
		p := network.newPoller(t, "node1")
		<-p.Changed()
		time.Sleep(time.Second)
		start := time.Now()
		h.down.Store(true)
		cancel()
		if err := h.server.Shutdown(t.Context()); err != nil || time.Since(start) > time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		synctest.Wait()
		if a := p.Observations()["node1"]; !strings.HasSuffix(a.Problem, "the node is shutting down") {
			t.Errorf("got %+v", a)
		}
	})
}

// People read the state on a terminal, too.
func TestStateIsPrintable(t *testing.T) {
	want := model.Node{Node: "node1", Disks: map[string]model.Disk{"disk1": {Problem: "x\x1b]0;y\x07\u202e\u009b\nz"}}}
	encoded := encode(want)
	if strings.ContainsFunc(string(encoded), func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("the state is %q", encoded)
	}
	var got model.Node
	if err := json.Unmarshal(encoded, &got); err != nil || got.Disks["disk1"].Problem != want.Disks["disk1"].Problem {
		t.Errorf("the state is %+v, error %v", got, err)
	}
}
