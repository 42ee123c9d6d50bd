package fetch

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
)

// writeCredentials writes the files of a credentials folder.
func (r *fixture) writeCredentials(name string, files map[string]string) {
	r.t.Helper()
	dir := filepath.Join(r.client.SecretsDir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	for file, content := range files {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
}

func TestCredentialsAreSent(t *testing.T) {
	fault := func(k fetchtest.Kind) []fetchtest.Fault { return []fetchtest.Fault{{Kind: k}} }
	tests := []struct {
		name   string
		faults []fetchtest.Fault
		files  map[string]string
		header string // header that the server must receive
		value  string
	}{
		{"basic", fault(fetchtest.Basic), map[string]string{"username": "user", "password": "password\n"}, "", ""},
		{"secret of CDI", fault(fetchtest.Basic), map[string]string{"accessKeyId": "user", "secretKey": "password\n"}, "", ""},
		{"bearer", fault(fetchtest.Bearer), map[string]string{"token": "token\n"}, "", ""},
		{"headers", nil, map[string]string{"headers": "# a key\nX-Api-Key: " + secretMarker + "\nX-Other:  b \n"}, "X-Api-Key", secretMarker},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			r.writeCredentials("vendor", tt.files)
			req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), tt.faults...), Credentials: "vendor"}
			if err := r.download(req); err != nil {
				t.Fatal(err)
			}
			r.wantImage(image)
			if got := r.server.Requests()[0].Header.Get(tt.header); got != tt.value {
				t.Errorf("got header %s %q, want %q", tt.header, got, tt.value)
			}
		})
	}
}

func TestInvalidCredentialsFolder(t *testing.T) {
	pair := func(a, b string) map[string]string { return map[string]string{"username": a, "password": b} }
	tests := []struct {
		name, folder string
		files        map[string]string
		class        Class
		word         string
	}{
		{"rejected", "vendor", pair(secretMarker, secretMarker), Refused, "does not accept"},
		{"no folder", "nobody", nil, BadConfig, "no such folder"},
		{"path", "../vendor", nil, BadConfig, "one folder"},
		{"half", "vendor", map[string]string{"username": secretMarker}, BadConfig, "one is missing"},
		{"half of CDI", "vendor", map[string]string{"secretKey": secretMarker}, BadConfig, "one is missing"},
		{"twice with CDI", "vendor", map[string]string{"secretKey": secretMarker, "accessKeyId": "a", "username": "b", "password": "c"}, BadConfig, "keep only one"},
		{"unknown file", "vendor", map[string]string{"passwd": secretMarker}, BadConfig, "no file that is used: add files named username"},
		{"two kinds", "vendor", map[string]string{"username": "a", "password": secretMarker, "token": secretMarker}, BadConfig, "more than one"},
		{"empty", "vendor", map[string]string{"token": "\n"}, BadConfig, "is empty"},
		{"empty folder", "vendor", map[string]string{}, BadConfig, "no file that is used"},
		{"bad header", "vendor", map[string]string{"headers": secretMarker}, BadConfig, "Name: value"},
		{"reserved header", "vendor", map[string]string{"headers": "Range: " + secretMarker}, BadConfig, "reserved"},
		{"bad pair", "vendor", map[string]string{"tls.crt": secretMarker, "tls.key": secretMarker}, BadConfig, "PEM"},
		{"bad ca", "vendor", map[string]string{"ca.crt": secretMarker}, BadConfig, "PEM"},
		{"bad host", "vendor", map[string]string{"hosts": "https://" + secretMarker}, BadConfig, "not HOST or HOST:PORT"},
		{"header in token", "vendor", map[string]string{"token": secretMarker + "\nX-Evil: 1"}, BadConfig, "a header cannot contain"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newFixture(t)
			if tt.files != nil {
				r.writeCredentials(tt.folder, tt.files)
			}
			url := r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Basic})
			wantError(t, r.download(Request{URL: url, Credentials: tt.folder}), tt.class, tt.word)
		})
	}
}

