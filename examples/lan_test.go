package examples

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// lan is a network that nothing leaves: a bridge in a namespace of its own, where the
// test and the origin of images are, and a namespace for each node.
type lan struct {
	bridge string // the namespace
	nodes  map[string]string
}

const bridgeAddress = "192.0.2.1"

func newLAN(t *testing.T, addresses map[string]string) *lan {
	t.Helper()
	need.NetworkNamespaces(t)
	l := &lan{bridge: fmt.Sprintf("bimlan%d", os.Getpid()), nodes: map[string]string{}}
	l.namespace(t, l.bridge)
	run(t, "", "ip", "-n", l.bridge, "link", "add", "br0", "type", "bridge")
	run(t, "", "ip", "-n", l.bridge, "addr", "add", bridgeAddress+"/24", "dev", "br0")
	run(t, "", "ip", "-n", l.bridge, "link", "set", "br0", "up")
	for node, address := range addresses {
		name := l.bridge + "-" + node
		l.nodes[node] = name
		l.namespace(t, name)
		run(t, "", "ip", "link", "add", "name", "eth0", "netns", name, "type", "veth", "peer", "name", node, "netns", l.bridge)
		run(t, "", "ip", "-n", name, "addr", "add", address+"/24", "dev", "eth0")
		run(t, "", "ip", "-n", name, "link", "set", "eth0", "up")
		run(t, "", "ip", "-n", l.bridge, "link", "set", node, "master", "br0", "up")
	}
	return l
}

func (l *lan) namespace(t *testing.T, name string) {
	t.Helper()
	run(t, "", "ip", "netns", "add", name)
	t.Cleanup(func() { run(t, "", "ip", "netns", "del", name) })
	run(t, "", "ip", "-n", name, "link", "set", "lo", "up")
}

// inside calls f on a thread that is in the namespace of the bridge: a socket stays
// where it was made.
func (l *lan) inside(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ours, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer ours.Close()
	theirs, err := os.Open(filepath.Join("/run/netns", l.bridge))
	if err != nil {
		return err
	}
	defer theirs.Close()
	if err := unix.Setns(int(theirs.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	defer func() {
		if err := unix.Setns(int(ours.Fd()), unix.CLONE_NEWNET); err != nil {
			panic(err) // whoever comes onto this thread next would be in the wrong place
		}
	}()
	return f()
}

// client asks as a kubelet does: it knows no authority, and shows nothing.
func (l *lan) client() *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			return conn, l.inside(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
		},
	}}
}

// origin is the web as far as the examples name it.
type origin struct {
	files  map[string][]byte
	images atomic.Int64 // how often the first bytes of an image were asked for
	ca     []byte
}

// serve answers for https://host until the test ends.
func (l *lan) serve(t *testing.T, host string, files map[string][]byte) *origin {
	t.Helper()
	dir := certificates(t, host)
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	o := &origin{files: files, ca: ca}
	var listener net.Listener
	if err := l.inside(func() error {
		listener, err = net.Listen("tcp", bridgeAddress+":443")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: o}
	go func() { _ = server.ServeTLS(listener, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")) }() // it is closed
	t.Cleanup(func() { _ = server.Close() })
	return o
}

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	data, ok := o.files[r.URL.Path]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if filepath.Base(r.URL.Path) != "SHA512SUMS" {
		o.images.Add(1)
	}
	_, _ = w.Write(data) // whoever asks may go
}
