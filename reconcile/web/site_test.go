package web

import (
	"compress/gzip"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// rig is a Site over a view that a test can replace.
type rig struct {
	*Site
	mux *http.ServeMux

	mu      sync.Mutex
	view    *status.View
	changed chan struct{}
}

// newRig returns a Site for callers with one of the tokens, or for local callers without tokens.
func newRig(t testing.TB, v *status.View, tokens, prefix string) *rig {
	t.Helper()
	file := ""
	if tokens != "" {
		file = filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(file, []byte(tokens), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := auth.Load(slog.New(slog.DiscardHandler), file, auth.TLSFiles{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := auth.NewAuthorizer(c, "127.0.0.1:8000", false)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{view: v, changed: make(chan struct{}), mux: http.NewServeMux()}
	r.Site = New(Options{
		View: func() *status.View { r.mu.Lock(); defer r.mu.Unlock(); return r.view },
		NextRound: func() <-chan struct{} {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.changed
		},
		Status: func() (*status.View, status.Status) {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.view, r.view.Status(nil)
		},
		Auth: a, IsDeclared: func(string) bool { return false }, Prefix: prefix, Dir: "/etc/images",
	})
	for _, route := range r.Routes() {
		r.mux.HandleFunc(route.Pattern, route.Handler)
	}
	return r
}

// show replaces the view, as the next round does.
func (r *rig) show(v *status.View) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.view = v
	close(r.changed)
	r.changed = make(chan struct{})
}

// get sends a GET of a local browser.
func (r *rig) get(path string, change ...func(*http.Request)) *httptest.ResponseRecorder {
	request := httptest.NewRequest("GET", "http://127.0.0.1:8000"+path, nil)
	request.RemoteAddr = "127.0.0.1:5"
	for _, c := range change {
		c(request)
	}
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, request)
	return w
}

const testConfig = `
nodes:
  node1: {disks: {disk1: {path: /disk1, storageReserved: 1Gi}, disk2: {path: /disk2, evictionRequested: true}}}
  node2: {address: "https://node2.example:8000", disks: {disk1: {path: /disk1}}}
images:
  parrot: {title: "Parrot OS", minNumberOfCopies: 2, source: {download: {url: "https://example.com/parrot.raw?token=secret"}}}
  held: {suspend: {reason: not tested, by: ann}, source: {upload: {}}}
`

// newView returns a round of node1 in which image parrot has one ready copy.
func newView(t *testing.T) *status.View {
	t.Helper()
	d := plantest.Load(t, testConfig)
	parrot := d.Config.Images["parrot"].ID
	ready := model.Copy{State: model.Ready, Size: 3 << 20, RealSize: 3 << 20, SHA512: plantest.Digest(ident.SHA512, "a"), ManifestDigest: plantest.Digest(ident.SHA256, "a"), Owned: true, HasCfg: true}
	o := plan.Observed{
		Now: plantest.Now,
		Disks: map[ident.DiskRef]model.Disk{
			{Node: "node1", Disk: "disk1"}: {Path: "/disk1", UUID: "u1", Space: model.Space{Total: 100 << 30, Free: 40 << 30}, Copies: map[ident.ID]model.Copy{parrot: ready}},
			{Node: "node2", Disk: "disk1"}: {Path: "/disk1", UUID: "u3", Copies: map[ident.ID]model.Copy{parrot: ready}},
			{Node: "node1", Disk: "disk2"}: {Path: "/disk2", UUID: "u2", Space: model.Space{Total: 100 << 30, Free: 40 << 30}, Copies: map[ident.ID]model.Copy{}},
		},
		Peers: map[string]model.Peer{"node2": {Queried: true, Problem: "connection refused", UnreachableSince: plantest.Now.Add(-time.Hour)}},
	}
	return &status.View{Desired: d, Observed: o, Plan: plan.NewRound(d, o).Plan(), Loaded: true, Placements: &status.PlacementCache{}}
}

// The page of an image shows where its bytes come from, for every kind of source.
func TestImageShowsWhereItsBytesComeFrom(t *testing.T) {
	v := newView(t)
	v.Desired = plantest.Load(t, `
nodes: {node1: {disks: {disk1: {path: /disk1}}}}
images:
  downloaded: {source: {download: {url: "https://example.com/a.raw?token=secret"}}}
  uploaded: {source: {upload: {}}}
  volume: {source: {exportFromVolume: {volumeName: vm1-root}}}
  file: {source: {exportFromVolume: {path: /dev/vg/lv1}}}
  restored: {source: {restore: {backupURL: "s3://backups@eu/?backingImage=restored"}}}
  cloned: {source: {clone: {backingImage: file}}}
`)
	v.Plan = plan.NewRound(v.Desired, v.Observed).Plan()
	r := newRig(t, v, "", "")
	for name, want := range map[string]string{
		"downloaded": "download <code>https://example.com/a.raw</code>", "uploaded": "upload</dd>", "volume": "exportFromVolume <code>vm1-root</code>",
		"file": "exportFromVolume <code>/dev/vg/lv1</code>", "restored": "restore <code>s3://backups@eu/</code>", "cloned": "clone <code>file</code>",
	} {
		if page := r.get("/images/" + name).Body.String(); !strings.Contains(page, want) || strings.Contains(page, "secret") {
			t.Errorf("the page of %s does not show %q, or a secret:\n%s", name, want, page)
		}
	}
}

func TestEveryViewShowsWhatItIsAbout(t *testing.T) {
	r := newRig(t, newView(t), "", "")
	for path, want := range map[string][]string{
		"/":              {"parrot", "Parrot OS", "1 of 2", "suspended: not tested", "node2 <small>unreachable", ">ready<"},
		"/?q=held":       {"held", "1 to 1 of 1"},
		"/?state=ready":  {"No image matches"},
		"/images/parrot": {"1 of 2 ready", "https://", "example.com/parrot.raw", "config.yaml:6", "node1/disk1", `href="https://node2.example:8000/images/parrot"`, "Download the image"},
		"/images/held":   {"not tested", "(ann)"},
		"/disks":         {"node1", "this node", "eviction requested", "40 GiB", "100 GiB", "1.0 GiB", "connection refused"},
		"/plan":          {"parrot", "Plan of node node1", "held</a>: not tested (ann)"},
		"/configuration": {"/etc/images", "2 images, 2 nodes", "everything", "not tested"},
	} {
		w := r.get(path)
		for _, text := range want {
			if !strings.Contains(w.Body.String(), text) {
				t.Errorf("%s does not show %q:\n%s", path, text, w.Body)
			}
		}
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d", path, w.Code)
		}
		if strings.Contains(w.Body.String(), "secret") {
			t.Errorf("%s shows a secret:\n%s", path, w.Body)
		}
	}
	if w := r.get("/images/none"); w.Code != http.StatusNotFound || !strings.Contains(w.Body.String(), "no image of this name") {
		t.Errorf("an unknown image: %d\n%s", w.Code, w.Body)
	}
}

// Texts from outside must stay texts, wherever they are.
func TestTextFromOutsideIsEscaped(t *testing.T) {
	const evil = `"><script src=//evil.example></script><img src=x onerror=alert(1)>' javascript:alert(1)` + "\x1b[31m\u202e"
	v := newView(t)
	parrot := v.Desired.Config.Images["parrot"]
	parrot.Title, parrot.Suspend = evil, &schema.Suspension{Reason: evil, By: evil}
	v.Desired.Config.Images["parrot"] = parrot
	v.Desired.Config.Images["upload"] = schema.Image{ID: ident.ID{Name: "upload", UUID: "00000001"}, Copies: 1, Source: schema.Source{Upload: &schema.Upload{}}}
	ref := ident.DiskRef{Node: "node1", Disk: "disk1"}
	seen := v.Observed.Disks[ref]
	c := seen.Copies[parrot.ID]
	c.Message, c.UsedBy, c.Signature = evil, evil, model.Signature{Scheme: evil, Signer: evil}
	seen.Copies[parrot.ID] = c
	seen.Problem, seen.Path, seen.Unmanaged, seen.UsageUnknown = evil, evil, []string{evil}, evil
	v.Observed.Disks[ref] = seen
	v.Observed.Disks[ident.DiskRef{Node: "node2", Disk: "disk1"}] = model.Disk{Path: evil, Problem: evil, Copies: map[ident.ID]model.Copy{
		parrot.ID: {State: model.Failed, Message: evil, Rejection: evil, Reason: model.Reason{Code: evil, Text: evil}},
	}}
	v.Observed.Peers["node2"] = model.Peer{Queried: true, Problem: evil, ConfigDigest: evil}
	v.Observed.Failures = map[ident.CopyRef]model.Failure{{Disk: ref, ID: parrot.ID}: {Attempts: 3, Message: evil}}
	v.Plan = plan.NewRound(v.Desired, v.Observed).Plan()
	for i := range v.Plan.Actions {
		v.Plan.Actions[i].Text, v.Plan.Actions[i].Code = evil, evil
	}
	v.Fault = evil
	r := newRig(t, v, "", "")
	for _, path := range []string{"/", "/images/parrot", "/images/upload", "/disks", "/plan", "/configuration", "/?q=" + strings.ReplaceAll(evil, " ", "%20"), "/images/%22%3E%3Cscript%3E", "/signin"} {
		w := r.get(strings.NewReplacer("\x1b", "%1b", "\u202e", "", `"`, "%22", "<", "%3C", ">", "%3E").Replace(path))
		html := w.Body.String()
		for _, bad := range []string{"<script src=//", "<img src=x", `href="javascript`, "\x1b", "\u202e"} {
			if strings.Contains(html, bad) {
				t.Errorf("%s contains %q:\n%s", path, bad, html)
			}
		}
		if n := strings.Count(html, "<script"); n != 1 {
			t.Errorf("%s has %d scripts", path, n)
		}
		withoutValues := regexp.MustCompile(`"[^"]*"`).ReplaceAllString(html, `""`)
		if regexp.MustCompile(`<[^>]*\s(on\w+|style)=`).MatchString(withoutValues) {
			t.Errorf("%s has an attribute that the policy does not allow", path)
		}
	}
}

func TestHeadersAllowOnlyOwnContent(t *testing.T) {
	r := newRig(t, newView(t), "", "")
	for _, path := range []string{"/", "/disks", "/images/none", "/signin", "/assets/page.js", "/assets/none"} {
		h := r.get(path).Header()
		if got := h.Get("Content-Security-Policy"); got != securityPolicy || strings.Contains(got, "unsafe") {
			t.Errorf("%s: %q", path, got)
		}
		if h.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%s may be in a frame", path)
		}
	}
	foreign := regexp.MustCompile(`(?:src|href|action)="(?:[a-z]+:)?//`)
	for _, path := range []string{"/", "/plan", "/configuration"} {
		if html := r.get(path).Body.String(); foreign.MatchString(html) {
			t.Errorf("%s refers to another host:\n%s", path, html)
		}
	}
}

// A poll returns when the view differs, and only then.
func TestPollReturnsTheChangedView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, newView(t), "", "")
		tag := regexp.MustCompile(`data-view="(\w+)"`).FindStringSubmatch(r.get("/").Body.String())[1]
		done := make(chan *httptest.ResponseRecorder, 1)
		poll := func() { done <- r.get("/?poll=" + tag) }
		began := time.Now()
		go poll()
		time.Sleep(10 * time.Second) // of the bubble
		later := newView(t)          // another round, in which a node still does not respond
		away := later.Observed.Peers["node2"]
		away.UnreachableSince = away.UnreachableSince.Add(3 * time.Millisecond)
		later.Observed.Now, later.Observed.Peers["node2"] = later.Observed.Now.Add(10*time.Second+3*time.Millisecond), away
		r.show(later)
		w := <-done
		if w.Code != http.StatusNoContent || time.Since(began) != maxPoll {
			t.Errorf("without a change: status %d after %v", w.Code, time.Since(began))
		}
		began = time.Now()
		go poll()
		time.Sleep(3 * time.Second)
		next := newView(t)
		next.Fault = "the directory is gone"
		r.show(next)
		w = <-done
		if took := time.Since(began); w.Code != http.StatusOK || took != 3*time.Second || !strings.Contains(w.Body.String(), "the directory is gone") || strings.Contains(w.Body.String(), "<html") {
			t.Errorf("after a change: status %d after %v:\n%s", w.Code, took, w.Body)
		}
		if next := w.Header().Get("X-View"); next == "" || next == tag {
			t.Errorf("the new tag is %q, the old one %q", next, tag)
		}
		r.snapshots.clear.Stop()
	})
}

