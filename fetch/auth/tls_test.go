package auth

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
)

// certFolder is a folder with certificates that one authority has signed.
type certFolder struct {
	dir       string
	authority *certtest.Authority
}

func newCertFolder(t *testing.T) certFolder {
	t.Helper()
	authority, err := certtest.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	f := certFolder{t.TempDir(), authority}
	f.put(t, "ca.crt", authority.PEM())
	f.issue(t, "server", nil)
	f.issue(t, "peer", nil)
	f.issue(t, "admin", certtest.AsAdmin)
	return f
}

func (f certFolder) put(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f certFolder) issue(t *testing.T, name string, change func(*x509.Certificate)) {
	t.Helper()
	c, err := f.authority.Issue(name, change)
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, name+".crt", c.Cert)
	f.put(t, name+".key", c.Key)
}

func (f certFolder) load(t *testing.T, name string) Credentials {
	t.Helper()
	at := func(file string) string { return filepath.Join(f.dir, file) }
	c, err := Load(slog.New(slog.DiscardHandler), "", TLSFiles{Cert: at(name + ".crt"), Key: at(name + ".key"), CA: at("ca.crt")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (f certFolder) identity(t *testing.T, name string) *identity {
	t.Helper()
	return f.load(t, name).identity.current()
}

// expireCache makes the next use read the files again.
func expireCache(c Credentials) { c.identity.readAt = time.Time{} }

// handshake returns the connection state of the server.
func handshake(t *testing.T, server *tls.Config, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	client = client.Clone()
	client.ServerName = "localhost"
	s, c := tls.Server(here, server), tls.Client(there, client)
	clientDone := make(chan error, 1)
	go func() {
		clientDone <- c.Handshake()
		_, _ = io.Copy(io.Discard, there) // the alert of the server, until the connection is closed
	}()
	err := s.Handshake()
	if err != nil {
		here.Close()
	}
	if clientErr := <-clientDone; err == nil {
		err = clientErr
	}
	return s.ConnectionState(), err
}

func TestCertificatesGiveRolesWhileTheyAreValid(t *testing.T) {
	own, foreign := newCertFolder(t), newCertFolder(t)
	server, foreignServer := own.identity(t, "server"), foreign.identity(t, "server")
	for name, want := range map[string]Role{"peer": RolePeer, "admin": RoleAdmin} {
		s, err := handshake(t, server.server, own.identity(t, name).client)
		if err != nil {
			t.Fatal(err)
		}
		if got := server.role(&s, time.Now()); got != want {
			t.Errorf("%s has role %v", name, got)
		}
		if got := server.role(&s, time.Now().Add(2*time.Hour)); got != RoleNone {
			t.Errorf("%s has role %v after its certificate expired", name, got)
		}
		if got := foreignServer.role(&s, time.Now()); got != RoleNone {
			t.Errorf("%s has role %v although the authority changed", name, got)
		}
	}
	if got := server.role(nil, time.Now()); got != RoleNone {
		t.Errorf("without TLS the role is %v", got)
	}
	if _, err := handshake(t, server.server, foreign.identity(t, "admin").client); err == nil {
		t.Error("a certificate of another authority was accepted")
	}
	s, err := handshake(t, server.server, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := server.role(&s, time.Now()); got != RoleNone {
		t.Errorf("without a certificate the role is %v", got)
	}
	if _, err := handshake(t, server.server, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 was accepted")
	}
}

// startServer starts a server that accepts callers with a role, and returns its address.
func startServer(t *testing.T, c Credentials) (url string) {
	t.Helper()
	a := newAuthorizer(t, c, "127.0.0.1:0", false)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := a.Authorize(r, noHost); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	}))
	s.Config.ErrorLog = log.New(log.Writer(), "", 0)
	s.TLS = a.ServerTLS()
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func TestExpiryOfTheCertificate(t *testing.T) {
	f := newCertFolder(t)
	end := func(in time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotAfter = time.Now().Add(in) }
	}
	c := f.load(t, "server")
	checkExpiry := func(what string, c Credentials, in time.Duration) {
		t.Helper()
		at, ok := c.CertificateExpiry()
		if left := time.Until(at); !ok || (left-in).Abs() > time.Minute {
			t.Errorf("%s: it expires in %v (%v), want %v", what, left, ok, in)
		}
	}
	checkExpiry("at the start", c, time.Hour)
	f.issue(t, "server", end(30*time.Minute))
	checkExpiry("files that were not read yet", c, time.Hour)
	expireCache(c)
	checkExpiry("after a replacement", c, 30*time.Minute)
	f.issue(t, "server", certtest.Expired)
	expireCache(c)
	checkExpiry("after a replacement that is not used", c, 30*time.Minute)

	f.issue(t, "server", end(48*time.Hour))
	checkExpiry("the authority expires first", f.load(t, "server"), time.Hour)
	other := newCertFolder(t)
	f.put(t, "ca.crt", other.authority.PEM())
	checkExpiry("the authority is not known", f.load(t, "server"), 48*time.Hour)

	for name, c := range map[string]Credentials{"no TLS": {}, "a client without a certificate": loadAuthority(t, f)} {
		if at, ok := c.CertificateExpiry(); ok {
			t.Errorf("%s: it expires at %v", name, at)
		}
	}
}

// loadAuthority loads the credentials of a client that has no certificate.
func loadAuthority(t *testing.T, f certFolder) Credentials {
	t.Helper()
	c, err := Load(slog.New(slog.DiscardHandler), "", TLSFiles{CA: filepath.Join(f.dir, "ca.crt")})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReplacedFilesTakeEffect(t *testing.T) {
	own, foreign := newCertFolder(t), newCertFolder(t)
	server, client := own.load(t, "server"), foreign.load(t, "peer")
	url := startServer(t, server)
	token, config := client.ForPeers()
	if token != nil {
		t.Error("there is a token without a token file")
	}
	get := func() error {
		transport := &http.Transport{TLSClientConfig: config()}
		defer transport.CloseIdleConnections()
		answer, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	}
	if err := get(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("the client trusts a server of another authority: %v", err)
	}
	foreign.put(t, "ca.crt", own.authority.PEM())
	expireCache(client)
	if err := get(); err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
		t.Errorf("the server trusts a client of another authority: %v", err)
	}
	foreign.authority = own.authority
	foreign.issue(t, "peer", nil)
	expireCache(client)
	if err := get(); err != nil {
		t.Error(err)
	}
	own.issue(t, "server", certtest.OtherHost)
	expireCache(server)
	if err := get(); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("the client accepts a certificate for another host: %v", err)
	}
}
