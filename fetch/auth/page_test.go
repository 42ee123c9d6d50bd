package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// pageRig is a daemon in one mode, and the request of a caller that has a role in this mode.
type pageRig struct {
	authorizer *Authorizer
	request    func() *http.Request
}

func newPageRig(a *Authorizer, from string, state *tls.ConnectionState) pageRig {
	return pageRig{a, func() *http.Request {
		r := httptest.NewRequest("GET", "http://x/v1/status", nil)
		r.RemoteAddr, r.TLS = from, state
		return r
	}}
}

// pageRigs returns a daemon in each mode in which the place or the certificate of a caller counts.
func pageRigs(t *testing.T) map[string]pageRig {
	f := newCertFolder(t)
	f.issue(t, "server", func(c *x509.Certificate) { c.DNSNames = []string{"localhost", "images.example", "*.nodes.example"} })
	c := f.load(t, "server")
	s, err := handshake(t, c.identity.current().server, f.identity(t, "admin").client)
	if err != nil {
		t.Fatal(err)
	}
	const here, there = "127.0.0.1:5", "10.1.2.3:5"
	return map[string]pageRig{
		"loopback": newPageRig(newAuthorizer(t, Credentials{}, "127.0.0.7:8000", false), here, nil),
		"insecure": newPageRig(newAuthorizer(t, Credentials{}, ":8000", true), there, nil),
		"TLS":      newPageRig(newAuthorizer(t, c, "Listen.Example:8000", false), there, &s),
	}
}

// isNode1 declares a node with a name and an address.
func isNode1(host string) bool { return host == "node1" || host == "node1.example" }

func TestOnlyOwnHostsAreServed(t *testing.T) {
	type modes struct{ loopback, insecure, tls bool }
	var none, all, remote = modes{}, modes{true, true, true}, modes{false, true, true}
	rigs := pageRigs(t)
	for host, want := range map[string]modes{
		"localhost": all, "localhost:8000": all, "LOCALHOST": all, "127.0.0.1": all, "127.0.0.1:8000": all, "127.0.0.7:8000": all, "[::1]:8000": all, "[::1]": all,
		"10.0.0.1:8000": remote, "[2001:db8::1]:8000": remote, "[2001:db8::1]": remote, // no name, so it is not rebound
		"0.0.0.0:8000": remote, "[::]:8000": remote,
		"node1:8000": remote, "NODE1.example": remote, "node1.example:8000": remote,
		"listen.example:8000": {tls: true}, "images.example": {tls: true}, "a.nodes.example:8000": {tls: true}, "a.b.nodes.example": none,
		"evil.example": none, "evil.example:8000": none, "127.0.0.1.evil.example": none, "localhost.evil.example:8000": none, "evil.example:127.0.0.1": none,
		"2130706433": none, "0x7f000001": none, "127.1": none, "0177.0.0.1": none, "user@localhost": none, "localhost@evil.example": none,
		"localhost.": {tls: true}, "node1.": none, "node2": none, "": none, ":8000": none, "[": none, "[]": none, "localhost localhost": none,
	} {
		for name, wanted := range map[string]bool{"loopback": want.loopback, "insecure": want.insecure, "TLS": want.tls} {
			r := rigs[name].request()
			r.Host = host
			role, err := rigs[name].authorizer.Authorize(r, isNode1)
			if wantedRole := map[bool]Role{true: RoleAdmin, false: RoleNone}[wanted]; role != wantedRole {
				t.Errorf("%s: Host %q has role %v (error %v), want %v", name, host, role, err, wantedRole)
			}
			if denied, ok := errors.AsType[*httperror.Error](err); !wanted && (!ok || denied.Status != http.StatusForbidden) {
				t.Errorf("%s: Host %q: error %v", name, host, err)
			}
		}
	}
}

