package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/clusterview"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
)

// TestWatchRedrawsWhatFitsTheTerminal uses a file whose size as a terminal is unknown, which then is 80 columns and 24 lines.
func TestWatchRedrawsWhatFitsTheTerminal(t *testing.T) {
	file, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var got bytes.Buffer
	w := statusWatch{screen: &progress{w: &got, tty: file}}
	drawn := func() []string {
		text := got.String()
		got.Reset()
		return strings.Split(strings.TrimSuffix(text, "\n\x1b[J"), "\n")
	}
	v := clusterview.HundredNodes()
	if err := w.show(v.Status(nil)); err != nil {
		t.Fatal(err)
	}
	first := drawn()
	if len(first) != 23 || !strings.HasPrefix(first[0], "Node ") || !strings.HasPrefix(first[22], "and ") {
		t.Errorf("%d lines: %q", len(first), first)
	}
	w.setProblem(errors.New("no route\x1b[2J"), "http://node1:8000")
	again := drawn()
	if up := fmt.Sprintf("\x1b[%dA", len(first)); !strings.HasPrefix(again[0], up+"not connected, trying again: no route") || strings.Contains(again[0], "\x1b[2J") || len(again) != 23 {
		t.Errorf("%d lines: %q", len(again), again)
	}
	for _, line := range append(first, again...) {
		if text := strings.TrimPrefix(strings.TrimSuffix(line, "\x1b[K"), "\x1b[23A"); len([]rune(text)) >= 80 {
			t.Errorf("%q is too long for the terminal", line)
		}
	}
	w.setProblem(nil, "http://node1:8000")
	if last := drawn(); !strings.Contains(last[0], "Node ") {
		t.Errorf("%q, want the table again", last)
	}
}

// After a failure, the next response must not wait for a change, and a state that did not change is not printed again.
func TestWatchContinuesAfterAFailure(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var known []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		known = append(known, r.Header.Get("If-None-Match"))
		w.Header().Set("ETag", `"a"`)
		switch len(known) {
		case 1, 3:
			_, _ = w.Write([]byte(`{"node": "node1"}`))
		case 2:
			http.Error(w, `{"error": "the node is shutting down"}`, http.StatusServiceUnavailable)
		default:
			cancel()
		}
	}))
	defer server.Close()
	client, err := api.NewClient(server.URL, "", auth.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	var out, messages bytes.Buffer
	if err := newStatusWatch(&out, &messages, report.JSON).follow(ctx, client); err != nil {
		t.Fatal(err)
	}
	if want := []string{"", `"a"`, "", `"a"`}; !slices.Equal(known, want) {
		t.Errorf("requests with %q, want %q", known, want)
	}
	if n := strings.Count(out.String(), "\n"); n != 1 {
		t.Errorf("%d documents: %s", n, &out)
	}
	if got := messages.String(); !strings.Contains(got, "shutting down; trying again\n") || !strings.Contains(got, "responds again\n") {
		t.Errorf("messages: %s", got)
	}
}
