package browser

import (
	"bufio"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/chromedp/chromedp"

	"github.com/seed-26586806/backing-image-manager/disk"
)

var uploadSize = flag.Int64("upload.size", 256<<20, "size of the sparse file of TestInterruptedUpload, in bytes")

// cutter is a proxy before a daemon that counts the bytes of the bodies of requests, and cuts all connections after some of them.
type cutter struct {
	url  string
	sent atomic.Int64

	mu   sync.Mutex
	at   []int64 // the numbers of bytes after which it cuts, ascending
	open map[net.Conn]bool
	cuts chan int // receives the number of each cut
}

func newCutter(t testing.TB, address string, at []int64) *cutter {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c := &cutter{url: "http://" + l.Addr().String(), at: at, open: map[net.Conn]bool{}, cuts: make(chan int, len(at))}
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go c.serve(from, address)
		}
	}()
	return c
}

func (c *cutter) serve(from net.Conn, address string) {
	defer from.Close()
	to, err := net.Dial("tcp", address)
	if err != nil {
		return // the daemon restarts
	}
	defer to.Close()
	c.mu.Lock()
	c.open[from] = true
	c.mu.Unlock()
	go func() {
		defer from.Close()
		_, _ = io.Copy(from, to) // until one side closes
	}()
	copied, requests := io.Pipe()
	go c.read(copied)
	_, _ = io.Copy(to, io.TeeReader(from, requests))
	requests.Close()
	c.mu.Lock()
	delete(c.open, from)
	c.mu.Unlock()
}

// read reads the requests of one connection. The number of requests without a body depends on the time that an upload takes.
func (c *cutter) read(requests *io.PipeReader) {
	defer requests.Close()
	for buffered := bufio.NewReader(requests); ; {
		r, err := http.ReadRequest(buffered)
		if err != nil {
			return // the connection was closed
		}
		_, _ = io.Copy(c, r.Body) // until it was closed
	}
}

// Write counts bytes of a body.
func (c *cutter) Write(p []byte) (int, error) {
	sent := c.sent.Add(int64(len(p)))
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.at) > 0 && sent >= c.at[0] {
		c.at = c.at[1:]
		c.cuts <- cap(c.cuts) - len(c.at)
		for conn := range c.open {
			conn.Close()
		}
	}
	return len(p), nil
}

