package browser

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// newForeignPage serves a page of another web site, at the same address as a page of the same site and at evil.test.
func newForeignPage(t testing.TB, body string) (sameSite, otherSite string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, "<!doctype html><title>evil</title>"+body)
	}))
	t.Cleanup(server.Close)
	return server.URL, strings.Replace(server.URL, "127.0.0.1", "evil.test", 1)
}

// No other web site can show the page in a frame, so that it cannot make a reader click there.
func TestThePageIsNotShownInFrames(t *testing.T) {
	d := newDaemon(t, oneDisk)
	d.await("/", "No image is declared")
	same, other := newForeignPage(t, `<iframe src="`+d.url+`/" width="800" height="600"></iframe>`)
	for name, address := range map[string]string{"same site": same, "other site": other} {
		tab := newTab(t) // to detach from the frame of another site may close the tab
		tab.open(address)
		for _, text := range frameTexts(tab) {
			if strings.Contains(text, "No image is declared") {
				t.Errorf("%s: the frame shows %s", name, text)
			}
		}
		if m := strings.Join(tab.takeMessages(), "\n"); !strings.Contains(m, d.url) {
			t.Errorf("%s: the browser does not say why: %s", name, m)
		}
	}
}

// frameTexts returns what the frames of a page show. Its own frames can be read by its script, and those of other sites are
// targets of their own.
func frameTexts(t *tab) []string {
	t.Helper()
	all := eval[[]string](t, `[...document.querySelectorAll("iframe")].map((f) => f.contentDocument?.body?.innerText ?? "")`)
	targets, err := chromedp.Targets(t.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, info := range targets {
		if info.Type == "iframe" {
			ctx, cancel := chromedp.NewContext(t.ctx, chromedp.WithTargetID(info.TargetID))
			text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.documentElement.innerText"))
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, text)
		}
	}
	return all
}

// A form or a script of another web site changes nothing, although its requests come from the machine of the reader and with the
// reader's cookie.
func TestOtherSitesCannotAct(t *testing.T) {
	local := newShown(t)
	local.awaitShown()
	_, ready := local.request("GET", "/images/debian?poll=none")
	withTokens := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n", withTokens(t)...)
	withTokens.token = adminToken
	withTokens.await("/images/windows", "0 of 1 ready")
	for name, d := range map[string]*daemon{"local": local, "session": withTokens} {
		tab := newTab(t)
		if d.token != "" {
			signIn(tab, d, adminToken)
		}
		for _, path := range []string{"/v1/images/debian/verify", "/v1/images/fedora/retry", "/v1/images/debian/cleanup?disk=node1/disk1", "/signin", "/signout"} {
			body := fmt.Sprintf(`<form method="post" action="%s%s"><input name="token" value="%s"><input name="next" value="/"><button>win</button></form>`, d.url, path, adminToken)
			same, other := newForeignPage(t, body)
			for site, address := range map[string]string{"same site": same, "other site": other} {
				before := cookies(tab, d.url)
				tab.open(address)
				script := fmt.Sprintf(`fetch(%q, {method: "POST", mode: "no-cors", credentials: "include"}).then((r) => r.type, (e) => "" + e)`, d.url+path)
				if got := eval[string](tab, script); got != "opaque" && !strings.Contains(got, "Failed to fetch") {
					t.Errorf("%s: a script of the %s reads the response of %s: %s", name, site, path, got)
				}
				if status := tab.load(click("button")); status < 400 || status >= 500 {
					t.Errorf("%s: a form of the %s that sends %s: status %d", name, site, path, status)
				}
				if after := cookies(tab, d.url); !slices.Equal(before, after) {
					t.Errorf("%s: a form of the %s that sends %s changes the cookies from %q to %q", name, site, path, before, after)
				}
				tab.takeMessages() // Chromium names the refused requests
			}
		}
	}
	if _, after := local.request("GET", "/images/debian?poll=none"); after != ready {
		t.Errorf("the image has changed from\n%s\nto\n%s", ready, after)
	}
}

