package main

import (
	"crypto/x509"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
)

// certs writes certificates, see script_test.go.
func certs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: certs DIR")
	}
	ts.Check(os.MkdirAll(ts.MkAbs(args[0]), 0o755))
	put := func(name string, data []byte) {
		ts.Check(os.WriteFile(filepath.Join(ts.MkAbs(args[0]), name), data, 0o600))
	}
	ours, err := certtest.NewAuthority("ours")
	ts.Check(err)
	theirs, err := certtest.NewAuthority("theirs")
	ts.Check(err)
	put("ca.crt", ours.PEM())
	put("other-ca.crt", theirs.PEM())
	for _, c := range []struct {
		name   string
		by     *certtest.Authority
		change func(*x509.Certificate)
	}{
		{"server", ours, nil}, {"peer", ours, nil}, {"admin", ours, certtest.AsAdmin},
		{"expired", ours, certtest.Expired}, {"elsewhere", ours, certtest.OtherHost}, {"server-only", ours, certtest.ServerOnly},
		{"stranger", theirs, certtest.AsAdmin},
	} {
		issued, err := c.by.Issue(c.name, c.change)
		ts.Check(err)
		put(c.name+".crt", issued.Cert)
		put(c.name+".key", issued.Key)
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
	f := auth.TLSFiles{CA: filepath.Join(dir, "ca.crt")}
	if name != "" {
		f.Cert, f.Key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	}
	credentials, err := auth.Load(slog.New(slog.DiscardHandler), "", f)
	ts.Check(err)
	_, transport.TLSClientConfig = credentials.ForCommand()
	return transport, args[2:]
}
