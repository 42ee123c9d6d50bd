package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// authority issues certificates to tests.
type authority struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// certificate is a certificate and its key, as PEM.
type certificate struct{ cert, key []byte }

func newAuthority(name string) (*authority, error) {
	a := &authority{name: name}
	template := newTemplate(name, time.Now())
	template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
	der, key, err := sign(template, template, nil)
	if err != nil {
		return nil, err
	}
	a.key = key
	a.cert, err = x509.ParseCertificate(der)
	return a, err
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// issue issues what change makes of a certificate for both sides of 127.0.0.0/30.
func (a *authority) issue(name string, change func(*x509.Certificate)) (certificate, error) {
	template := newTemplate(name, time.Now())
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = []net.IP{{127, 0, 0, 1}, {127, 0, 0, 2}, {127, 0, 0, 3}}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if change != nil {
		change(template)
	}
	der, key, err := sign(template, a.cert, a.key)
	if err != nil {
		return certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	return certificate{
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}),
	}, err
}

func newTemplate(name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
	}
}

// sign makes a key and a certificate for it; without a key of the parent it signs
// itself.
func sign(template, parent *x509.Certificate, by *ecdsa.PrivateKey) ([]byte, *ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	return der, key, err
}

func asAdmin(c *x509.Certificate)   { c.Subject.Organization = []string{"somebody", adminOrganization} }
func asExpired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
func asServer(c *x509.Certificate) {
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
}

func elsewhereOnly(c *x509.Certificate) {
	c.DNSNames, c.IPAddresses = []string{"elsewhere.example"}, []net.IP{{10, 1, 2, 3}}
}

// certs writes certificates, see script_test.go.
func certs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: certs DIR")
	}
	ts.Check(os.MkdirAll(ts.MkAbs(args[0]), 0o755))
	put := func(name string, data []byte) {
		ts.Check(os.WriteFile(filepath.Join(ts.MkAbs(args[0]), name), data, 0o600))
	}
	ours, err := newAuthority("ours")
	ts.Check(err)
	theirs, err := newAuthority("theirs")
	ts.Check(err)
	put("ca.crt", ours.pem())
	put("other-ca.crt", theirs.pem())
	for _, c := range []struct {
		name   string
		by     *authority
		change func(*x509.Certificate)
	}{
		{"server", ours, nil}, {"peer", ours, nil}, {"admin", ours, asAdmin},
		{"expired", ours, asExpired}, {"elsewhere", ours, elsewhereOnly}, {"server-only", ours, asServer},
		{"stranger", theirs, asAdmin},
	} {
		issued, err := c.by.issue(c.name, c.change)
		ts.Check(err)
		put(c.name+".crt", issued.cert)
		put(c.name+".key", issued.key)
	}
}

// presenting returns a transport as --tls says, and the other arguments.
func presenting(ts *testscript.TestScript, args []string) (*http.Transport, []string) {
	transport := &http.Transport{DisableKeepAlives: true}
	if len(args) < 2 || args[0] != "--tls" {
		return transport, args
	}
	dir, name := filepath.Split(ts.MkAbs(args[1]))
	if strings.HasSuffix(args[1], "/") {
		dir, name = ts.MkAbs(args[1]), ""
	}
	f := tlsFlags{ca: filepath.Join(dir, "ca.crt")}
	if name != "" {
		f.cert, f.key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	}
	identity, err := newIdentity(slog.New(slog.DiscardHandler), f)
	ts.Check(err)
	transport.TLSClientConfig = identity.now().client
	return transport, args[2:]
}
