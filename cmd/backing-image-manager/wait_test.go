package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

func TestErrorListsTheImagesThatAreNotReady(t *testing.T) {
	const asks = `"node":"n1","peers":[{"node":"n4","address":"http://user:pass@n4:8000"}]`
	const known = `"config":{"allowed":"everything","digest":"d1"}`
	const parrot = `{"name":"parrot","declared":true,"desired":5,"ready":1,"copies":[
		{"node":"n1","disk":"d1","state":"ready","message":"not printed"},{"node":"n1","disk":"d2","state":"failed","message":"404"},
		{"node":"n2","disk":"d1","state":"unknown"},{"node":"n3","disk":"d1","state":"pending","message":"two\nlines"},{"node":"n4","disk":"d1","state":"pending"}]}`
	for _, tt := range []struct {
		name, status string
		names        []string
		want         string
		permanent    bool
	}{
		{"nothing is declared", `{` + known + `}`, nil, "", false},
		{"all ready", `{` + known + `,"images":[{"name":"parrot","declared":true,"desired":2,"ready":3}]}`, nil, "", false},
		{"other generations do not count", `{` + known + `,"images":[{"name":"parrot","uuid":"1","ready":1},{"name":"parrot","uuid":"2","declared":true,"desired":1,"message":"blocked"}]}`,
			[]string{"parrot"}, "parrot: 0 of 1 copies ready: blocked", false},
		{"a reason that another node has", `{` + asks + `,` + known + `,"images":[{"name":"parrot","declared":true,"desired":2,"copies":[{"node":"n4","disk":"d1","state":"pending","observed":{"state":"pending"},"partBytes":5}]}]}`, nil,
			"parrot: 0 of 2 copies ready; n4/d1 is pending: its node has the reason: backing-image-manager status --url http://n4:8000", false},
		{"a reason in the plan", `{` + asks + `,` + known + `,"images":[{"name":"parrot","uuid":"1","declared":true,"desired":2,"copies":[{"node":"n1","disk":"d1","state":"pending"}]}],
			"plan":{"actions":[{"op":"wait","image":"parrot","uuid":"1","node":"n4","disk":"d1","reason":{"text":"the first copy is created on n4/d1"}}]}}`, nil,
			"parrot: 0 of 2 copies ready; n1/d1 is pending: the plan has wait on n4/d1: the first copy is created on n4/d1", false},
		{"reasons of several copies", `{"node":"n1",` + known + `,"images":[` + parrot + `]}`, nil,
			"parrot: 1 of 5 copies ready; n1/d2 is failed: 404; n2/d1 is unknown: the daemon of node n2 has the reason; n3/d1 is pending: two; lines; n4/d1 is pending: the daemon of node n4 has the reason", false},
		{"no disk matches", `{` + known + `,"images":[{"name":"parrot","declared":true}]}`, nil, "parrot: 0 of 0 copies ready", false},
		{"not declared any more", `{` + known + `,"images":[{"name":"parrot","ready":1,"message":"deleted later"}]}`, []string{"parrot"}, "parrot is not declared", true},
		{"never declared", `{` + known + `}`, []string{"nest"}, "nest is not declared", true},
		{"not read yet", `{"config":{"allowed":"observe only"}}`, []string{"nest"}, "the configuration is unknown: it was not read yet", false},
		{"no directory", `{"config":{"allowed":"observe only","fault":"gone"}}`, nil, "the configuration is unknown: gone", false},
		{"an error elsewhere in the configuration", `{"config":{"allowed":"no deletions","errors":["x.yaml:1:1: no"]}}`, nil, "the configuration has errors: x.yaml:1:1: no", false},
		{"an error in the declaration of the image", `{"config":{"allowed":"no deletions","errors":["x.yaml:1:1: no"]},"images":[{"name":"nest","message":"no"}]}`,
			[]string{"nest"}, "nest: 0 of 0 copies ready: no", false},
	} {
		var s status.Status
		if err := json.Unmarshal([]byte(tt.status), &s); err != nil {
			t.Fatal(err)
		}
		err := s.CheckReady(tt.names)
		if err == nil != (tt.want == "") || err != nil && err.Error() != tt.want {
			t.Errorf("%s:\n got %v\nwant %s", tt.name, err, tt.want)
		}
		if err != nil && isPermanent(err) != tt.permanent {
			t.Errorf("%s: permanent is %t, want %t", tt.name, isPermanent(err), tt.permanent)
		}
	}
}

