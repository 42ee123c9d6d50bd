package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/fetchtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
	"github.com/seed-26586806/backing-image-manager/internal/testx/netns"
)

// updateSite is a folder with images, their indexes and a chunk store, a server for it that counts bytes, and a node
// with one disk.
type updateSite struct {
	t         testing.TB
	program   string
	dir, url  string
	config    string
	data      string   // the disk
	prefix    []string // of the command line of the program on the node
	withStore bool

	mu     sync.Mutex
	sent   int64 // bytes of bodies
	victim *os.Process
	killAt int64 // the value of sent at which victim is killed
}

func newUpdateSite(t testing.TB) *updateSite {
	t.Helper()
	u := &updateSite{t: t, program: "backing-image-manager", dir: t.TempDir()}
	server := u.server()
	server.Start()
	t.Cleanup(server.Close)
	u.url = server.URL
	u.newNode()
	return u
}

// newNode replaces the node by one with an empty disk.
func (u *updateSite) newNode() {
	u.t.Helper()
	u.config, u.data = u.t.TempDir(), u.t.TempDir()
	if _, err := disk.Init(u.data); err != nil {
		u.t.Fatal(err)
	}
}

// server returns a server for the folder. Its connections have a small buffer, because bytes that only the kernel of the
// server has count as sent.
func (u *updateSite) server() *httptest.Server {
	server := httptest.NewUnstartedServer(u)
	server.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(64 << 10); err != nil {
			u.t.Error(err)
		}
		return ctx
	}
	return server
}

// ServeHTTP sends a file.
func (u *updateSite) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	http.ServeFile(&countingWriter{w, u}, r, filepath.Join(u.dir, filepath.Clean(r.URL.Path)))
}

// countingWriter counts the bytes of a body before they are sent, and kills the victim.
type countingWriter struct {
	http.ResponseWriter
	u *updateSite
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if err := w.u.count(len(p)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(p)
}

func (u *updateSite) count(n int) (err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent += int64(n)
	if u.victim != nil && u.sent >= u.killAt {
		err, u.victim = u.victim.Kill(), nil
	}
	return err
}

// sentBytes returns the bytes that were sent since the last call.
func (u *updateSite) sentBytes() int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	n := u.sent
	u.sent = 0
	return n
}

func (u *updateSite) path(name string) string { return filepath.Join(u.dir, name) }

func (u *updateSite) write(name string, content []byte) {
	u.t.Helper()
	if err := os.WriteFile(u.path(name), content, 0o644); err != nil {
		u.t.Fatal(err)
	}
}

// declare declares an image of the folder.
func (u *updateSite) declare(name string) {
	u.t.Helper()
	store := ""
	if u.withStore {
		store = fmt.Sprintf(", store: %q", u.url+"/default.castr")
	}
	text := fmt.Sprintf("settings: {allowLoopbackSources: true}\nimages: {parrot: {source: {download: {url: %q, index: %q%s}}, checksum: %q}}\n",
		u.url+"/"+name, u.url+"/"+name+".caibx", store, u.digest(u.path(name)))
	if err := os.WriteFile(filepath.Join(u.config, "images.yaml"), []byte(text), 0o644); err != nil {
		u.t.Fatal(err)
	}
}

// digest returns the SHA-512 of a file.
func (u *updateSite) digest(name string) string {
	u.t.Helper()
	f, err := os.Open(name)
	if err != nil {
		u.t.Fatal(err)
	}
	defer f.Close()
	h := ident.SHA512.New()
	if _, err := io.Copy(h, f); err != nil {
		u.t.Fatal(err)
	}
	return ident.SHA512.Digest(h).String()
}

// command returns a command of the program.
func (u *updateSite) command(args ...string) *exec.Cmd {
	line := append(append(u.prefix[:len(u.prefix):len(u.prefix)], u.program), args...)
	return exec.Command(line[0], line[1:]...)
}

func (u *updateSite) reconcileCommand() *exec.Cmd {
	return u.command("reconcile", "--config-dir", u.config, "--disk", u.data)
}