// signIn signs in with a token, as a reader does.
func signIn(t *tab, d *daemon, token string) {
	t.Helper()
	if got := t.open(d.url + "/"); got != http.StatusUnauthorized {
		t.Fatalf("before the sign-in: status %d", got)
	}
	if got := t.load(press("#token", token+"\r")); got != http.StatusOK {
		t.Fatalf("after the sign-in: status %d: %s", got, t.text("main"))
	}
}

// cookies returns the cookies of a site with their attributes, sorted.
func cookies(t *tab, site string) []string {
	t.Helper()
	result, err := chromedp.Call(t.ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{site}})
	if err != nil {
		t.Fatal(err)
	}
	all := []string{}
	for _, c := range result.Cookies {
		all = append(all, fmt.Sprintf("%s=%s httpOnly=%v sameSite=%s path=%s", c.Name, c.Value, c.HTTPOnly, c.SameSite, c.Path))
	}
	slices.Sort(all)
	return all
}

func forgetCookies(t *tab) {
	t.Helper()
	if _, err := chromedp.Call(t.ctx, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
}

// A script cannot read the cookie of the session, and no page of another site makes the browser send it.
func TestTheSessionStaysInTheBrowser(t *testing.T) {
	d := newDaemon(t, oneDisk, withTokens(t)...)
	tab := newTab(t)
	signIn(tab, d, peerToken)
	if got := eval[string](tab, "document.cookie"); got != "" {
		t.Errorf("a script reads the cookie: %s", got)
	}
	all := cookies(tab, d.url)
	if len(all) != 1 || !strings.Contains(all[0], "httpOnly=true sameSite=Strict path=/") {
		t.Errorf("the cookies are %q", all)
	}
	if got := eval[string](tab, "JSON.stringify([{...localStorage}, {...sessionStorage}]) + document.documentElement.outerHTML"); strings.Contains(got, peerToken) {
		t.Error("the page keeps the token")
	}
	_, other := newForeignPage(t, `<img src="`+d.url+`/v1/status"><a href="`+d.url+`/plan">plan</a>`)
	tab.open(other)
	tab.takeMessages() // the image cannot be read
	if got := tab.load(click("a")); got != http.StatusOK && got != http.StatusUnauthorized {
		t.Errorf("a link of another site: status %d", got)
	}
	tab.await(`document.querySelector("main h1")?.innerText.includes("Plan")`) // the page requests itself again, with the cookie
	tab.takeMessages()
	tab.run(click("#signout"))
	tab.await(`location.pathname === "/signin"`)
	if got := tab.open(d.url + "/"); got != http.StatusUnauthorized {
		t.Errorf("after the sign-out: status %d", got)
	}
}

// Whatever address a reader is led to, the sign-in ends at the daemon.
func TestSignInLeadsNowhereElse(t *testing.T) {
	d := newDaemon(t, oneDisk, append(withTokens(t), "--web-prefix", "/images")...)
	tab := newTab(t)
	for _, path := range []string{
		"//evil.test/", "/images//evil.test/", "/images/images//evil.test", "/%2f%2fevil.test/", "/images/%2f%2fevil.test", "/images/..%2f..%2fevil.test",
		"/\\evil.test", "/images/\\evil.test", "/images/https:evil.test", "/images/?next=//evil.test", "/images/plan?q=%0d%0aLocation:%20//evil.test",
		"/images/images/images/plan", "/images/images/..//evil.test", "/imagesevil.test/", "/images@evil.test/", "/images/plan#//evil.test",
	} {
		forgetCookies(tab)
		tab.open(d.url + path)
		if eval[bool](tab, `!!document.querySelector("#token")`) {
			tab.load(press("#token", peerToken+"\r"))
		}
		if got := eval[string](tab, "location.origin"); got != d.url {
			t.Errorf("%s leads to %s", path, got)
		}
		tab.takeMessages() // some of the paths have no page
		tab.checkOwnRequests(d.url)
	}
	for _, next := range []string{"//evil.test", "https://evil.test", "/\\evil.test", "/images//evil.test", "javascript:alert(1)", "/plan\r\nX-Evil: 1", "", "/images/..//evil.test", "\t//evil.test"} {
		form := url.Values{"token": {peerToken}, "next": {next}}
		r, err := http.NewRequestWithContext(t.Context(), "POST", d.url+"/signin", strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		response, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		to, err := r.URL.Parse(response.Header.Get("Location"))
		if err != nil || response.StatusCode != http.StatusSeeOther || to.Host != r.URL.Host || response.Header.Get("X-Evil") != "" {
			t.Errorf("next %q: status %d, to %v, %v", next, response.StatusCode, to, err)
		}
		if !strings.HasPrefix(response.Header.Get("Location"), "/images/") || strings.HasPrefix(response.Header.Get("Location"), "/images//") {
			t.Errorf("next %q: Location %q", next, response.Header.Get("Location"))
		}
	}
}

// With a prefix, each path means the same with and without it, and no spelling of a path reaches something else.
func TestPrefixTricksReachNothing(t *testing.T) {
	d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n", "--web-prefix", "/images")
	d.await("/images/windows", "0 of 1 ready")
	for path, want := range map[string]int{
		"/": 200, "/images/": 200, "/plan": 200, "/images/plan": 200, "/images/images/windows": 200, "/images/windows": 200,
		"/images/v1/status": 200, "/images/healthz": 200,
		"/images/images/images/windows": 404, "/images/images/plan": 404, "/images/..%2fplan": 404, "/images%2fplan": 404, "/images/%2e%2e%2fplan": 404, "/imagesplan": 404,
		"/images/assets/..%2f..%2fsite.go": 404, "/images/assets/%2e%2e/templates/layout.html": 404, "/assets/../templates/layout.html": 404,
	} {
		response, content := d.request("GET", path)
		if response.StatusCode >= 300 && response.StatusCode < 400 { // a path that is not clean leads to the clean one
			to, err := response.Request.URL.Parse(response.Header.Get("Location"))
			if err != nil || to.Host != d.address {
				t.Errorf("%s leads to %v: %v", path, to, err)
				continue
			}
			response, content = d.request("GET", to.EscapedPath())
		}
		if response.StatusCode != want {
			t.Errorf("%s: status %d, want %d: %.200s", path, response.StatusCode, want, content)
		}
		if strings.Contains(content, "{{") {
			t.Errorf("%s is a file of the program", path)
		}
	}
	tab := newTab(t)
	tab.open(d.url + "/images/")
	tab.load(click(`#matrix a`))
	if got := eval[string](tab, "location.pathname"); got != "/images/images/windows" {
		t.Errorf("the link of an image leads to %s", got)
	}
	tab.load(click(`nav a[href$="/configuration"]`))
	if got := eval[string](tab, "location.pathname"); got != "/images/configuration" {
		t.Errorf("the link of the configuration leads to %s", got)
	}
	for _, r := range tab.takeRequests() {
		if !strings.HasPrefix(r, d.url+"/images/") {
			t.Errorf("the page sent a request beside the prefix: %s", r)
		}
	}
}

// A page of a host name that leads to this machine, as after DNS rebinding, reads and changes nothing.
func TestReboundNamesAreRefused(t *testing.T) {
	tab := newTab(t)
	for name, flags := range map[string][]string{"local": nil, "tokens": withTokens(t)} {
		d := newDaemon(t, oneDisk+"images: {parrot: {title: secret, source: {upload: {}}}}\n", flags...)
		status := tab.open(strings.Replace(d.url, "127.0.0.1", "rebound.test", 1) + "/")
		if status != http.StatusForbidden && status != http.StatusUnauthorized || strings.Contains(eval[string](tab, "document.documentElement.outerHTML"), "secret") {
			t.Errorf("%s: status %d:\n%s", name, status, tab.text("body"))
		}
		for _, path := range []string{"/v1/status", "/v1/state", "/metrics", "/?poll=x", "/images/parrot"} {
			got := eval[string](tab, fmt.Sprintf(`fetch(%q).then((r) => r.text().then((t) => r.status + t))`, path))
			if !strings.HasPrefix(got, "40") || strings.Contains(got, "secret") {
				t.Errorf("%s: a page of another name reads %s: %s", name, path, got)
			}
		}
		got := eval[string](tab, `fetch("/v1/images/parrot/verify", {method: "POST"}).then((r) => "" + r.status)`)
		if got != "401" && got != "403" {
			t.Errorf("%s: a page of another name verifies: %s", name, got)
		}
		tab.takeMessages() // the refused requests
	}
}

// evil is text that a script would be in some place of a page.
const evil = `"><script>alert(1)</script><img src=x onerror=alert(2)>'-alert(3)-'</title></textarea>{{.}}javascript:alert(4)`

// Texts of the configuration, of files on a disk and of a peer stay texts.
func TestTextsFromOutsideRunNothing(t *testing.T) {
	lying := newLyingPeer(t)
	quoted, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, strings.NewReplacer("EVIL", strings.ReplaceAll(string(quoted), "DIR", ""), "PEER", lying).Replace(`
settings: {allowLoopbackSources: true, suspend: {reason: EVIL, by: "<script>alert(11)</script>"}}
nodes:
  node1: {address: "http://127.0.0.1:8", disks: {disk1: {path: DIR/disk1}}}
  node2: {address: "PEER", disks: {disk1: {path: "/mnt/<script>alert(5)</script>"}}}
images:
  debian: {title: EVIL, uuid: "00000002", minNumberOfCopies: 2, suspend: {reason: EVIL, by: "<script>alert(11)</script>"}, source: {download: {url: "http://127.0.0.1:9/%3Cscript%3Ealert(6)%3C/script%3E"}}}
`))
	file := ident.ID{Name: "debian", UUID: "00000009"}
	if err := writeFiles(d.dir, "disk1/backing-images/<img src=x onerror=alert(7)>/backing", "disk1/backing-images/"+file.String()+"/<script>alert(8)<!script>"); err != nil {
		t.Fatal(err)
	}
	d.commit("<script>alert(9)<!script>.yaml", "images: {\"<script>alert(10)</script>\": {source: {upload: {}}}}\n")
	d.await("/configuration", "alert(10)")
	d.await("/images/debian", "node2/disk1")
	d.await("/disks", "alert(7)")
	tab := newTab(t)
	for _, path := range []string{"/", "/images/debian", "/disks", "/plan", "/configuration", "/?q=" + url.QueryEscape(evil), "/images/" + url.PathEscape(evil)} {
		tab.open(d.url + path)
		if got := eval[string](tab, `[...document.querySelectorAll("script, img, iframe, [onerror]")].map((e) => e.outerHTML).join()`); strings.Contains(got, "alert") {
			t.Errorf("%s has an element from outside: %s", path, got)
		}
		if got := eval[string](tab, "document.documentElement.outerHTML"); !strings.Contains(got, "alert(") {
			t.Errorf("%s does not show the text, so that this test shows nothing: %s", path, tab.text("main"))
		}
	}
	tab.checkOwnRequests(d.url)
}

// newLyingPeer serves the state of a node in which every text is evil.
func newLyingPeer(t testing.TB) string {
	t.Helper()
	copied := model.Copy{
		ID: ident.ID{Name: "debian", UUID: "00000002"}, State: model.Failed, Message: evil, Signature: model.Signature{Scheme: evil, Signer: evil},
		UsedBy: evil, Need: &model.Need{By: evil}, Job: evil, Rejection: evil, Reason: model.Reason{Code: evil, Text: evil},
		Failure: &model.Failure{Op: evil, Message: evil, Attempts: 3},
	}
	state, err := json.Marshal(model.Node{Version: model.Version, Node: "node2", ConfigDigest: evil, Disks: map[string]model.Disk{"disk1": {
		UUID: "00000000-0000-0000-0000-000000000001", UsageUnknown: evil, Space: model.Space{Total: 1 << 40, Free: 1 << 39}, Copies: model.NewCopies(copied),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/state" {
			http.NotFound(w, r)
			return
		}
		if r.Header.Get("If-None-Match") != "" { // it waits for a change
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("ETag", `"1"`)
		_, _ = w.Write(state)
	}))
	t.Cleanup(server.CloseClientConnections)
	t.Cleanup(server.Close)
	return server.URL
}
