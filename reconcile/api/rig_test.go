package api

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

const timeout = time.Minute // for what must happen

// daemon is the server of a daemon with one ready image, and a file outside the disk that
// no request may read.
type daemon struct {
	t       *testing.T
	address string
	tls     bool
}

const (
	imageData  = "/v1/images/parrot/6846a0b2/data?disk=disk1"
	secretText = "the secret beside the disk"
)

func localAuthorizer(t *testing.T) *auth.Authorizer {
	t.Helper()
	return newAuthorizer(t, "", auth.TLSFiles{})
}

func newAuthorizer(t *testing.T, tokenFile string, files auth.TLSFiles) *auth.Authorizer {
	t.Helper()
	c, err := auth.Load(slog.New(slog.DiscardHandler), tokenFile, files)
	if err != nil {
		t.Fatal(err)
	}
	a, err := auth.NewAuthorizer(c, "127.0.0.1:8000", false)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func startDaemon(t *testing.T, a *auth.Authorizer) *daemon {
	t.Helper()
	root := t.TempDir()
	path, conf := filepath.Join(root, "disk"), filepath.Join(root, "conf")
	writeFile(t, filepath.Join(root, "secret"), secretText)
	writeFile(t, filepath.Join(path, "secret"), secretText)
	writeFile(t, filepath.Join(conf, "config.yaml"), "images: {parrot: {uuid: '6846a0b2', source: {upload: {}}}}")
	fillDisk(t, path)
	loop := startLoop(t, conf, path)
	s := NewServer(loop, a, Options{MaxRoundAge: time.Minute}, slog.New(slog.DiscardHandler))
	// A timeout must not end what the server has to end at once.
	s.ReadTimeout, s.ReadHeaderTimeout = time.Hour, time.Hour
	d := &daemon{t, serve(t, s), s.TLSConfig != nil}
	waitFor(t, "the daemon does not become ready", func() bool {
		status, _ := d.send("GET /readyz HTTP/1.1", "Host: localhost")
		return status == 200
	})
	return d
}

// waitFor calls done until it returns true.
func waitFor(t *testing.T, failure string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(timeout); !done(); {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal(failure)
		}
	}
}

// startLoop runs the loop of node1 with one disk until the test ends.
func startLoop(t *testing.T, conf, path string) *reconcile.Loop {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	loop := reconcile.NewLoop(reconcile.New(fetch.Client{}, nil, log, false), reconcile.LoopOptions{
		Dir: conf, Interval: 100 * time.Millisecond, Node: "node1", Disks: []string{path}, Log: log,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- loop.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return loop
}

// fillDisk makes a disk with a ready image of 3 MiB.
func fillDisk(t *testing.T, path string) {
	t.Helper()
	if _, err := disk.Init(path); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	p, err := d.OpenPart(t.Context(), ident.ID{Name: "parrot", UUID: "6846a0b2"}, disk.PartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.Begin(disk.PartSource{ID: "test", Size: 3 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.ReadFrom(bytes.NewReader(fetchtest.Random(1, 3<<20))); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(ident.Digest{}); err != nil {
		t.Fatal(err)
	}
}

// serve runs a server until the test ends and returns its address.
func serve(t *testing.T, s *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() {
		if s.TLSConfig != nil {
			served <- s.ServeTLS(l, "", "")
		} else {
			served <- s.Serve(l)
		}
	}()
	t.Cleanup(func() {
		s.Close()
		<-served
	})
	return l.Addr().String()
}

// connect returns a connection with a deadline, with TLS if the server has it.
func (d *daemon) connect() net.Conn {
	d.t.Helper()
	conn, err := net.Dial("tcp", d.address)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		d.t.Fatal(err)
	}
	if d.tls {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // an attacker does not verify
	}
	return conn
}

// send sends lines unchanged, and returns status and body of the response. Status 0 means
// that there is no response.
func (d *daemon) send(lines ...string) (status int, body string) {
	d.t.Helper()
	conn := d.connect()
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		d.t.Fatal(err)
	}
	method, _, _ := strings.Cut(lines[0], " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Fatal(err)
	}
	return response.StatusCode, string(data)
}
