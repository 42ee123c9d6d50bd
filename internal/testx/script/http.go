package script

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
)

var httpCommands = []command{
	{name: "http", args: "[--tls DIR/[NAME]] METHOD URL [HEADER: VALUE]...", asserts: true, min: 2, max: -1, run: sendHTTP,
		doc: "Sends a request. With --tls, verifies the server by the ca.crt of DIR, and sends the certificate of NAME (without NAME: no certificate). Prints the body to stdout, and `HTTP/1.1 200 OK` and the headers to stderr. Fails if the status is 400 or higher."},
	{name: "certs", args: "DIR", min: 1, max: 1, run: makeCerts,
		doc: "Writes ca.crt, and the certificates and keys (server.crt, server.key, …) that it issues to server, peer, admin, expired, elsewhere (for another host) and server-only (not for clients), and those of stranger, an admin of other-ca.crt. All except elsewhere are for 127.0.0.1 to 127.0.0.3."},
}

func sendHTTP(s script, args []string) error {
	transport := &http.Transport{DisableKeepAlives: true}
	if args[0] == "--tls" {
		s.useCertificate(transport, args[1])
		args = args[2:]
	}
	if len(args) < 2 {
		s.Fatalf("usage: http [--tls DIR/[NAME]] METHOD URL [HEADER: VALUE]...")
	}
	request, err := http.NewRequest(args[0], args[1], nil)
	s.Check(err)
	for _, header := range args[2:] {
		name, value, _ := strings.Cut(header, ":")
		request.Header.Set(name, strings.TrimSpace(value))
	}
	if host := request.Header.Get("Host"); host != "" {
		request.Host = host
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: transport}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	fmt.Fprintln(s.stderr, response.Proto, response.Status)
	if err := response.Header.Write(s.stderr); err != nil {
		return err
	}
	if _, err := io.Copy(s.stdout, response.Body); err != nil {
		return err
	}
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("%s %s: %s", args[0], args[1], response.Status)
	}
	return nil
}

// useCertificate sets the certificate of --tls: DIR/NAME, or DIR/ for none.
func (s script) useCertificate(transport *http.Transport, path string) {
	dir, name := filepath.Split(s.MkAbs(path))
	if strings.HasSuffix(path, "/") {
		dir, name = s.MkAbs(path), ""
	}
	files := auth.TLSFiles{CA: filepath.Join(dir, "ca.crt")}
	if name != "" {
		files.Cert, files.Key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	}
	credentials, err := auth.Load(slog.New(slog.DiscardHandler), "", files)
	s.Check(err)
	_, transport.TLSClientConfig = credentials.ForCommand()
}

func makeCerts(s script, args []string) error {
	dir := s.MkAbs(args[0])
	write := func(name string, data []byte) error { return os.WriteFile(filepath.Join(dir, name), data, 0o600) }
	ours, err := certtest.NewAuthority("ours")
	if err != nil {
		return err
	}
	theirs, err := certtest.NewAuthority("theirs")
	if err != nil {
		return err
	}
	err = errors.Join(os.MkdirAll(dir, 0o755), write("ca.crt", ours.PEM()), write("other-ca.crt", theirs.PEM()))
	for _, c := range []struct {
		name   string
		by     *certtest.Authority
		change func(*x509.Certificate)
	}{
		{"server", ours, nil}, {"peer", ours, nil}, {"admin", ours, certtest.AsAdmin},
		{"expired", ours, certtest.Expired}, {"elsewhere", ours, certtest.OtherHost}, {"server-only", ours, certtest.ServerOnly},
		{"stranger", theirs, certtest.AsAdmin},
	} {
		issued, issueErr := c.by.Issue(c.name, c.change)
		err = errors.Join(err, issueErr, write(c.name+".crt", issued.Cert), write(c.name+".key", issued.Key))
	}
	return err
}