func TestPageBeforeTheFirstRound(t *testing.T) {
	r := newRig(t, nil, "", "")
	if w := r.get("/"); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "not read its disks") {
		t.Errorf("%d\n%s", w.Code, w.Body)
	}
}

// After a restart of the daemon, the pages that are open keep what they show until the first round.
func TestPollWaitsForTheFirstRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, nil, "", "")
		for _, tag := range []string{starting.tag, "of-an-earlier-process"} {
			if w := r.get("/?poll=" + tag); w.Code != http.StatusNoContent {
				t.Errorf("before the first round: %d\n%s", w.Code, w.Body)
			}
		}
		done := make(chan *httptest.ResponseRecorder, 1)
		go func() { done <- r.get("/?poll=of-an-earlier-process") }()
		time.Sleep(3 * time.Second) // of the bubble
		r.show(newView(t))
		if w := <-done; w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "parrot") {
			t.Errorf("after the first round: %d\n%s", w.Code, w.Body)
		}
		r.snapshots.clear.Stop()
	})
}

const tokens = "peer 0123456789a-peer\nadmin 0123456789a-admin"

func TestSignIn(t *testing.T) {
	r := newRig(t, newView(t), tokens, "")
	w := r.get("/plan?q=parrot")
	if w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), `type="password"`) || strings.Contains(w.Body.String(), "node1") || !strings.Contains(w.Body.String(), `name="next" value="/plan?q=parrot"`) {
		t.Errorf("without a session: %d\n%s", w.Code, w.Body)
	}
	if w := r.get("/plan?poll=x"); w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "<html") {
		t.Errorf("a poll without a session: %d\n%s", w.Code, w.Body)
	}
	post := func(form string, change ...func(*http.Request)) *httptest.ResponseRecorder {
		request := httptest.NewRequest("POST", "http://127.0.0.1:8000/signin", strings.NewReader(form))
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, c := range change {
			c(request)
		}
		w := httptest.NewRecorder()
		r.mux.ServeHTTP(w, request)
		return w
	}
	if w := post("token=wrong-wrong-wrong-wrong&next=/plan"); w.Code != http.StatusUnauthorized || len(w.Result().Cookies()) > 0 || strings.Contains(w.Body.String(), "wrong-wrong") {
		t.Errorf("a wrong token: %d, cookies %v\n%s", w.Code, w.Result().Cookies(), w.Body)
	}
	if w := post("token=0123456789a-peer", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }); w.Code != http.StatusForbidden || len(w.Result().Cookies()) > 0 {
		t.Errorf("a form on another site: %d, cookies %v", w.Code, w.Result().Cookies())
	}
	if w := post("token=" + strings.Repeat("x", maxSignIn)); w.Code != http.StatusBadRequest {
		t.Errorf("a large form: %d", w.Code)
	}
	w = post("token=0123456789a-peer&next=/plan?q=parrot")
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/plan?q=parrot" || len(w.Result().Cookies()) != 1 {
		t.Fatalf("the right token: %d, location %q, cookies %v", w.Code, w.Header().Get("Location"), w.Result().Cookies())
	}
	cookie := w.Result().Cookies()[0]
	withCookie := func(r *http.Request) { r.AddCookie(cookie) }
	w = r.get("/plan", withCookie)
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "role peer") || !strings.Contains(w.Body.String(), "data-session=") {
		t.Errorf("with a session: %d\n%s", w.Code, w.Body)
	}
	// A link on another site leads to the view, by way of a page that requests it again with the cookie.
	w = r.get("/plan?q=parrot", func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
		r.Header.Set("Sec-Fetch-Dest", "document")
	})
	if !strings.Contains(w.Body.String(), `http-equiv="refresh" content="0;url=/plan?q=parrot"`) {
		t.Errorf("a link: %d\n%s", w.Code, w.Body)
	}
}

