package browser

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// withCertificates is the Chromium of a reader who trusts an authority and has two certificates of it.
var withCertificates process

// newTrustingTab opens a tab of this Chromium. To admin.test and peer.test, it sends the certificate with that name. To all other
// servers it sends none: such a server must not accept certificates of the authority, otherwise Chromium asks the reader for one.
func newTrustingTab(t testing.TB) *tab {
	t.Helper()
	need.Programs(t, "chromium", "certutil", "pk12util", "openssl")
	home, err := newReaderHome()
	if err != nil {
		t.Fatal(err)
	}
	ctx := withCertificates.start(t, chromedp.Env("HOME="+home), chromedp.UserDataDir(filepath.Join(home, "profile")))
	return openTab(t, ctx, chromedp.WithNewBrowserContext())
}

// authority signs the certificates of servers and readers.
var authority = sync.OnceValues(func() (*certtest.Authority, error) { return certtest.NewAuthority("authority of the readers") })

// newReaderHome returns the home of a reader. In it are the database with the certificates, and a profile that says which of them
// belongs to which server: only a policy, or this setting, does that without a dialog.
var newReaderHome = sync.OnceValues(func() (home string, err error) {
	if home, err = os.MkdirTemp("", "browser"); err != nil {
		return "", err
	}
	withCertificates.end = append(withCertificates.end, func() { _ = os.RemoveAll(home) })
	ca, err := authority()
	if err != nil {
		return "", err
	}
	database := filepath.Join(home, ".pki", "nssdb")
	steps := [][]string{
		{"certutil", "-N", "-d", "sql:" + database, "--empty-password"},
		{"certutil", "-A", "-d", "sql:" + database, "-n", "authority", "-t", "C,,", "-i", filepath.Join(home, "ca.crt")},
	}
	content := map[string][]byte{"ca.crt": ca.PEM()}
	choices := map[string]any{}
	for name, change := range map[string]func(*x509.Certificate){"admin": certtest.AsAdmin, "peer": nil} {
		c, err := ca.Issue(name, change)
		if err != nil {
			return "", err
		}
		content[name+".pem"] = append(c.Cert, c.Key...)
		pem, bundle := filepath.Join(home, name+".pem"), filepath.Join(home, name+".p12")
		steps = append(steps,
			[]string{"openssl", "pkcs12", "-export", "-in", pem, "-out", bundle, "-passout", "pass:x", "-name", name},
			[]string{"pk12util", "-i", bundle, "-d", "sql:" + database, "-W", "x"})
		filter := map[string]any{"SUBJECT": map[string]string{"CN": name}}
		choices["https://"+name+".test,*"] = map[string]any{"setting": map[string]any{"filters": []any{filter}}}
	}
	exceptions := map[string]any{"auto_select_certificate": choices}
	content["profile/Default/Preferences"], err = json.Marshal(map[string]any{"profile": map[string]any{"content_settings": map[string]any{"exceptions": exceptions}}})
	if err != nil {
		return "", err
	}
	for _, dir := range []string{database, filepath.Join(home, "profile", "Default")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", err
		}
	}
	for name, data := range content {
		if err := os.WriteFile(filepath.Join(home, name), data, 0o600); err != nil {
			return "", err
		}
	}
	for _, step := range steps {
		if out, err := exec.Command(step[0], step[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w\n%s", strings.Join(step, " "), err, out)
		}
	}
	return home, nil
})

// issueServer writes the certificate of a server for names, with its key, and returns their files.
func issueServer(t testing.TB, names ...string) (cert, key string) {
	t.Helper()
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	c, err := ca.Issue("server", func(c *x509.Certificate) { c.DNSNames = names })
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files.Put(t, string(c.Cert), dir, "tls.crt")
	files.Put(t, string(c.Key), dir, "tls.key")
	return filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
}

// newSecureDaemon starts a daemon with TLS. It gives roles to the certificates of an authority.
func newSecureDaemon(t testing.TB, callers *certtest.Authority, images string, flags ...string) *daemon {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	files.Put(t, string(callers.PEM()), ca)
	cert, key := issueServer(t, "admin.test", "peer.test", "images.test")
	d := newDaemon(t, images, append(flags, "--tls-cert", cert, "--tls-key", key, "--tls-ca", ca)...)
	d.url, d.trust = "https://"+d.address, newTrust(t)
	return d
}

// newTrust returns the TLS configuration of a program that trusts the authority and has no certificate.
func newTrust(t testing.TB) *tls.Config {
	t.Helper()
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.PEM())
	return &tls.Config{RootCAs: roots}
}

// at returns the address of a path of the daemon under another host name.
func (d *daemon) at(name, path string) string {
	return strings.Replace(d.url, "127.0.0.1", name, 1) + path
}

