package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// selfSigned returns a new client certificate.
func selfSigned(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestNewCertificatesReplaceKeptConnections: certificate files may change while a node runs. An
// existing connection must not be used after that.
func TestNewCertificatesReplaceKeptConnections(t *testing.T) {
	var presented []byte
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		presented = r.TLS.PeerCertificates[0].Raw
		_, _ = w.Write(encode(model.Node{Node: "node1"}))
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.Config.ErrorLog = discardLog
	s.StartTLS()
	t.Cleanup(s.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(s.Certificate())
	config := func(roots *x509.CertPool, own tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}
	}
	old, renewed := selfSigned(t), selfSigned(t)
	now := config(trusted, old)
	c := NewClient(nil, func() *tls.Config { return now })
	t.Cleanup(c.Close)
	query := func() error {
		_, _, err := c.State(t.Context(), Address{Node: "node1", URL: s.URL}, "", 0)
		return err
	}
	for _, own := range []tls.Certificate{old, old, renewed} {
		now = config(trusted, own)
		if err := query(); err != nil || string(presented) != string(own.Certificate[0]) {
			t.Errorf("the client presented an earlier certificate, error %v", err)
		}
	}
	now = config(x509.NewCertPool(), renewed)
	if err := query(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("the client trusts a server of an earlier CA: %v", err)
	}
}

func TestErrorNamesAPeerWithoutTLS(t *testing.T) {
	at := startFakePeer(t, func(http.ResponseWriter, *http.Request) {})
	at.URL = strings.Replace(at.URL, "http:", "https:", 1)
	_, _, err := newClient(t).State(t.Context(), at, "", 0)
	if err == nil || !strings.HasSuffix(err.Error(), "the peer uses http, not https: start it with --tls-cert, --tls-key and --tls-ca, too") {
		t.Errorf("got %v", err)
	}
}