// An upload of a sparse file through the page survives 20 cuts, a daemon that is killed, and a new browser in which the file is
// chosen again. Nearly nothing is sent twice.
func TestInterruptedUpload(t *testing.T) {
	const pieces, pieceSize, step = 24, 1 << 20, 2 << 20
	file := filepath.Join(t.TempDir(), "windows.raw")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.NewChaCha8([32]byte{1})
	for i := range int64(pieces) { // each at the begin of a step of the page, which sends it whole
		at := i * (*uploadSize / pieces) / step * step
		if _, err := io.Copy(io.NewOffsetWriter(f, at), io.LimitReader(random, pieceSize)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(*uploadSize); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n")
	d.await("/images/windows", "0 of 1 ready")
	var at []int64
	for i := range int64(20) {
		at = append(at, (i+1)*pieces*step/21)
	}
	c := newCutter(t, d.address, at)
	choose := func(tab *tab) {
		tab.open(c.url + "/images/windows")
		tab.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	}
	one := newTab(t)
	choose(one)
	for n := range c.cuts {
		switch n {
		case 7:
			if err := d.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			<-d.ended
			_ = d.cmd.Wait() // it was killed
			d.start()
		case 14:
			one.run(chromedp.Navigate("about:blank"))
			one.takeMessages() // each request that failed
			one = newTab(t)
			choose(one)
		case 20:
			close(c.cuts)
		}
	}
	one.awaitText("#facts", "1 of 1 ready")
	one.takeMessages()
	sent, once := c.sent.Load(), int64(pieces*step)
	t.Logf("%d MiB were sent of a file with %d MiB in pieces with data", sent>>20, once>>20)
	// Each cut, the kill and the new browser can cost the piece that was being sent. The kill can also cost the chunks that the
	// daemon had in memory.
	const most = (20+2)*step + 6*disk.ChunkSize
	if sent-once > most || sent < once {
		t.Errorf("%d bytes were sent instead of %d", sent, once)
	}
	copies, err := filepath.Glob(filepath.Join(d.dir, "disk*", "backing-images", "windows-*", "backing"))
	if err != nil || len(copies) != 1 {
		t.Fatalf("copies %q, error %v", copies, err)
	}
	if got, want := sum(t, copies[0]), sum(t, file); got != want {
		t.Errorf("the copy has the digest %s, want %s", got, want)
	}
	if got := one.text("#facts"); !strings.Contains(got, sum(t, file)) {
		t.Errorf("the page does not show the digest of the file:\n%s", got)
	}
}

// The view changes when an upload begins. The upload is still shown then, can be paused, and continues when the same file is
// chosen again.
func TestPausedUpload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "windows.raw")
	image := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(image) // never fails
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n")
	d.await("/images/windows", "0 of 1 ready")
	to, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	var pieces atomic.Int64
	paused := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch && pieces.Add(1) == 2 {
			<-paused // the second piece gets no response before, and does not arrive
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	resume := sync.OnceFunc(func() { close(paused) })
	defer resume()
	tab := newTab(t)
	tab.open(server.URL + "/images/windows")
	tab.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	tab.awaitText("#actions", "Verify the copies")
	tab.awaitText("#uploaded", "33 % of windows.raw")
	tab.await(`document.querySelector("#progress:not([hidden])")?.value > 0.3`)
	tab.run(click("[data-stop]"))
	tab.awaitText("#uploaded", "Paused.")
	if !eval[bool](tab, `document.querySelector("[data-stop]").hidden && document.querySelector("#file").value === ""`) {
		t.Error("the button is shown, or the file cannot be chosen again")
	}
	resume()
	tab.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	tab.awaitText("#facts", "1 of 1 ready")
	if got := tab.text("#facts"); !strings.Contains(got, sum(t, file)) {
		t.Errorf("the page does not show the digest of the file:\n%s", got)
	}
	tab.takeMessages() // requests that were stopped
}

// Connections break in the middle of a piece, and twice after the last piece, before the response. The browser sends a piece again by
// itself. The daemon has some of its bytes or all, and accepts it nevertheless; the reader learns that the file is uploaded.
func TestUploadWithoutResponses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "windows.raw")
	image := make([]byte, 6<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(image) // never fails
	if err := os.WriteFile(file, image, 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n")
	d.await("/images/windows", "0 of 1 ready")
	to, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(to) },
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	var mu sync.Mutex
	var statuses []string // of the daemon
	cut, lost := false, 0
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.Method != http.MethodPatch {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		status := r.Status
		if r.StatusCode != http.StatusNoContent {
			message, err := io.ReadAll(r.Body)
			status += fmt.Sprintf(": %s %v", message, err)
		}
		statuses = append(statuses, status)
		if r.Header.Get("Upload-Offset") == fmt.Sprint(len(image)) && lost < 2 {
			lost++
			return errors.New("the connection breaks before the response")
		}
		return nil
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		cuts := r.Method == http.MethodPatch && r.Header.Get("Upload-Offset") == fmt.Sprint(2<<20) && !cut
		cut = cut || cuts
		mu.Unlock()
		if cuts {
			sendHalf(t, to.Host, r)
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	tab := newTab(t)
	tab.open(server.URL + "/images/windows")
	tab.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	tab.awaitText("#live", "windows.raw is uploaded.")
	tab.awaitText("#facts", "1 of 1 ready")
	tab.takeMessages() // requests that failed
	mu.Lock()
	defer mu.Unlock()
	if !cut || lost == 0 || slices.ContainsFunc(statuses, func(s string) bool { return !strings.HasPrefix(s, "204") }) {
		t.Errorf("cut %t, %d lost responses; the daemon responds to pieces with %q", cut, lost, statuses)
	}
}

// sendHalf sends the first MiB of a request, and returns when the daemon has noticed the end: a request that is repeated earlier may
// reach the daemon first.
func sendHalf(t *testing.T, host string, r *http.Request) {
	conn, err := net.Dial("tcp", host)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	half := r.Clone(t.Context())
	half.Body = io.NopCloser(io.MultiReader(io.LimitReader(r.Body, 1<<20), iotest.ErrReader(io.ErrUnexpectedEOF)))
	if err := half.Write(conn); err == nil {
		t.Error("the daemon got the whole piece")
	}
	_ = conn.(*net.TCPConn).CloseWrite() // the copy below fails, too
	_, _ = io.Copy(io.Discard, conn)     // an end by any error is an end
}

// The page says that a proxy refuses the pieces, and the image waits for an upload again.
func TestProxyRefusesPieces(t *testing.T) {
	file := filepath.Join(t.TempDir(), "windows.raw")
	if err := os.WriteFile(file, content, 0o644); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n")
	d.await("/images/windows", "waiting for upload")
	to, err := url.Parse(d.url)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPatch {
			http.Error(w, "<html>", http.StatusRequestEntityTooLarge)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	tab := newTab(t)
	tab.open(server.URL + "/images/windows")
	tab.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
	tab.awaitText("#live", "The upload failed: A proxy, not the daemon, responds 413")
	d.await("/images/windows", "waiting for upload")
	tab.takeMessages() // the request that failed
}

// sum returns the SHA-512 of a file.
func sum(t testing.TB, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h := sha512.New()
	if _, err := io.Copy(h, f); err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}