func TestPermanentErrorsEndTheWait(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{&api.UnreachableError{Address: "http://x", Err: syscall.ECONNREFUSED}, false},
		{&api.UnreachableError{Address: "http://x", Err: errors.New("no such host")}, false},
		{&api.UnreachableError{Address: "https://x", Err: &tls.CertificateVerificationError{Err: errors.New("unknown authority")}}, true},
		{&api.RefusedError{Response: httperror.Error{Status: 503}}, false},
		{&api.RefusedError{Response: httperror.Error{Status: 401}}, true},
		{&api.RefusedError{Response: httperror.Error{Status: 404}}, true},
		{errors.New("read token: open none"), true},
	} {
		if got := isPermanent(tt.err); got != tt.want {
			t.Errorf("%v: permanent is %t, want %t", tt.err, got, tt.want)
		}
	}
}

// The command must continue to wait when a daemon stops in the middle of a response, because the
// daemon may start again.
func TestWaitContinuesAfterAnIncompleteResponse(t *testing.T) {
	var requests atomic.Int32
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 1 {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"config":{"allowed":"ev`)
			return
		}
		fmt.Fprint(w, `{"config":{"allowed":"everything","digest":"d1"}}`)
	}))
	defer daemon.Close()
	if err := waitReady(t.Context(), newClient(t, daemon.URL), nil, status.ConfigID{}, 0, newProgress(io.Discard)); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestStoppedWaitListsWhatIsMissing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var requests atomic.Int32
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests.Add(1) == 2 {
			stop()
		}
		fmt.Fprint(w, `{"config":{"allowed":"everything","digest":"d1"},"images":[{"name":"parrot","declared":true,"desired":1}]}`)
	}))
	defer daemon.Close()
	err := waitReady(ctx, newClient(t, daemon.URL), nil, status.ConfigID{}, 0, newProgress(io.Discard))
	if want := "stopped waiting\nparrot: 0 of 1 copies ready"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// A daemon applies a changed directory after a moment. Without --revision or --digest, the command must
// accept that a name is declared a moment later. With one of them it must not judge the images of an
// older configuration.
func TestWaitJudgesTheConfigurationThatItIsAskedFor(t *testing.T) {
	const old = `{"config":{"allowed":"everything","digest":"aaaaaaaa","revision":"1111111111"}}`
	const renewed = `{"config":{"allowed":"everything","digest":"bbbbbbbb","revision":"2222222222"},"images":[{"name":"nest","declared":true,"desired":1,"ready":1}]}`
	const emptied = `{"config":{"allowed":"everything","digest":"bbbbbbbb","revision":"2222222222"}}`
	for _, tt := range []struct {
		name  string
		names []string
		of    status.ConfigID
		then  string // the second response
		want  string // error
	}{
		{"a name", []string{"nest"}, status.ConfigID{}, renewed, ""},
		{"a digest", nil, status.ConfigID{Digest: "bbbbbbb"}, renewed, ""},
		{"a revision", nil, status.ConfigID{Revision: "22222222"}, renewed, ""},
		{"undeclared in that revision", []string{"nest"}, status.ConfigID{Revision: "2222222222"}, emptied, "nest is not declared"},
	} {
		var requests atomic.Int32
		daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if requests.Add(1) == 1 {
				fmt.Fprint(w, old)
				return
			}
			fmt.Fprint(w, tt.then)
		}))
		err := waitReady(t.Context(), newClient(t, daemon.URL), tt.names, tt.of, 0, newProgress(io.Discard))
		daemon.Close()
		if err == nil != (tt.want == "") || err != nil && err.Error() != tt.want || requests.Load() != 2 {
			t.Errorf("%s: got %v after %d requests, want %q after 2", tt.name, err, requests.Load(), tt.want)
		}
	}
}

func newClient(t *testing.T, url string) *api.Client {
	t.Helper()
	c, err := api.NewClient(url, "", auth.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
