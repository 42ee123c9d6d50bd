package api

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
)

func newClient(t *testing.T, url, ca string) *Client {
	t.Helper()
	c, err := NewClient(url, "", auth.TLSFiles{CA: ca})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func hintOf(err error) string {
	e, ok := errors.AsType[*UnreachableError](err)
	if !ok {
		return ""
	}
	hint, _ := e.Hint()
	return hint
}

func TestServerWithoutResponseIsATimeout(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = newClient(t, "http://"+listener.Addr().String(), "").Status(ctx)
	if err == nil || !strings.HasSuffix(err.Error(), ": no response in time") {
		t.Errorf("error is %v", err)
	}
	if hint := hintOf(err); !strings.Contains(hint, "check the daemon's log") {
		t.Errorf("the hint is %q", hint)
	}
}

func TestHintNamesTheFlagForAWrongAddressOrAuthority(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure, other := serveTLS(t, "127.0.0.1:0"), serveTLS(t, "127.0.0.2:0") // the certificate is for 127.0.0.1
	old := serveTLS(t, "127.0.0.1:0")
	old.TLS.MaxVersion = tls.VersionTLS12
	authority := filepath.Join(t.TempDir(), "ca.pem")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}
	if err := os.WriteFile(authority, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ url, ca, hint string }{
		{strings.Replace(plain.URL, "http:", "https:", 1), "", "write --url http://"},
		{secure.URL, "", "with --tls-ca"},
		{other.URL, authority, "that its certificate is valid for"},
		{old.URL, authority, "TLS 1.3"},
	} {
		c := newClient(t, tt.url, tt.ca)
		_, err := c.Status(t.Context())
		if hint := hintOf(err); !strings.Contains(hint, tt.hint) {
			t.Errorf("status of %s: %v, and the hint is %q", tt.url, err, hint)
		}
		// The upload protocol has a client of its own, whose errors get the same hints.
		_, config := c.Credentials()
		_, err = (&http.Client{Transport: &http.Transport{TLSClientConfig: config}}).Get(tt.url)
		if hint := hintOf(c.Unreachable(err)); !strings.Contains(hint, tt.hint) {
			t.Errorf("request to %s: %v, and the hint is %q", tt.url, err, hint)
		}
	}
}

func serveTLS(t *testing.T, address string) *httptest.Server {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.Listener.Close()
	s.Listener, s.Config.ErrorLog = listener, log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}
