package main

import (
	"context"
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
)

// What a daemon answers is shown, and not done by the terminal.
func TestErrorsAreText(t *testing.T) {
	var b strings.Builder
	writeError(&b, errors.Join(&refusedError{"http://x", 403, "no \x1b[2J\x1b]0;title\a"}, errors.New(" ü\tnot read ")))
	if want := "error: the daemon at http://x refuses: no \ufffd[2J\ufffd]0;title\ufffd\nerror: ü\ufffdnot read\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

// TestDaemonThatHangs: who takes the connection and says nothing is not waited for, and
// that is said in words.
func TestDaemonThatHangs(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, err = caller{url: "http://" + listener.Addr().String()}.status(ctx)
	if err == nil || !strings.HasSuffix(err.Error(), ": it does not answer in time") {
		t.Errorf("error is %v", err)
	}
	if hint := hintFor(err); !strings.Contains(hint, "ask another one with --url") {
		t.Errorf("the hint is %q", hint)
	}
}

// TestUnreachableHints: a wrong address or authority is told with what to write instead,
// by both clients: that of an upload is one of its own.
func TestUnreachableHints(t *testing.T) {
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	secure, other := serveTLS(t, "127.0.0.1:0"), serveTLS(t, "127.0.0.2:0") // its certificate is for the first
	authority, image := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "image.raw")
	block := &pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}
	if err := errors.Join(os.WriteFile(authority, pem.EncodeToMemory(block), 0o600), os.WriteFile(image, make([]byte, 512), 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ url, ca, hint string }{
		{strings.Replace(plain.URL, "http:", "https:", 1), "", "write --url http://"},
		{secure.URL, "", "with --tls-ca"},
		{other.URL, authority, "that its certificate is for"},
	} {
		asked := caller{url: c.url, tls: tlsFlags{ca: c.ca}}
		_, err := asked.status(t.Context())
		if hint := hintFor(err); !strings.Contains(hint, c.hint) {
			t.Errorf("status of %s: %v, and the hint is %q", c.url, err, hint)
		}
		u := &uploading{imageFlags: imageFlags{caller: asked}, name: "parrot", file: image, size: -1, out: io.Discard, err: io.Discard}
		err = u.run(t.Context())
		if hint := hintFor(err); !strings.Contains(hint, c.hint) {
			t.Errorf("upload to %s: %v, and the hint is %q", c.url, err, hint)
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