// A reader with a client certificate needs no token: an admin can act, and a reader with the role peer cannot.
func TestRoleOfAClientCertificate(t *testing.T) {
	ca, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	d := newSecureDaemon(t, ca, oneDisk+fmt.Sprintf("images: {debian: {source: {download: {url: \"%s/debian.raw\"}}}, windows: {source: {upload: {}}}}\n", newUpstream(t)), withTokens(t)...)
	d.token = peerToken
	d.await("/images/debian", "1 of 1 ready")
	tab := newTrustingTab(t)
	for role, wantActions := range map[string]bool{"admin": true, "peer": false} {
		for _, path := range []string{"/", "/images/debian", "/images/windows"} {
			if got := tab.open(d.at(role+".test", path)); got != http.StatusOK {
				t.Fatalf("%s: %s: status %d: %s", role, path, got, tab.text("main"))
			}
			if got := tab.text(".who"); !strings.Contains(got, "role "+role) {
				t.Errorf("%s: %s says %q", role, path, got)
			}
			if got := eval[int](tab, `document.querySelectorAll("#token, #signout").length`); got > 0 {
				t.Errorf("%s: %s has a sign-in or a sign-out", role, path)
			}
			if path == "/" {
				continue
			}
			if got := eval[int](tab, `document.querySelectorAll("main button, main [data-upload]").length`); got > 0 != wantActions {
				t.Errorf("%s: %s has %d actions", role, path, got)
			}
		}
		want := map[bool]int{true: http.StatusAccepted, false: http.StatusForbidden}[wantActions]
		if got := eval[int](tab, `fetch("/v1/images/debian/verify", {method: "POST"}).then((r) => r.status)`); got != want {
			t.Errorf("%s: a verification has the status %d, want %d", role, got, want)
		}
		if got := cookies(tab, d.at(role+".test", "/")); len(got) > 0 {
			t.Errorf("%s: the cookies are %q", role, got)
		}
	}
	tab.open(d.at("admin.test", "/images/debian"))
	tab.run(click("button[data-post$='/verify']"))
	tab.awaitText("#live", "Requested")
	for _, m := range tab.takeMessages() {
		if !strings.Contains(m, "/v1/images/debian/verify") || !strings.Contains(m, "status of 403") {
			t.Errorf("the page caused: %s", m)
		}
	}
}

// Over TLS, the cookie of a session is sent to this host only, over TLS only, by pages of this host only, and no script reads it.
func TestSessionOverTLS(t *testing.T) {
	others, err := certtest.NewAuthority("authority of the nodes")
	if err != nil {
		t.Fatal(err)
	}
	d := newSecureDaemon(t, others, oneDisk+"images: {windows: {source: {upload: {}}}}\n", append(withTokens(t), "--web-prefix", "/backing-images")...)
	d.token = adminToken
	d.await("/images/windows", "0 of 1 ready")
	d.url = d.at("images.test", "/backing-images")
	tab := newTrustingTab(t)
	signIn(tab, d, adminToken)
	checkSecureCookie(tab, d.url)
	d.commit("debian.yaml", "images: {debian: {source: {upload: {}}}}\n")
	tab.awaitText("#matrix", "debian")
	signOut(tab, d)
}

// checkSecureCookie fails the test if the only cookie of a site is not that of a session over TLS.
func checkSecureCookie(t *tab, site string) {
	t.Helper()
	result, err := chromedp.Call(t.ctx, network.GetCookies, network.GetCookiesParams{URLs: []string{site}})
	if err != nil {
		t.Fatal(err)
	}
	if len(result.Cookies) != 1 {
		t.Fatalf("the cookies are %+v", result.Cookies)
	}
	// A browser accepts the prefix __Host- only with Secure, without a domain, and with the path /, whatever the prefix of the page.
	c := result.Cookies[0]
	if !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HTTPOnly || c.SameSite != network.CookieSameSiteStrict || c.Path != "/" || strings.HasPrefix(c.Domain, ".") {
		t.Errorf("the cookie is %+v", c)
	}
	if got := eval[string](t, "document.cookie"); got != "" {
		t.Errorf("a script reads the cookie %s", got)
	}
}

// signOut signs out, as a reader does.
func signOut(t *tab, d *daemon) {
	t.Helper()
	t.run(click("#signout"))
	t.await(`document.querySelector("#token")`)
	if got := cookies(t, d.url); len(got) > 0 {
		t.Errorf("after the sign-out, the cookies are %q", got)
	}
	if got := t.open(d.url + "/"); got != http.StatusUnauthorized {
		t.Errorf("after the sign-out: status %d", got)
	}
}
