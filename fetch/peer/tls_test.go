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
)

func ownCertificate(t *testing.T) tls.Certificate {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	is := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, is, is, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// The files of certificates change while a node runs, and connections are kept.
func TestNewCertificatesReplaceKeptConnections(t *testing.T) {
	var shown []byte
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown = r.TLS.PeerCertificates[0].Raw
		_, _ = w.Write(encode(State{Node: "node1"}))
	}))
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert}
	s.Config.ErrorLog = discardLog
	s.StartTLS()
	t.Cleanup(s.Close)
	believed := x509.NewCertPool()
	believed.AddCert(s.Certificate())
	config := func(roots *x509.CertPool, own tls.Certificate) *tls.Config {
		return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{own}}
	}
	old, renewed := ownCertificate(t), ownCertificate(t)
	now := config(believed, old)
	c := NewClient(nil, func() *tls.Config { return now })
	t.Cleanup(c.Close)
	ask := func() error {
		_, _, err := c.State(t.Context(), Address{Node: "node1", URL: s.URL}, "", 0)
		return err
	}
	for _, own := range []tls.Certificate{old, old, renewed} {
		now = config(believed, own)
		if err := ask(); err != nil || string(shown) != string(own.Certificate[0]) {
			t.Errorf("another certificate is shown than that of the moment, error %v", err)
		}
	}
	now = config(x509.NewCertPool(), renewed)
	if err := ask(); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a server is believed that nobody vouches for any more: %v", err)
	}
}