// run runs a command and returns its output.
func (u *updateSite) run(cmd *exec.Cmd) string {
	u.t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		u.t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	return string(out)
}

// update declares an image, and runs reconcile.
func (u *updateSite) update(name string) (out string) {
	u.t.Helper()
	u.declare(name)
	out = u.run(u.reconcileCommand())
	u.wantCopy(name)
	return out
}

// copies returns the paths of the images on the disk.
func (u *updateSite) copies() []string {
	u.t.Helper()
	found, err := filepath.Glob(filepath.Join(u.data, "backing-images", "*", "backing"))
	if err != nil {
		u.t.Fatal(err)
	}
	return found
}

// wantCopy fails the test unless the disk has a copy with the bytes of a file.
func (u *updateSite) wantCopy(name string) {
	u.t.Helper()
	want := u.digest(u.path(name))
	for _, found := range u.copies() {
		if u.digest(found) == want {
			return
		}
	}
	u.t.Fatalf("no copy has the bytes of %s", name)
}

// TestUpdateCostsNoMoreThanByCasync updates an image with casync and with this program, from one chunk store, by an index
// that either program has published.
func TestUpdateCostsNoMoreThanByCasync(t *testing.T) {
	t.Parallel()
	need.Programs(t, "casync")
	old := fetchtest.Random(1, 8<<20)
	clear(old[1<<20 : 3<<20]) // zeros
	for at := 4 << 20; at < 5<<20; at++ {
		old[at] = "the quick brown fox jumps over the lazy dog\n"[at/1000%44]
	}
	next := append([]byte{}, old...)
	for n, at := range []int{500_000, 2 << 20, 4_500_000, 7 << 20} { // data, data in zeros, text, data
		copy(next[at:], fetchtest.Random(uint64(n+2), 30_000))
	}
	const insertAt = 6 << 20
	next = slices.Concat(next[:insertAt], fetchtest.Random(9, 1536), next[insertAt:], next[:1<<20])
	for _, by := range []string{"casync", "publish"} {
		u := newUpdateSite(t)
		u.withStore = true
		u.write("old.raw", old)
		u.write("next.raw", next)
		for _, name := range []string{"old.raw", "next.raw"} {
			if by == "casync" {
				u.run(need.Command(t, "casync", "make", "--store="+u.path("default.castr"), u.path(name+".caibx"), u.path(name)))
			} else {
				u.run(u.command("publish", u.path(name), "--out", u.dir, "--store"))
			}
		}
		extracted := filepath.Join(t.TempDir(), "extracted.raw")
		u.run(need.Command(t, "casync", "extract", "--store="+u.url+"/default.castr", "--seed="+u.path("old.raw"), u.url+"/next.raw.caibx", extracted))
		if u.digest(extracted) != u.digest(u.path("next.raw")) {
			t.Error("casync extracted other bytes")
		}
		casync := u.sentBytes()
		u.update("old.raw")
		u.sentBytes()
		out := u.update("next.raw")
		ours := u.sentBytes()
		t.Logf("published by %s: casync %d bytes, this program %d", by, casync, ours)
		if ours > casync*102/100 {
			t.Errorf("published by %s: casync needed %d bytes, this program %d: %s", by, casync, ours, out)
		}
	}
}

var (
	linkSize  = flag.Int64("link.size", 24<<20, "bytes of the image that TestUpdateOverASlowLink updates")
	linkPart  = flag.Int64("link.part", 4<<20, "bytes of the image that it downloads to measure the time of the whole image")
	linkTimed = flag.Bool("link.timed", false, "it fails if the update takes too long; needs a quiet machine and 256 MiB")
)

