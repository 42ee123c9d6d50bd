package main

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
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// fortress is the server of a daemon, as it is, with one ready image to read and a
// secret beside the disk.
type fortress struct {
	t       *testing.T
	address string
	guard   guard
}

const (
	fortImage  = "/v1/images/parrot/6846a0b2/data?disk=disk1"
	fortSecret = "the secret beside the disk"
)

func newFortress(t *testing.T, g guard, change func(*http.Server)) *fortress {
	t.Helper()
	root := t.TempDir()
	path, conf := filepath.Join(root, "disk"), filepath.Join(root, "conf")
	for file, text := range map[string]string{
		"secret": fortSecret, "disk/secret": fortSecret, "conf/config.yaml": "images: {parrot: {uuid: '6846a0b2', source: {upload: {}}}}",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	d := stock(t, path)
	board := peer.NewStateCache()
	board.Publish(peer.State{Node: "node1"})
	peers := peer.NewServer(board, fortressNode{d})
	log := slog.New(slog.DiscardHandler)
	loop := reconcile.NewLoop(reconcile.New(fetch.Client{}, log, false), reconcile.LoopOptions{
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
	s := newServer(server{loop: loop, guard: g, stuck: time.Minute, peers: peers.Handler()}, log)
	if change != nil {
		change(s)
	}
	return &fortress{t, listen(t, s), g}
}

// fortressNode is a peer.Node with the one disk that the tests attack.
type fortressNode struct{ disk *disk.Disk }

func (n fortressNode) Copies(context.Context, string) (peer.State, error) {
	return peer.State{Node: "node1"}, nil
}
func (n fortressNode) Disk(name string) (*disk.Disk, bool)  { return n.disk, name == "disk1" }
func (n fortressNode) Leaving(string, disk.ID) bool         { return false }
func (n fortressNode) DeclaredUUID(string) (string, bool)   { return "", false }
func (n fortressNode) ReportDamage(context.Context, string) {}

// stock makes a disk with a ready image of 3 MiB.
func stock(t *testing.T, path string) *disk.Disk {
	t.Helper()
	if _, err := disk.Init(path); err != nil {
		t.Fatal(err)
	}
	d, err := disk.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	p, err := d.OpenPart(t.Context(), disk.ID{Name: "parrot", UUID: "6846a0b2"}, disk.PartOptions{})
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
	if _, err := p.Commit(disk.Digest{}); err != nil {
		t.Fatal(err)
	}
	return d
}

func listen(t *testing.T, s *http.Server) string {
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

// connect returns a connection with a deadline, by TLS if the server has it.
func (f *fortress) connect() net.Conn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		f.t.Fatal(err)
	}
	if f.guard.identity != nil {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) // an outsider does not care
	}
	return conn
}

// say sends lines as they are and returns status and body of the answer; 0: there is
// none.
func (f *fortress) say(lines ...string) (status int, body string) {
	f.t.Helper()
	conn := f.connect()
	if _, err := io.WriteString(conn, strings.Join(lines, "\r\n")+"\r\n\r\n"); err != nil {
		f.t.Fatal(err)
	}
	method, _, _ := strings.Cut(lines[0], " ")
	answer, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		return 0, ""
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}