// Strangers do not make the daemon compress: each view is compressed for readers with a role, as often as they like.
func TestStrangersCostNoCompression(t *testing.T) {
	r := newRig(t, largeView(t, 20, 3), tokens, "")
	packed := func(path string, change ...func(*http.Request)) bool {
		w := r.get(path, append(change, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })...)
		return w.Header().Get("Content-Encoding") == "gzip"
	}
	for _, path := range []string{"/", "/signin", "/assets/page.js", "/?q=" + strings.Repeat("a&", 4000)} {
		if packed(path) {
			t.Errorf("%.20s is compressed", path)
		}
	}
	if !packed("/", func(r *http.Request) { r.Header.Set("Authorization", "Bearer 0123456789a-peer") }) {
		t.Error("a view is not compressed")
	}
}

func TestViewsAreCompressedOnlyForReadersThatAcceptIt(t *testing.T) {
	r := newRig(t, largeView(t, 20, 3), "", "")
	for header, want := range map[string]bool{
		"": false, "gzip": true, "br, GZIP": true, "gzip;q=0.5": true, "gzip; q=1": true, "deflate, gzip;q=1.0, *;q=0.5": true,
		"gzip;q=0": false, "gzip; Q=0.000, br": false, "x-gzip-like": false, "br": false, "gzip;q=x": false,
	} {
		w := r.get("/", func(r *http.Request) { r.Header.Set("Accept-Encoding", header) })
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("Accept-Encoding %q: compressed is %v, want %v", header, got, want)
		}
	}
}