// TestFilesOfOtherProgramsAreIgnored downloads with the secret of a Longhorn backup target, and one with files of other programs.
func TestFilesOfOtherProgramsAreIgnored(t *testing.T) {
	r := newFixture(t)
	var warnings []string
	r.client.Warn = func(text string) { warnings = append(warnings, text) }
	r.writeCredentials("vendor", map[string]string{"token": "token", "AWS_IAM_ROLE_ARN": secretMarker, "ca-bundle.crt": secretMarker, "HTTPS_PROXY": ""})
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Bearer}), Credentials: "vendor"}
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
	const want = `credentials "vendor": files that are not used: ["AWS_IAM_ROLE_ARN" "ca-bundle.crt"]`
	if len(warnings) == 0 || !strings.HasPrefix(warnings[0], want) || strings.Contains(warnings[0], secretMarker) {
		t.Errorf("got %q, want %q", warnings, want)
	}
}

// TestMountedSecretIsReadAgain changes a folder with the links that kubelet creates.
func TestMountedSecretIsReadAgain(t *testing.T) {
	r := newFixture(t)
	r.writeCredentials("vendor/..2026_1", map[string]string{"token": "old " + secretMarker})
	r.writeCredentials("vendor/..2026_2", map[string]string{"token": "token"})
	dir := filepath.Join(r.client.SecretsDir, "vendor")
	for link, to := range map[string]string{"..data": "..2026_1", "token": "..data/token"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	req := Request{URL: r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Bearer}), Credentials: "vendor"}
	wantError(t, r.download(req), Refused, "does not accept")
	if err := os.Remove(filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("..2026_2", filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	if err := r.download(req); err != nil {
		t.Fatal(err)
	}
}

func TestSecretsDirLinkOutsideIsRefused(t *testing.T) {
	r := newFixture(t)
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "token"), []byte(secretMarker), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(r.client.SecretsDir, "vendor")); err != nil {
		t.Fatal(err)
	}
	url := r.server.Serve("/image.raw", fetchtest.Bytes(image))
	wantError(t, r.download(Request{URL: url, Credentials: "vendor"}), BadConfig, "vendor")
}

// TestPipeInCredentialsFolderDoesNotBlock: a read from a pipe would block forever, even during a
// shutdown.
func TestPipeInCredentialsFolderDoesNotBlock(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "vendor"), 0o755), syscall.Mkfifo(filepath.Join(dir, "vendor", "token"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := (&Client{SecretsDir: dir}).credentials("vendor")
	wantError(t, err, BadConfig)
	if !strings.Contains(err.Error(), `"token" is not a regular file`) {
		t.Error(err)
	}
}

// TestRedirectToOtherHostGetsNoSecrets checks that another host receives neither the credentials nor
// a Referer after a redirect, and that a redirect within the host sends the credentials.
func TestRedirectToOtherHostGetsNoSecrets(t *testing.T) {
	for _, hosts := range []string{"", "named"} {
		r := newFixture(t)
		other := fetchtest.Start(t)
		target := other.Serve("/there.raw", fetchtest.Bytes(image))
		files := map[string]string{"token": secretMarker}
		if hosts != "" {
			files["hosts"] = strings.TrimPrefix(other.URL, "http://")
		}
		r.writeCredentials("vendor", files)
		r.server.Serve("/second.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Redirect, To: target})
		url := r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Redirect, To: "/second.raw"})
		if err := r.download(Request{URL: url, Credentials: "vendor"}); err != nil {
			t.Fatal(err)
		}
		r.wantImage(image)
		for _, q := range append(r.server.Requests(), other.Requests()...) {
			trusted := q.Path != "/there.raw" || hosts != ""
			if got := q.Header.Get("Authorization"); (got != "") != trusted {
				t.Errorf("hosts %q: %s got authorization %q", hosts, q.Path, got)
			}
			if got := q.Header.Get("Referer"); got != "" {
				t.Errorf("%s got a Referer: %s", q.Path, got)
			}
		}
	}
}

