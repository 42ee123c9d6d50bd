package fetch

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/fetchtest"
)

// TestClientCertificate has two servers that ask for one: the declared one, which
// gets it, and one that it redirects to, which must not.
func TestClientCertificate(t *testing.T) {
	r := newRig(t)
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
	r.secret("vendor", map[string]string{"tls.crt": crt, "tls.key": key, "ca.crt": string(ca)})
	if err := r.download(Request{URL: declared.URL + "/image.raw", Credentials: "vendor"}); err != nil {
		t.Fatal(err)
	}
	r.stored(image)
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
