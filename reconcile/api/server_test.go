package api

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// runningLoop is a loop and its server.
type runningLoop struct {
	t    *testing.T
	url  string
	loop *reconcile.Loop
}

func startServer(t *testing.T, config string) runningLoop {
	dir, conf := t.TempDir(), t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(conf, "config.yaml"), config)
	loop := startLoop(t, conf, dir)
	s := httptest.NewServer(newServer(loop, localAuthorizer(t), Options{MaxRoundAge: time.Minute}).handler())
	t.Cleanup(s.Close)
	return runningLoop{t, s.URL, loop}
}

func (s runningLoop) do(method, path string) (status int, body string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// until sends requests until the response is as expected.
func (s runningLoop) until(path string, expected func(status int, body string) bool) (body string) {
	s.t.Helper()
	waitFor(s.t, path+" does not respond as expected", func() bool {
		var status int
		status, body = s.do("GET", path)
		return expected(status, body)
	})
	return body
}

func TestRoutesRespond(t *testing.T) {
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/parrot.raw", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	s := startServer(t, `settings: {allowLoopbackSources: true}
images: {parrot: {source: {download: {url: "`+url+`?key=SECRET"}}}}`)
	s.until("/readyz", func(status int, _ string) bool { return status == 200 })
	body := s.until("/v1/status", func(_ int, body string) bool { return strings.Contains(body, `"state":"ready"`) })
	var status status.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil || status.Node != "node1" || status.Images[0].Ready != 1 {
		t.Errorf("the status is %+v (error %v)", status, err)
	}
	if strings.Contains(body, "SECRET") {
		t.Errorf("the status contains the query of an address: %s", body)
	}
	for _, tt := range []struct {
		method, path, want string
		status             int
	}{
		{"GET", "/healthz", `{"alive":true}`, 200},
		{"HEAD", "/healthz", ``, 200},
		{"GET", "/none", `{"error":"not found"}`, 404},
		{"GET", "/v1/images", `{"error":"not found"}`, 404},
		{"POST", "/v1/status", `{"error":"method not allowed: use GET or HEAD"}`, 405},
		{"POST", "/v1/state", `{"error":"method not allowed: use GET"}`, 405},
		{"POST", "/v1/images/parrot/download", `{"error":"method not allowed: use GET or HEAD"}`, 405},
		{"GET", "/v1/images/parrot/verify", `{"error":"method not allowed: use POST"}`, 405},
		{"POST", "/v1/images/nobody/verify", `{"error":"verify nobody: not declared"}`, 404},
		{"POST", "/v1/images/parrot/verify", `{"copies":1}`, 202},
	} {
		if status, body := s.do(tt.method, tt.path); status != tt.status || strings.TrimSpace(body) != tt.want {
			t.Errorf("%s %s: the response is %d %s, want %d %s", tt.method, tt.path, status, body, tt.status, tt.want)
		}
	}
	s.until("/metrics", func(_ int, body string) bool {
		return strings.Contains(body, `backing_image_manager_actions_total{op="verify"} 1`)
	})
}

func TestMetricsOfADaemon(t *testing.T) {
	upstream := fetchtest.Start(t)
	url := upstream.Serve("/parrot.raw", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	s := startServer(t, `settings: {allowLoopbackSources: true}
images:
  parrot: {source: {download: {url: "`+url+`"}}}
  lost: {source: {download: {url: "`+upstream.URL+`/lost"}}}`)
	body := s.until("/metrics", func(_ int, body string) bool {
		return strings.Contains(body, "images_ready 1") && strings.Contains(body, `failures_total{class="refused"} 1`) &&
			strings.Contains(body, `planned_actions{op="wait"} 1`) && strings.Contains(body, `actions_total{op="download"} 1`)
	})
	for _, want := range []string{
		"config_valid 1", "config_errors 0", "images_declared 2", "images_ready 1", `copies{state="ready"} 1`, `copies{state="failed"} 1`,
		`fetched_bytes_total{from="upstreams"} 3.145728e+06`, `fetched_bytes_total{from="peers"} 0`, "desired_copies 2", "ready_copies 1",
		`missing_copies{image="lost"} 1`, "config_skew_peers 0", `actions_total{op="download"} 1`, `waiting_actions{code="retry",op="wait"} 1`, `running_actions{op="download"} 0`,
		`disk_usable{disk="disk1"} 1`, `disk_free_bytes{disk="disk1"} [1-9].*`, `disk_reserved_bytes{disk="disk1"} 0`,
		"rounds_total [1-9].*", "last_round_timestamp_seconds 1.[0-9]+e\\+09",
	} {
		pattern := "(?m)^backing_image_manager_" + strings.NewReplacer("{", `\{`, "}", `\}`, "e+06", `e\+06`).Replace(want) + "$"
		if !regexp.MustCompile(pattern).MatchString(body) {
			t.Errorf("no %s in the metrics:\n%s", want, body)
		}
	}
	families, err := newRegistry(s.loop, localAuthorizer(t)).Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("the metrics break the naming rules: %v (error %v)", problems, err)
	}
}

// A response must not end because it takes longer than the read timeout. It must end when the
// caller disconnects.
func TestResponseOutlivesTheReadTimeout(t *testing.T) {
	ended := make(chan error, 1)
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(2 * time.Second):
		case <-r.Context().Done():
			ended <- r.Context().Err()
		}
		if r.URL.RawQuery != "" {
			<-r.Context().Done()
			ended <- r.Context().Err()
		}
	})
	s := newHTTPServer(slow, localAuthorizer(t), slog.New(slog.DiscardHandler))
	s.ReadTimeout = time.Second // a request must arrive before
	d := &daemon{t: t, address: serve(t, s)}
	if status, _ := d.send("GET / HTTP/1.1", "Host: localhost"); status != 200 || len(ended) > 0 {
		t.Errorf("the request ended early, with status %d", status)
	}
	conn := d.connect()
	if _, err := io.WriteString(conn, "GET /?forever HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	select {
	case <-ended:
	case <-time.After(timeout):
		t.Error("the caller disconnected, and the request continues")
	}
}

func TestReasonOfAKeptCopyNamesTheActionThatRunsFirst(t *testing.T) {
	reason := func(text string) model.Reason { return model.Reason{Text: text} }
	for _, tt := range []struct {
		action plan.Action
		want   string
	}{
		{plan.Action{Op: model.Wait, Reason: reason("surplus copy, but replica vol1 uses it")}, "kept: surplus copy, but replica vol1 uses it"},
		{plan.Action{Op: model.Blocked, Reason: reason("no disk matches")}, "kept: no disk matches"},
		{plan.Action{Op: model.Verify, Reason: reason("requested")}, "kept for now: the action verify comes first (requested): request the clean-up again when it has ended"},
	} {
		if got := keptText(tt.action); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestEveryPanicOfAHandlerIsLogged(t *testing.T) {
	var log bytes.Buffer
	h := newHTTPServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a fault") }), &auth.Authorizer{}, slog.New(slog.NewTextHandler(&log, nil)))
	const requests = 50 // more panics than errorLog logs without a pause
	for range requests {
		func() {
			defer func() {
				if cause := recover(); cause != http.ErrAbortHandler {
					t.Errorf("the handler panics with %v: the server would log it again", cause)
				}
			}()
			h.Handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		}()
	}
	if n := strings.Count(log.String(), "a fault"); n != requests {
		t.Errorf("%d of %d panics are logged:\n%s", n, requests, log.String())
	}
}

// Before a daemon has read its config directory, every request has to be tried again later: it is not known
// yet which images and disks are declared.
func TestRequestsBeforeTheConfigurationIsRead(t *testing.T) {
	root := t.TempDir()
	loop := startLoop(t, filepath.Join(root, "missing"), filepath.Join(root, "disk"))
	s := NewServer(loop, localAuthorizer(t), Options{MaxRoundAge: time.Minute}, slog.New(slog.DiscardHandler))
	waitFor(t, "there is no round", func() bool { return loop.View() != nil })
	for _, path := range []string{"verify", "retry", "retry?disk=node1/disk1", "cleanup?disk=node1/disk1", "cleanup?disk=node1/disk1&uuid=6846a0b2"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/images/parrot/"+path, nil)
		r.Host, r.RemoteAddr = "localhost", "127.0.0.1:5000"
		if s.Handler.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

// A proxy may remove the prefix or keep it, and the prefix may be the beginning of a route: an image stays an image.
func TestPathsBelowThePrefix(t *testing.T) {
	s := startServer(t, "")
	s.until("/v1/status", func(status int, _ string) bool { return status == http.StatusOK })
	for _, prefix := range []string{"/images", "/v1", "/a/b"} {
		h := newServer(s.loop, localAuthorizer(t), Options{WebPrefix: prefix}).handler()
		get := func(path string) *httptest.ResponseRecorder {
			w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "http://127.0.0.1:8000"+path, nil)
			r.RemoteAddr = "127.0.0.1:5"
			h.ServeHTTP(w, r)
			return w
		}
		if got := get(prefix); got.Code != http.StatusTemporaryRedirect || got.Header().Get("Location") != prefix+"/" {
			t.Errorf("%s: status %d to %q", prefix, got.Code, got.Header().Get("Location"))
		}
		for path, want := range map[string]string{
			"/": "<h1>Images</h1>", "/plan": "<h1>Plan", "/images/parrot": "no image of this name", "/healthz": "alive", "/v1/state": `"node"`,
			"//evil.example": "not found", "/../plan": "not found", "/no/such/path": "not found", "/%2Fevil.example": "not found",
		} {
			for _, path := range []string{path, prefix + path} {
				if got := get(path); !strings.Contains(got.Body.String(), want) || got.Header().Get("Location") != "" {
					t.Errorf("prefix %s: %s has status %d, location %q and\n%s", prefix, path, got.Code, got.Header().Get("Location"), got.Body)
				}
			}
		}
	}
}