func TestMirrorOnOtherHostGetsNoSecrets(t *testing.T) {
	r := newFixture(t)
	other := fetchtest.Start(t)
	r.writeCredentials("vendor", map[string]string{"token": secretMarker})
	req := Request{
		URL:         r.server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.NotFound}),
		Mirrors:     []string{other.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Bearer})},
		Credentials: "vendor",
	}
	wantError(t, r.download(req), Refused, "401", `add the host to the file "hosts"`)
	if got := other.Requests()[0].Header.Get("Authorization"); got != "" {
		t.Errorf("a mirror on another host got authorization %q", got)
	}
}

func TestSecretsAreNotSentUnencrypted(t *testing.T) {
	r := newFixture(t)
	r.writeCredentials("vendor", map[string]string{"token": secretMarker})
	err := r.download(Request{URL: "http://images.example.com/image.raw", Credentials: "vendor"})
	wantError(t, err, BadConfig, "unencrypted", "use https")
}

func TestCertificateAuthorityOfCredentials(t *testing.T) {
	r := newFixture(t)
	server, ca := fetchtest.StartTLS(t)
	r.writeCredentials("vendor", map[string]string{"ca.crt": string(ca)})
	url := server.Serve("/image.raw", fetchtest.Bytes(image))
	wantError(t, r.download(Request{URL: url}), Network, "certificate")
	if err := r.download(Request{URL: url, Credentials: "vendor"}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
}

func TestRedirectFromHTTPSToHTTPIsRefused(t *testing.T) {
	r := newFixture(t)
	server, ca := fetchtest.StartTLS(t)
	r.writeCredentials("vendor", map[string]string{"ca.crt": string(ca)})
	plain := r.server.Serve("/image.raw", fetchtest.Bytes(image))
	url := server.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Redirect, To: plain})
	wantError(t, r.download(Request{URL: url, Credentials: "vendor"}), BadConfig, "from https to http")
	if got := r.server.Requests(); len(got) != 0 {
		t.Errorf("got unencrypted requests %+v", got)
	}
}

// TestClientCertificateOnlyForDeclaredServer checks that the declared server receives the client
// certificate, and that a second server, after a redirect, does not.
func TestClientCertificateOnlyForDeclaredServer(t *testing.T) {
	r := newFixture(t)
	presented := map[string]int{}
	var names []string
	start := func(name string, s *fetchtest.Server) *httptest.Server {
		h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			names = append(names, name)
			presented[name] += len(q.TLS.PeerCertificates)
			s.ServeHTTP(w, q)
		}))
		h.TLS = &tls.Config{ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12}
		h.Config.ErrorLog = log.New(io.Discard, "", 0)
		h.StartTLS()
		t.Cleanup(h.Close)
		return h
	}
	there := fetchtest.New()
	there.Serve("/image.raw", fetchtest.Bytes(image))
	other := start("other", there)
	here := fetchtest.New()
	here.Serve("/image.raw", fetchtest.Bytes(image), fetchtest.Fault{Kind: fetchtest.Redirect, To: other.URL + "/image.raw"})
	declared := start("declared", here)
	crt, key := newCertificate(t)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: declared.Certificate().Raw})
	r.writeCredentials("vendor", map[string]string{"tls.crt": crt, "tls.key": key, "ca.crt": string(ca)})
	if err := r.download(Request{URL: declared.URL + "/image.raw", Credentials: "vendor"}); err != nil {
		t.Fatal(err)
	}
	r.wantImage(image)
	if len(names) != 2 || presented["declared"] != 1 || presented["other"] != 0 {
		t.Errorf("requests to %q got certificates %v", names, presented)
	}
}

func newCertificate(t *testing.T) (crt, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "node1"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}
