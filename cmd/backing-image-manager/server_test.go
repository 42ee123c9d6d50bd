package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// serving is a daemon's loop and server in this process.
type serving struct {
	t    *testing.T
	url  string
	loop *reconcile.Loop
}

func startServing(t *testing.T, config string) serving {
	dir, conf := t.TempDir(), t.TempDir()
	if _, err := disk.Init(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(conf, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	loop := reconcile.NewLoop(reconcile.New(fetch.Client{}, log, false), reconcile.LoopOptions{
		Dir: conf, Interval: 100 * time.Millisecond, Node: "node1", Disks: []string{dir}, Log: log,
	})
	s := httptest.NewServer(server{loop: loop, guard: guard{host: "127.0.0.1"}, stuck: time.Minute}.handler())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- loop.Run(ctx) }()
	t.Cleanup(func() {
		s.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return serving{t, s.URL, loop}
}

func (s serving) ask(method, path string) (status int, body string) {
	s.t.Helper()
	r, err := http.NewRequest(method, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

// until asks until the answer is as it is wanted.
func (s serving) until(path string, is func(status int, body string) bool) string {
	s.t.Helper()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	over := time.After(patience)
	for {
		status, body := s.ask("GET", path)
		if is(status, body) {
			return body
		}
		select {
		case <-tick.C:
		case <-over:
			s.t.Fatalf("%s still answers %d %s", path, status, body)
		}
	}
}

func TestServer(t *testing.T) {
	origin := fetchtest.Start(t)
	url := origin.Serve("/parrot.raw", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	s := startServing(t, `settings: {allowLoopbackSources: true}
images: {parrot: {source: {download: {url: "`+url+`?key=SECRET"}}}}`)
	s.until("/readyz", func(status int, _ string) bool { return status == 200 })
	body := s.until("/v1/status", func(_ int, body string) bool { return strings.Contains(body, `"state":"ready"`) })
	var status reconcile.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil || status.Node != "node1" || status.Images[0].Ready != 1 {
		t.Errorf("the status is %+v (error %v)", status, err)
	}
	if strings.Contains(body, "SECRET") {
		t.Errorf("the status tells the query of an address: %s", body)
	}
	for _, tt := range []struct {
		method, path, want string
		status             int
	}{
		{"GET", "/healthz", `{"alive":true}`, 200},
		{"HEAD", "/healthz", ``, 200},
		{"GET", "/", `{"error":"nothing is here"}`, 404},
		{"GET", "/v1/images", `{"error":"nothing is here"}`, 404},
		{"POST", "/v1/status", `{"error":"use GET"}`, 405},
		{"GET", "/v1/images/parrot/verify", `{"error":"use POST"}`, 405},
		{"POST", "/v1/images/nobody/verify", `{"error":"verify nobody: not declared"}`, 404},
		{"POST", "/v1/images/parrot/verify", `{"copies":1}`, 202},
	} {
		if status, body := s.ask(tt.method, tt.path); status != tt.status || strings.TrimSpace(body) != tt.want {
			t.Errorf("%s %s answers %d %s, want %d %s", tt.method, tt.path, status, body, tt.status, tt.want)
		}
	}
	s.until("/metrics", func(_ int, body string) bool {
		return strings.Contains(body, `backing_image_manager_actions_total{action="verify"} 1`)
	})
}

func TestMetrics(t *testing.T) {
	origin := fetchtest.Start(t)
	url := origin.Serve("/parrot.raw", fetchtest.Bytes(fetchtest.Random(1, 3<<20)))
	s := startServing(t, `settings: {allowLoopbackSources: true}
images:
  parrot: {source: {download: {url: "`+url+`"}}}
  lost: {source: {download: {url: "`+origin.URL+`/lost"}}}`)
	body := s.until("/metrics", func(_ int, body string) bool {
		return strings.Contains(body, "images_ready 1") && strings.Contains(body, `failures_total{class="refused"} 1`) &&
			strings.Contains(body, `planned_actions{action="wait"} 1`) && strings.Contains(body, `actions_total{action="download"} 1`)
	})
	for _, want := range []string{
		"config_valid 1", "config_errors 0", "images_declared 2", "images_ready 1", `copies{state="ready"} 1`, `copies{state="failed"} 1`,
		`fetched_bytes_total{from="origins"} 3.145728e+06`, `fetched_bytes_total{from="peers"} 0`, "wanted_copies 2", "ready_copies 1",
		`missing_copies{image="lost"} 1`, "config_skew_peers 0", `actions_total{action="download"} 1`, `running_actions{action="download"} 0`,
		`disk_usable{disk="disk1"} 1`, `disk_free_bytes{disk="disk1"} [1-9].*`, `disk_reserved_bytes{disk="disk1"} 0`,
		"rounds_total [1-9].*", "last_round_timestamp_seconds 1.[0-9]+e\\+09",
	} {
		pattern := "(?m)^backing_image_manager_" + strings.NewReplacer("{", `\{`, "}", `\}`, "e+06", `e\+06`).Replace(want) + "$"
		if !regexp.MustCompile(pattern).MatchString(body) {
			t.Errorf("no %s in the metrics:\n%s", want, body)
		}
	}
	families, err := newRegistry(s.loop).Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("the metrics are not well named: %v (error %v)", problems, err)
	}
}

func TestUnready(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	ref := schema.DiskRef{Node: "node1", Disk: "disk1"}
	good := func() *reconcile.View {
		return &reconcile.View{
			Loaded: true, Desired: reconcile.Desired{Node: "node1", May: schema.Everything},
			Observed: reconcile.Observed{Now: now, Disks: map[schema.DiskRef]reconcile.Disk{ref: {}}},
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*reconcile.View)
		want   string
	}{
		{"good", func(*reconcile.View) {}, ""},
		{"mistakes", func(v *reconcile.View) { v.Desired.May = schema.NoDeletions }, ""},
		{"directory gone", func(v *reconcile.View) { v.Fault = "gone" }, ""},
		{"one disk of two", func(v *reconcile.View) {
			v.Observed.Disks[schema.DiskRef{Node: "node1", Disk: "disk2"}] = reconcile.Disk{Problem: "away"}
		}, ""},
		{"no configuration", func(v *reconcile.View) { v.Loaded, v.Fault = false, "no directory" }, "no directory"},
		{"not in it", func(v *reconcile.View) { v.Desired.May = schema.ObserveOnly }, "cannot be acted on"},
		{"stuck", func(v *reconcile.View) { v.Observed.Now = now.Add(-time.Hour) }, "1h0m0s ago"},
		{"no disk", func(v *reconcile.View) { v.Observed.Disks = nil }, "no disks are declared"},
		{"its disk is away", func(v *reconcile.View) { v.Observed.Disks[ref] = reconcile.Disk{Problem: "away"} }, "disk node1/disk1: away"},
	} {
		v := good()
		tt.change(v)
		got := strings.Join(unready(v, now, time.Minute), "; ")
		if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
	if len(unready(nil, now, time.Minute)) == 0 {
		t.Error("ready before the first round")
	}
}
