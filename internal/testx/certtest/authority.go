// Package certtest issues X.509 certificates for tests.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"time"
)

// Authority issues certificates to tests.
type Authority struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Certificate is a certificate and its key, as PEM.
type Certificate struct{ Cert, Key []byte }

// NewAuthority returns an authority with a new key.
func NewAuthority(name string) (*Authority, error) {
	a := &Authority{name: name}
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

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// Issue issues a certificate for servers and clients on localhost and 127.0.0.1 to 127.0.0.3, which
// expires after an hour. If change is not nil, it edits the certificate before it is signed.
func (a *Authority) Issue(name string, change func(*x509.Certificate)) (Certificate, error) {
	template := newTemplate(name, time.Now())
	template.DNSNames = []string{"localhost"}
	template.IPAddresses = []net.IP{{127, 0, 0, 1}, {127, 0, 0, 2}, {127, 0, 0, 3}}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	if change != nil {
		change(template)
	}
	der, key, err := sign(template, a.cert, a.key)
	if err != nil {
		return Certificate{}, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	return Certificate{
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

// sign creates a key and a certificate for it. If the key of the parent is nil, the certificate is
// self-signed.
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

// Functions for the parameter change of Issue.

// AsAdmin gives the certificate the role admin.
func AsAdmin(c *x509.Certificate) {
	c.Subject.Organization = []string{"somebody", "backing-image-manager:admin"}
}

// Expired sets the end of the validity to one minute ago.
func Expired(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }

// ServerOnly creates a certificate that clients cannot use.
func ServerOnly(c *x509.Certificate) {
	c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
}

// OtherHost creates a certificate for another host.
func OtherHost(c *x509.Certificate) {
	c.DNSNames, c.IPAddresses = []string{"elsewhere.example"}, []net.IP{{10, 1, 2, 3}}
}