// What is not shown of a long list is counted.
func TestConfigurationCountsWhatItDoesNotShow(t *testing.T) {
	var config strings.Builder
	config.WriteString(testConfig)
	for i := range maxProblems + 4 {
		fmt.Fprintf(&config, "  i%d: {suspend: {reason: not tested}, source: {upload: {}}}\n", i)
	}
	v := newView(t)
	v.Desired.Config = plantest.Load(t, config.String()).Config
	if w := newRig(t, v, "", "").get("/configuration"); !strings.Contains(w.Body.String(), "and 5 more") {
		t.Errorf("got\n%s", w.Body)
	}
}

// The address after the sign-in is always a view of this daemon.
func TestSignInLeadsOnlyToOwnViews(t *testing.T) {
	for _, prefix := range []string{"", "/a/images"} {
		s := newRig(t, newView(t), tokens, prefix).Site
		for text, want := range map[string]string{
			"/": "/", "/plan": "/plan", "/?q=x&page=2": "/?page=2&q=x", "/images/parrot": "/images/parrot", prefix + "/disks": "/disks",
			"": "/", "//evil.example": "/", "///evil.example": "/", "https://evil.example/plan": "/", `/\evil.example`: "/", `\\evil.example`: "/", "/plan/../..//evil.example": "/",
			"/%2f/evil.example": "/", "javascript:alert(1)": "/", "/signout": "/", "/v1/status": "/", "plan": "/", "/images/../../x": "/", "@evil.example": "/", "/plan\r\nSet-Cookie: a=b": "/",
		} {
			got := s.next(text)
			if got != want {
				t.Errorf("prefix %q: %q leads to %q, want %q", prefix, text, got, want)
			}
			if !strings.HasPrefix(got, "/") || strings.HasPrefix(got, "//") || strings.ContainsAny(got, "\\\r\n") {
				t.Errorf("prefix %q: %q leads to %q", prefix, text, got)
			}
		}
	}
}

