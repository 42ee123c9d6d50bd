package examples

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// The key of a node must not be worth another node.
func TestCertificateIsValidForOneNode(t *testing.T) {
	need.Programs(t, "openssl")
	dir := certificates(t, map[string]string{"edge-1": "192.0.2.11", "edge-2": "edge-2.example", "edge-3": "2001:db8::3"})
	for name, want := range map[string]struct {
		host  string
		admin bool
	}{"edge-1": {"192.0.2.11", false}, "edge-2": {"edge-2.example", false}, "edge-3": {"2001:db8::3", false}, "admin": {"", true}} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, name, "tls.crt"), filepath.Join(dir, name, "tls.key"))
		if err != nil {
			t.Fatal(err)
		}
		ca, err := os.ReadFile(filepath.Join(dir, name, "ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(ca)
		for _, host := range []string{"192.0.2.11", "edge-2.example", "2001:db8::3"} {
			for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
				_, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "[" + host + "]", KeyUsages: []x509.ExtKeyUsage{use}})
				if host == "edge-2.example" {
					_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{use}})
				}
				if (err == nil) != (host == want.host) {
					t.Errorf("the certificate of %s for %s: %v", name, host, err)
				}
			}
		}
		if o := pair.Leaf.Subject.Organization; (len(o) == 1 && o[0] == "backing-image-manager:admin") != want.admin || pair.Leaf.Subject.CommonName != name {
			t.Errorf("the subject of %s is %v", name, pair.Leaf.Subject)
		}
		if _, err := os.Stat(filepath.Join(dir, name, "ca.key")); err == nil {
			t.Errorf("the folder of %s has the key of the authority", name)
		}
		if info, err := os.Stat(filepath.Join(dir, name, "tls.key")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("the key of %s: mode %v, error %v", name, info.Mode(), err)
		}
	}
}