// TestUpdateOverASlowLink updates an image of which 1 % has changed in one place over a link of 10 Mbit/s. It needs less
// than 3 % of the bytes on the link, and of the time, of the whole image.
func TestUpdateOverASlowLink(t *testing.T) {
	need.Programs(t, "tc")
	server, node := netns.New(t, fmt.Sprintf("bimu%d", os.Getpid())), netns.New(t, fmt.Sprintf("bimn%d", os.Getpid()))
	server.Link(t, "down0", node, "up0")
	server.IP(t, "addr", "add", "10.77.0.2/24", "dev", "down0")
	node.IP(t, "addr", "add", "10.77.0.1/24", "dev", "up0")
	server.IP(t, "link", "set", "down0", "up")
	node.IP(t, "link", "set", "up0", "up")
	const rate = 10e6 / 8
	netns.Run(t, "tc", "-n", string(server), "qdisc", "add", "dev", "down0", "root", "tbf", "rate", "10mbit", "burst", "32kb", "latency", "50ms")

	u := &updateSite{t: t, program: "backing-image-manager", dir: t.TempDir()}
	u.newNode()
	old := fetchtest.Random(1, int(*linkSize))
	next := append([]byte{}, old...)
	copy(next[len(next)/3:], fetchtest.Random(2, len(next)/100))
	part := fetchtest.Random(3, min(len(old), int(*linkPart)))
	for name, file := range map[string][]byte{"old.raw": old, "next.raw": next, "part.raw": part} {
		u.write(name, file)
		u.run(u.command("publish", u.path(name), "--out", u.dir))
	}
	local := u.server()
	local.Start()
	u.url = local.URL
	u.update("old.raw") // not through the link
	local.Close()

	remote := u.server()
	if err := server.Enter(func() (err error) {
		remote.Listener.Close()
		remote.Listener, err = net.Listen("tcp", "10.77.0.2:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	remote.Start()
	t.Cleanup(remote.Close)
	u.url, u.prefix = remote.URL, node.Exec()
	u.sentBytes()
	begin := linkBytes(t, server)
	update := u.timedUpdate("next.raw")
	afterUpdate := linkBytes(t, server)
	sent := u.sentBytes()
	scale := float64(len(old)) / float64(len(part))
	partTime := u.timedUpdate("part.raw")
	wholeBytes := float64(linkBytes(t, server)-afterUpdate) * scale
	// The time of the bytes on the link is less than that of the download.
	whole, share := wholeBytes/rate, float64(afterUpdate-begin)/wholeBytes
	t.Logf("%d MiB: the update sent %d bytes, %.2f %%, and took %.2f s; the whole image takes at least %.1f s; %.2f %% of the bytes on the link, %.2f %% of the time",
		len(old)>>20, sent, float64(sent)/float64(len(next))*100, update, whole, share*100, update/whole*100)
	t.Logf("%d MiB of the image took %.1f s", len(part)>>20, partTime)
	if least := float64(len(part)) / rate; partTime < least {
		t.Errorf("%d bytes took %.1f s, but at least %.1f s are necessary: is the link limited?", len(part), partTime, least)
	}
	if share > 0.03 {
		t.Errorf("the update needed %.2f %% of the bytes of the whole image", share*100)
	}
	if *linkTimed && update > whole*0.03 {
		t.Errorf("the update took %.2f s, more than 3 %% of the %.1f s for the whole image", update, whole)
	}
}

// linkBytes returns the bytes that a namespace has sent.
func linkBytes(t *testing.T, n netns.Namespace) (sent int64) {
	t.Helper()
	line := append(n.Exec(), "cat", "/sys/class/net/down0/statistics/tx_bytes")
	out, err := exec.Command(line[0], line[1:]...).Output()
	if err == nil {
		_, err = fmt.Sscan(string(out), &sent)
	}
	if err != nil {
		t.Fatal(err)
	}
	return sent
}

// timedUpdate returns the seconds that reconcile takes.
func (u *updateSite) timedUpdate(name string) float64 {
	u.t.Helper()
	u.declare(name)
	start := time.Now()
	out := u.run(u.reconcileCommand())
	seconds := time.Since(start).Seconds()
	u.wantCopy(name)
	if strings.Contains(out, "whole file") {
		u.t.Error(out)
	}
	return seconds
}