func TestLinksAreBelowThePrefix(t *testing.T) {
	r := newRig(t, newView(t), "", "/a/images")
	own := regexp.MustCompile(`(?:href|src|action)="(/[^"]*)"`)
	for _, path := range []string{"/", "/images/parrot", "/disks", "/plan", "/configuration"} {
		found := own.FindAllStringSubmatch(r.get(path).Body.String(), -1)
		for _, link := range found {
			if !strings.HasPrefix(link[1], "/a/images/") {
				t.Errorf("%s has the link %s", path, link[1])
			}
		}
		if len(found) < 8 {
			t.Errorf("%s has only %d links", path, len(found))
		}
	}
}

// A large cluster is shown in parts that stay small.
func TestLargeClusterIsShownInParts(t *testing.T) {
	r := newRig(t, largeView(t, 120, 100), "", "")
	html := r.get("/").Body.String()
	for _, want := range []string{"1 to 50 of 120", "1 to 30 of 100", `href="?page=2"`, `href="?disks=2"`} {
		if !strings.Contains(html, want) {
			t.Errorf("the first page has no %q", want)
		}
	}
	html = r.get("/?page=3&disks=4&sort=state").Body.String()
	for _, want := range []string{"101 to 120 of 120", "91 to 100 of 100", `href="?disks=4&amp;page=2&amp;sort=state"`} {
		if !strings.Contains(html, want) {
			t.Errorf("the last page has no %q", want)
		}
	}
	for path, want := range map[string]string{
		"/?q=image&state=unready&page=1&disks=2":            `href="?disks=2&amp;q=image&amp;sort=state&amp;state=unready"`,
		"/?q=image&state=unready&sort=state&page=2&disks=2": `href="?disks=2&amp;q=image&amp;state=unready"`,
	} {
		if html := r.get(path).Body.String(); !strings.Contains(html, want) {
			t.Errorf("%s: the link to the other order is not %s", path, want)
		}
	}
	for _, path := range []string{"/?page=99", "/?page=-1", "/?page=x&disks=0&state=none&sort=x", "/?page=99999999999999999999"} {
		if w := r.get(path); w.Code != http.StatusOK {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

func TestFirstLoadIsSmall(t *testing.T) {
	r := newRig(t, largeView(t, 100, 30), "", "")
	total := 0
	get := func(path string) *httptest.ResponseRecorder {
		w := r.get(path, func(r *http.Request) { r.Header.Set("Accept-Encoding", "gzip") })
		total += w.Body.Len()
		return w
	}
	unpacked, err := gzip.NewReader(get("/").Body)
	if err != nil {
		t.Fatal(err)
	}
	html, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range regexp.MustCompile(`"(/assets/[^"]+)"`).FindAllSubmatch(html, -1) {
		get(string(link[1]))
	}
	if total > 60_000 || total < 3000 {
		t.Errorf("the first load has %d bytes", total)
	}
	t.Logf("the first load has %d bytes", total)
}

// largeView returns a round in a cluster with a disk for each node. Each image has three copies.
func largeView(t testing.TB, images, nodes int) *status.View {
	t.Helper()
	c := plantest.NewConfig(nodes, 1)
	o := plan.Observed{Now: plantest.Now, Disks: map[ident.DiskRef]model.Disk{}, Peers: map[string]model.Peer{}}
	for name := range c.Nodes {
		o.Disks[ident.DiskRef{Node: name, Disk: "disk1"}] = model.Disk{Path: "/disk1", UUID: name, Space: model.Space{Total: 1 << 40, Free: 1 << 39}, Copies: map[ident.ID]model.Copy{}}
		if name != "node1" {
			o.Peers[name] = model.Peer{Queried: true, ConfigDigest: "d", LastResponse: plantest.Now}
		}
	}
	for i := range images {
		image := plantest.NewImage(fmt.Sprintf("image-%05d", i))
		image.Copies = 3
		c.Images[image.ID.Name] = image
		for n := range 3 {
			ref := ident.DiskRef{Node: fmt.Sprintf("node%d", (i*7+n)%nodes+1), Disk: "disk1"}
			o.Disks[ref].Copies[image.ID] = model.Copy{State: []model.State{model.Ready, model.Pending, model.Unknown}[(i+n)%3], Size: 1 << 30, SHA512: image.Checksum, Owned: true, HasCfg: true}
		}
	}
	d := plan.Desired{Node: "node1", Config: c, Digest: "d", Allowed: schema.Everything}
	return &status.View{Desired: d, Observed: o, Plan: plan.NewRound(d, o).Plan(), Loaded: true, Placements: &status.PlacementCache{}}
}

// BenchmarkView renders views of a large cluster: first with a new round, then from the same one.
func BenchmarkView(b *testing.B) {
	v := largeView(b, 1000, 1000)
	for _, path := range []string{"/", "/?sort=state", "/images/image-00001", "/disks", "/plan", "/configuration"} {
		b.Run("round"+path, func(b *testing.B) {
			for b.Loop() {
				r := newRig(b, v, "", "")
				r.view.Placements = &status.PlacementCache{}
				if w := r.get(path); w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
		b.Run("same"+path, func(b *testing.B) {
			r := newRig(b, v, "", "")
			r.get("/")
			for b.Loop() {
				if w := r.get(path); w.Code != http.StatusOK {
					b.Fatal(w.Code)
				}
			}
		})
	}
}

func TestLinesToCommit(t *testing.T) {
	v := newView(t)
	v.Desired.Config.Settings.Web.EditURL = "https://git.example.com/edit/main/{file}"
	r := newRig(t, v, "", "")
	for query, want := range map[string]string{
		"kind=create&name=new&source=download&url=https://example.com/a.raw&copies=all": "images:\n  new:\n    minNumberOfCopies: all\n    source:\n      download:\n        url: https://example.com/a.raw\n",
		"kind=create&name=new&source=upload&url=":                                       "images:\n  new:\n    source:\n      upload: {}\n",
		"kind=drain&place=node1":                                                        "nodes:\n  node1:\n    evictionRequested: true\n",
		"kind=drain&place=node1/disk2":                                                  "nodes:\n  node1:\n    disks:\n      disk2:\n        evictionRequested: true\n",
		"kind=suspend&image=parrot&reason=a:+%23b&until=2026-12-01":                     "images:\n  parrot:\n    suspend:\n      reason: &#39;a: #b&#39;\n      until: &#34;2026-12-01&#34;\n",
		"kind=suspend&image=&reason=maintenance":                                        "settings:\n  suspend:\n    reason: maintenance\n",
		"kind=checksum&image=parrot&checksum=sha256:" + strings.Repeat("a", 64):         "images:\n  parrot:\n    checksum: sha256:" + strings.Repeat("a", 64) + "\n",
	} {
		html := r.get("/lines?" + query).Body.String()
		if !strings.Contains(html, ">"+want+"</pre>") {
			t.Errorf("%s: no lines\n%s\nin\n%s", query, want, html)
		}
		if existing := !strings.Contains(query, "create") && !strings.Contains(query, "image=&"); existing != strings.Contains(html, `href="https://git.example.com/edit/main/config.yaml"`) {
			t.Errorf("%s: wrong link to the file:\n%s", query, html)
		}
	}
	for query, want := range map[string]string{
		"kind=create&name=Bad+Name&url=https://example.com/a.raw":                                       "name &#34;Bad Name&#34;",
		"kind=create&name=new&source=download":                                                          "an address is required",
		"kind=create&name=parrot&url=https://example.com/a.raw":                                         "is declared already",
		"kind=create&name=new&url=ftp://example.com/a.raw":                                              "url",
		"kind=create&name=new&url=https://example.com/a.raw&copies=0.5":                                 "minNumberOfCopies",
		"kind=create&name=new&url=https://example.com/a.raw&checksum=x%0Aimages:+1":                     "checksum",
		"kind=checksum&image=parrot&checksum=abc":                                                       "checksum",
		"kind=suspend&image=&reason=x&until=soon":                                                       "until",
		"kind=suspend&image=parrot&reason=x&until=soon":                                                 "until",
		"kind=checksum&image=parrot&url=ftp://example.com/a&checksum=sha256:" + strings.Repeat("a", 64): "ftp",
	} {
		html := r.get("/lines?" + query).Body.String()
		_, problems, _ := strings.Cut(html, `<div id="result"`)
		if strings.Contains(html, "<pre") || !strings.Contains(problems, want) || !strings.Contains(problems, "alert failed") {
			t.Errorf("%s: no problem with %q\n%s", query, want, problems)
		}
	}
	for _, query := range []string{"", "kind=x", "kind=drain&place=node9", "kind=drain&place=node1/none", "kind=checksum&image=none&checksum=x", "kind=prune&confirm=yes", "kind=create&name=" + strings.Repeat("x", 5000)} {
		if w := r.get("/lines?" + query); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "<pre") {
			t.Errorf("%s: status %d\n%s", query, w.Code, w.Body)
		}
	}
}

// The lines that confirm a prune name all orphans that the limit holds back, and those that are confirmed already.
func TestLinesThatConfirmAPrune(t *testing.T) {
	v := newView(t)
	v.Desired.Config.Settings.PruneConfirmed = []ident.ID{{Name: "gone", UUID: "00000003"}}
	for i, name := range []string{"old", "older"} {
		ref := ident.CopyRef{Disk: ident.DiskRef{Node: "node1", Disk: "disk1"}, ID: ident.ID{Name: name, UUID: fmt.Sprintf("0000000%d", i)}}
		a := plan.NewAction(model.Blocked, ref, model.Reason{Code: plan.CodePruneLimit, Text: "too many"}, 0)
		v.Plan.Actions = append(v.Plan.Actions, a)
	}
	html := newRig(t, v, "", "").get("/lines?kind=prune&confirm=yes").Body.String()
	if want := ">settings:\n  pruneConfirmed:\n  - gone-00000003\n  - old-00000000\n  - older-00000001\n</pre>"; !strings.Contains(html, want) {
		t.Errorf("no %q in\n%s", want, html)
	}
}

// Only admins see actions.
func TestOnlyAdminsSeeActions(t *testing.T) {
	r := newRig(t, newView(t), tokens, "")
	for token, want := range map[string]bool{"0123456789a-peer": false, "0123456789a-admin": true} {
		html := r.get("/images/parrot", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }).Body.String()
		for _, text := range []string{"data-post", "data-cleanup", "data-disk"} {
			if strings.Contains(html, text) != want {
				t.Errorf("%s: the page has %s: %v, want %v", token, text, !want, want)
			}
		}
		if !strings.Contains(html, "Download the image") {
			t.Errorf("%s: no download", token)
		}
	}
}

// A plan without actions does not mean that the disks are as declared.
func TestPlanSaysWhyItIsEmpty(t *testing.T) {
	for _, tt := range []struct {
		name    string
		allowed schema.Allowed
		held    []plan.Suspension
		want    string
	}{
		{"nothing to do", schema.Everything, nil, "the disks match the configuration"},
		{"broken configuration", schema.ObserveOnly, nil, "No action is planned"},
		{"suspended", schema.Everything, []plan.Suspension{{Reason: "maintenance"}}, "everything: maintenance"},
	} {
		v := newView(t)
		v.Desired.Allowed, v.Plan = tt.allowed, plan.Plan{Suspended: tt.held}
		html := newRig(t, v, "", "").get("/plan").Body.String()
		if !strings.Contains(html, tt.want) || tt.want != "the disks match the configuration" && strings.Contains(html, "the disks match the configuration") {
			t.Errorf("%s:\n%s", tt.name, html)
		}
	}
}

// An image whose declaration is invalid has failed, and says why.
func TestInvalidImageSaysWhy(t *testing.T) {
	v := newView(t)
	ref := ident.CopyRef{Disk: ident.DiskRef{Node: "node1"}, ID: ident.ID{Name: "broken"}}
	v.Plan.Actions = append(v.Plan.Actions, plan.NewAction(model.Blocked, ref, model.Reason{Code: plan.CodeInvalidImage, Text: "a.yaml:3:1: has no source"}, 0))
	r := newRig(t, v, "", "")
	for _, path := range []string{"/?q=broken", "/?state=failed", "/images/broken"} {
		html := r.get(path).Body.String()
		for _, want := range []string{`<span class="state failed">invalid</span>`, "a.yaml:3:1: has no source"} {
			if !strings.Contains(html, want) {
				t.Errorf("%s does not show %q:\n%s", path, want, html)
			}
		}
	}
}