func TestRequestsOfForeignPagesAreNotServed(t *testing.T) {
	for name, rig := range pageRigs(t) {
		for _, host := range []string{"localhost:8000", "127.0.0.1:8000"} {
			own, other := "http://"+host, "https://"+host
			if rig.request().TLS != nil {
				own, other = other, own
			}
			for _, tt := range []struct {
				header http.Header
				served bool
			}{
				{http.Header{}, true},
				{http.Header{"Origin": {""}}, true},
				{http.Header{"Origin": {"null"}}, false},
				{http.Header{"Origin": {own}}, true},
				{http.Header{"Origin": {own, "https://evil.example"}}, false},
				{http.Header{"Origin": {own + "0"}}, false}, // another port
				{http.Header{"Origin": {own + ".evil.example"}}, false},
				{http.Header{"Origin": {other}}, false}, // the other scheme
				{http.Header{"Origin": {"https://evil.example"}}, false},
				{http.Header{"Origin": {"", "https://evil.example"}}, false},
				{http.Header{"Sec-Fetch-Site": {"none"}}, true}, // a person opened the address
				{http.Header{"Sec-Fetch-Site": {"same-origin"}}, true},
				{http.Header{"Sec-Fetch-Site": {"same-site"}}, false},
				{http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"no-cors"}}, false}, // an image in a page
				{http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}}, false},
				{http.Header{"Sec-Fetch-Site": {"none", "cross-site"}}, false},
				{http.Header{"Sec-Fetch-Site": {"unknown"}}, false},
				{http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {other}}, true}, // a proxy has the other scheme
				{http.Header{"Sec-Fetch-Site": {"cross-site"}, "Origin": {own}}, false},
				{http.Header{"Sec-Fetch-Site": {"same-origin", "cross-site"}, "Origin": {own}}, false},
				{http.Header{"Sec-Fetch-Site": {"none"}, "Origin": {other}}, false},
			} {
				r := rig.request()
				r.Host, r.Header = host, tt.header
				if role, err := rig.authorizer.Authorize(r, isNode1); (role == RoleAdmin) != tt.served {
					t.Errorf("%s: %s with %v has role %v, error %v", name, host, tt.header, role, err)
				}
			}
		}
	}
}

// A page cannot know a token. A valid one therefore counts from everywhere.
func TestTokenCountsForEveryHostAndPage(t *testing.T) {
	a := newAuthorizer(t, loadTokenText(t, "peer 0123456789a-peer\nadmin 0123456789a-admin"), ":8000", false)
	for _, header := range []http.Header{{}, {"Origin": {"https://ui.example"}}, {"Sec-Fetch-Site": {"cross-site"}}} {
		r := httptest.NewRequest("GET", "http://x/v1/status", nil)
		r.Host, r.Header = "images.svc", header
		if role, _ := a.Authorize(r, noHost); role != RoleNone {
			t.Errorf("without a token and with %v the role is %v", header, role)
		}
		r.Header.Set("Authorization", "Bearer 0123456789a-peer")
		if role, err := a.Authorize(r, noHost); role != RolePeer {
			t.Errorf("with a token and %v the role is %v, error %v", header, role, err)
		}
	}
}

// A person may follow a link on another web site to a page, but nothing else.
func TestPagesCanBeLinked(t *testing.T) {
	link := http.Header{"Sec-Fetch-Site": {"cross-site"}, "Sec-Fetch-Mode": {"navigate"}, "Sec-Fetch-Dest": {"document"}}
	for name, rig := range pageRigs(t) {
		for _, tt := range []struct {
			what         string
			change       func(*http.Request)
			served       bool
			servedToPage bool
		}{
			{"a link", func(*http.Request) {}, false, true},
			{"a form", func(r *http.Request) { r.Method = "POST" }, false, false},
			{"a frame", func(r *http.Request) { r.Header.Set("Sec-Fetch-Dest", "iframe") }, false, false},
			{"a script", func(r *http.Request) { r.Header.Set("Sec-Fetch-Mode", "cors") }, false, false},
			{"a page with an origin", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, false, false},
			{"a rebound name", func(r *http.Request) { r.Host = "evil.example" }, false, false},
		} {
			r := rig.request()
			r.Host, r.Header = "localhost:8000", link.Clone()
			tt.change(r)
			if role, err := rig.authorizer.Authorize(r, isNode1); (role == RoleAdmin) != tt.served {
				t.Errorf("%s: %s has role %v, error %v", name, tt.what, role, err)
			}
			if role, err := rig.authorizer.AuthorizePage(r, isNode1); (role == RoleAdmin) != tt.servedToPage {
				t.Errorf("%s: %s to a page has role %v, error %v", name, tt.what, role, err)
			}
		}
	}
}
