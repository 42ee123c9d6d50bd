package main

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/peer"
)

// files is a folder with certificates of an authority.
type files struct {
	dir string
	by  *authority
}

func newFiles(t *testing.T) files {
	t.Helper()
	by, err := newAuthority("ours")
	if err != nil {
		t.Fatal(err)
	}
	f := files{t.TempDir(), by}
	f.put(t, "ca.crt", by.pem())
	f.issue(t, "server", nil)
	f.issue(t, "peer", nil)
	f.issue(t, "admin", asAdmin)
	return f
}

func (f files) put(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f files) issue(t *testing.T, name string, change func(*x509.Certificate)) {
	t.Helper()
	c, err := f.by.issue(name, change)
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, name+".crt", c.cert)
	f.put(t, name+".key", c.key)
}

func (f files) flags(name string) tlsFlags {
	at := func(file string) string { return filepath.Join(f.dir, file) }
	return tlsFlags{cert: at(name + ".crt"), key: at(name + ".key"), ca: at("ca.crt")}
}

func (f files) identity(t *testing.T, name string) *reloaded[*identity] {
	t.Helper()
	i, err := newIdentity(slog.New(slog.DiscardHandler), f.flags(name))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// shake returns what a server with these files knows of a caller after a handshake.
func shake(t *testing.T, server *tls.Config, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	client = client.Clone()
	client.ServerName = "localhost"
	s, c := tls.Server(here, server), tls.Client(there, client)
	called := make(chan error)
	go func() { called <- c.Handshake() }()
	err := s.Handshake()
	if err != nil {
		here.Close()
	}
	if failed := <-called; err == nil {
		err = failed
	}
	return s.ConnectionState(), err
}

func TestCertificatesGiveRolesForAsLongAsTheyHold(t *testing.T) {
	ours, theirs := newFiles(t), newFiles(t)
	us, them := ours.identity(t, "server").now(), theirs.identity(t, "server").now()
	for name, want := range map[string]role{"peer": peerRole, "admin": adminRole} {
		s, err := shake(t, us.server, ours.identity(t, name).now().client)
		if err != nil {
			t.Fatal(err)
		}
		if got := us.role(&s, time.Now()); got != want {
			t.Errorf("%s has the role %v", name, got)
		}
		if got := us.role(&s, time.Now().Add(2*time.Hour)); got != nobody {
			t.Errorf("%s has the role %v when its certificate has expired", name, got)
		}
		if got := them.role(&s, time.Now()); got != nobody {
			t.Errorf("%s has the role %v when the authority is another one", name, got)
		}
	}
	if got := us.role(nil, time.Now()); got != nobody {
		t.Errorf("without TLS the role is %v", got)
	}
	if _, err := shake(t, us.server, theirs.identity(t, "admin").now().client); err == nil {
		t.Error("a certificate of another authority was taken")
	}
	s, err := shake(t, us.server, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := us.role(&s, time.Now()); got != nobody {
		t.Errorf("without a certificate the role is %v", got)
	}
	if _, err := shake(t, us.server, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}); err == nil {
		t.Error("TLS 1.2 was taken")
	}
}

// What a daemon shows to its peers is what its files say at that time.
func TestCredentialsFollowTheirFiles(t *testing.T) {
	ours, theirs := newFiles(t), newFiles(t)
	f := newFortress(t, guard{identity: ours.identity(t, "server")}, nil)
	at := peer.Address{Node: "node1", URL: "https://" + f.address}
	mine := guard{identity: theirs.identity(t, "peer")}
	token, config := mine.credentials()
	if token != nil {
		t.Error("there is a token")
	}
	ask := func() error {
		client := peer.NewClient(token, config)
		defer client.Close()
		_, _, err := client.State(t.Context(), at, "", 0)
		return err
	}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a server of another authority was believed: %v", err)
	}
	theirs.put(t, "ca.crt", ours.by.pem())
	mine.identity.looked = time.Time{}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "unknown certificate authority") {
		t.Errorf("the server believes another authority: %v", err)
	}
	theirs.by = ours.by
	theirs.issue(t, "peer", nil)
	mine.identity.looked = time.Time{}
	if err := ask(); err != nil {
		t.Error(err)
	}
	// A certificate for another address is not good for this one.
	ours.issue(t, "server", elsewhereOnly)
	f.guard.identity.looked = time.Time{}
	if err := ask(); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("a certificate for another address was believed: %v", err)
	}
}
