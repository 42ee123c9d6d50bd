package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A view shows a change without a load, and keeps what the reader has selected, opened and focused.
func TestViewsStayCurrent(t *testing.T) {
	const nodes = "settings: {allowLoopbackSources: true}\nnodes: {node1: {disks: {disk1: {path: DIR/disk1}, disk2: {path: DIR/disk2}}}}\n"
	d := newDaemon(t, nodes)
	source := `source: {download: {url: "` + newUpstream(t) + `/debian.raw"}}`
	if err := writeFiles(d.dir, "disk1/backing-images/of-another-program/file"); err != nil {
		t.Fatal(err)
	}
	d.await("/disks", "of-another-program")
	tab := newTab(t)

	tab.open(d.url + "/")
	tab.run(evaluate("loaded = true"))
	d.commit("debian.yaml", "images: {debian: {uuid: \"00000002\", "+source+"}}\n")
	tab.awaitText("#matrix tbody tr.ready", "1 of 1")
	tab.tabTo(`e.matches("#matrix a")`)
	d.commit("ubuntu.yaml", "images: {alpine: {source: {upload: {}}}}\n")
	tab.awaitText("#matrix tbody", "alpine")
	if got := eval[string](tab, "document.activeElement.textContent"); got != "debian" {
		t.Errorf("the focus has moved from the link of debian to %q", got)
	}

	tab.open(d.url + "/images/debian")
	tab.run(click("#c-00000002-" + eval[string](tab, `document.querySelector("input[data-disk]").dataset.disk.split("/")[1]`)))
	d.commit("debian.yaml", "images: {debian: {uuid: \"00000002\", minNumberOfCopies: 2, "+source+"}}\n")
	tab.awaitText("#facts", "2 of 2 ready")
	if got := eval[string](tab, `[...document.querySelectorAll("input:checked")].map((e) => e.id).join() + " " + document.activeElement.type`); !strings.HasPrefix(got, "c-00000002-disk") || !strings.HasSuffix(got, " checkbox") {
		t.Errorf("after the change, these are selected and focused: %q", got)
	}

	tab.open(d.url + "/disks")
	tab.run(click("summary"))
	if err := writeFiles(d.dir, "disk2/backing-images/of-a-third-program/file"); err != nil {
		t.Fatal(err)
	}
	tab.await(`document.querySelectorAll("details").length === 2`)
	if got := eval[string](tab, `document.querySelector("details[open]").innerText + " " + document.activeElement.tagName`); !strings.Contains(got, "of-another-program") || !strings.HasSuffix(got, "SUMMARY") {
		t.Errorf("after the change, this is open and focused: %q", got)
	}
}

// The view of an image appears when the image is declared, and ends with it.
func TestViewOfAnImageThatComesAndGoes(t *testing.T) {
	d := newDaemon(t, oneDisk)
	d.await("/", "No image is declared")
	tab := newTab(t)
	if status := tab.open(d.url + "/images/windows"); status != http.StatusNotFound {
		t.Errorf("an unknown image has the status %d", status)
	}
	d.commit("image.yaml", "images: {windows: {source: {upload: {}}}}\n")
	tab.awaitText("#facts", "0 of 1 ready")
	d.commit("image.yaml", "images: {}\n")
	tab.awaitText("main", "This node knows no image of this name.")
	tab.takeMessages() // the status of the view
}

// The page says that the daemon does not respond, and when it responds again, without a load.
func TestThePageSurvivesARestart(t *testing.T) {
	d := newDaemon(t, oneDisk)
	d.await("/", "No image is declared")
	tab := newTab(t)
	tab.open(d.url + "/")
	tab.run(evaluate("loaded = true"))
	d.stop()
	tab.awaitText("#live", "does not respond")
	d.commit("image.yaml", "images: {windows: {source: {upload: {}}}}\n")
	d.start()
	tab.awaitText("#live", "responds again")
	tab.awaitText("#matrix", "windows")
	if !eval[bool](tab, "loaded") {
		t.Error("the page was loaded again")
	}
	tab.takeMessages() // each request that failed
}

// shortPolls is a proxy before a daemon. It ends each poll after a moment without a change, as the daemon does after 40 s.
type shortPolls struct {
	url   string
	ended chan struct{} // receives a value for each poll that ended so
	begun atomic.Int64
}

func newShortPolls(t testing.TB, d *daemon) *shortPolls {
	t.Helper()
	to, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	p := &shortPolls{ended: make(chan struct{}, 1000)}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, _ error) {
			w.WriteHeader(http.StatusNoContent)
			if r.Context().Err() == context.DeadlineExceeded {
				p.ended <- struct{}{}
			}
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("poll") {
			p.begun.Add(1)
			ctx, cancel := context.WithTimeout(r.Context(), 100*time.Millisecond)
			defer cancel()
			r = r.WithContext(ctx)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	p.url = server.URL
	return p
}

// An idle page sends one request at a time, its poll, and nothing else. A hidden one sends nothing, and shows the changes when it
// is visible again.
func TestIdleAndHiddenPages(t *testing.T) {
	d := newDaemon(t, oneDisk)
	d.await("/", "No image is declared")
	p := newShortPolls(t, d)
	tab := newTab(t)
	tab.open(p.url + "/")
	<-p.ended
	tab.takeRequests()
	for range 5 {
		<-p.ended
	}
	requests := slices.DeleteFunc(tab.takeRequests(), func(r string) bool { return strings.Contains(r, "/assets/mark.svg") }) // the icon, after the load
	for _, r := range requests {
		if !strings.HasPrefix(r, p.url+"/?poll=") || r != requests[0] {
			t.Errorf("an idle page sent the request %s", r)
		}
	}
	if len(requests) < 4 || len(requests) > 7 {
		t.Errorf("an idle page sent %d requests during 5 polls", len(requests))
	}

	uncover := tab.cover()
	eval[bool](tab, `new Promise((done) => document.hidden ? done(true) : document.addEventListener("visibilitychange", () => done(true)))`)
	before := p.begun.Load()
	d.commit("image.yaml", "images: {windows: {source: {upload: {}}}}\n")
	d.await("/images/windows", "0 of 1 ready")
	if after := p.begun.Load(); after != before {
		t.Errorf("a hidden page sent %d requests", after-before)
	}
	uncover()
	tab.awaitText("#matrix", "windows")
}
