package browser

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha512"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// program returns the program, which is built once.
func program(t testing.TB) string {
	t.Helper()
	path, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "browser")
	if err != nil {
		return "", err
	}
	chromium.end = append(chromium.end, func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "backing-image-manager")
	cmd := need.Go(context.Background(), "build", "-o", path, "./cmd/backing-image-manager")
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return path, nil
})

// daemon is a daemon of node1, which runs until the test ends.
type daemon struct {
	testing.TB
	url   string
	token string      // for requests of the test itself; "": none
	trust *tls.Config // for requests of the test itself
	dir   string      // with the folders config, disk1, disk2 and disk3
	flags []string

	address string
	cmd     *exec.Cmd
	ended   chan struct{}
	log     bytes.Buffer // valid after ended
}

const (
	adminToken = "admin-may-0123456789"
	peerToken  = "peer-may-0123456789"
)

// newDaemon starts a daemon with three disks and the images of a configuration. In it, DIR is the folder with the disks.
func newDaemon(t testing.TB, images string, flags ...string) *daemon {
	t.Helper()
	d := &daemon{TB: t, dir: t.TempDir(), flags: flags}
	for _, name := range []string{"config", "disk1", "disk2", "disk3"} {
		path := filepath.Join(d.dir, name)
		if err := os.Mkdir(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(name, "disk") {
			if _, err := disk.Init(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	d.commit("config.yaml", images)
	address, err := freeport.Address("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	d.address, d.url = address, "http://"+address
	t.Cleanup(func() {
		if d.cmd != nil {
			d.stop()
		}
		if t.Failed() {
			t.Logf("log of the daemon:\n%s", d.log.Bytes())
		}
	})
	d.start()
	return d
}

// withTokens returns the flags for a daemon whose callers need one of two tokens.
func withTokens(t testing.TB) []string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("admin "+adminToken+"\npeer "+peerToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--token-file", file}
}

// commit writes a file of the config directory, as a commit does.
func (d *daemon) commit(name, content string) {
	d.Helper()
	path := filepath.Join(d.dir, "config", name)
	if err := os.WriteFile(path+".new", []byte(strings.ReplaceAll(content, "DIR", d.dir)), 0o644); err != nil {
		d.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		d.Fatal(err)
	}
}

// start starts the daemon, and returns when it listens.
func (d *daemon) start() {
	d.Helper()
	d.cmd = exec.Command(program(d), append([]string{"daemon", "--config-dir", filepath.Join(d.dir, "config"), "--node", "node1",
		"--listen", d.address, "--interval", "200ms", "--log-format", "json"}, d.flags...)...)
	d.ended = make(chan struct{})
	stderr, err := d.cmd.StderrPipe()
	if err != nil {
		d.Fatal(err)
	}
	if err := d.cmd.Start(); err != nil {
		d.Fatal(err)
	}
	listening := make(chan struct{})
	go func() {
		defer close(d.ended)
		lines := bufio.NewScanner(stderr)
		for once := sync.OnceFunc(func() { close(listening) }); lines.Scan(); {
			d.log.Write(append(lines.Bytes(), '\n'))
			if bytes.Contains(lines.Bytes(), []byte(`"listening"`)) {
				once()
			}
		}
	}()
	select {
	case <-listening:
	case <-d.ended:
		d.Fatal("the daemon ended before it listened")
	}
}

// stop ends the daemon.
func (d *daemon) stop() {
	d.Helper()
	if err := d.cmd.Process.Signal(os.Interrupt); err != nil {
		d.Error(err)
	}
	<-d.ended
	if err := d.cmd.Wait(); err != nil {
		d.Errorf("the daemon ended with %v", err)
	}
	d.cmd = nil
}

// request sends a request as a program does, and returns the response with its content. It follows no redirection.
func (d *daemon) request(method, path string, headers ...string) (*http.Response, string) {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), method, d.url+path, nil)
	if err != nil {
		d.Fatal(err)
	}
	if d.token != "" {
		r.Header.Set("Authorization", "Bearer "+d.token)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
	}
	transport := &http.Transport{TLSClientConfig: d.trust}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: *limit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	response, err := client.Do(r)
	if err != nil {
		d.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		d.Fatal(err)
	}
	return response, string(content)
}

// await waits until a view contains a text.
func (d *daemon) await(path, text string) {
	d.Helper()
	last, tag := "", "none"
	for deadline := time.Now().Add(*limit); time.Now().Before(deadline); {
		response, content := d.request("GET", path+"?poll="+tag)
		switch response.StatusCode {
		case http.StatusOK:
			last, tag = content, response.Header.Get("X-View")
			if strings.Contains(content, text) {
				return
			}
		case http.StatusNoContent:
		default:
			d.Fatalf("%s: %s: %s", path, response.Status, content)
		}
	}
	d.Fatalf("%s does not contain %q:\n%s", path, text, last)
}

// content is that of all images.
var content = bytes.Repeat([]byte("backing image\n\n\n"), 1<<18)

// newUpstream serves NAME.raw, slow.raw, whose second half comes slowly, and no missing.raw.
func newUpstream(t testing.TB) string {
	t.Helper()
	ctx, end := context.WithCancel(context.Background())
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing.raw":
			http.NotFound(w, r)
		case "/slow.raw":
			w.Header().Set("Content-Length", fmt.Sprint(len(content)))
			_, _ = w.Write(content[:len(content)/2])
			w.(http.Flusher).Flush()
			for tick := time.Tick(500 * time.Millisecond); ; { // slower, and the daemon takes it for stalled
				select {
				case <-tick:
					_, _ = w.Write(content[:1<<10])
					w.(http.Flusher).Flush()
				case <-ctx.Done():
					return
				case <-r.Context().Done():
					return
				}
			}
		default:
			http.ServeContent(w, r, "image.raw", time.Unix(1, 0), bytes.NewReader(content))
		}
	}))
	t.Cleanup(func() { end(); server.Close() })
	return server.URL
}

// oneDisk is a node with one disk, for a configuration.
const oneDisk = "settings: {allowLoopbackSources: true}\nnodes: {node1: {disks: {disk1: {path: DIR/disk1}}}}\n"

// newShown starts the daemon of most tests. Its images are in all states: debian is ready, alpine in progress, fedora has failed,
// windows waits for an
// upload, mint for a disk and the other node, which are not there, and ubuntu is suspended.
func newShown(t testing.TB, flags ...string) *daemon {
	t.Helper()
	return newDaemon(t, strings.NewReplacer("UPSTREAM", newUpstream(t), "SUM", fmt.Sprintf("%x", sha512.Sum512(content))).Replace(`
settings: {allowLoopbackSources: true}
nodes:
  node1:
    address: "http://127.0.0.1:8"
    disks:
      disk1: {path: DIR/disk1, storageReserved: 1Gi, tags: [ssd]}
      disk2: {path: DIR/disk2, storageReserved: 1Gi, tags: [ssd]}
      disk3: {path: DIR/disk3, storageReserved: 1Gi, evictionRequested: true}
      disk4: {path: DIR/disk4}
  node2: {address: "http://127.0.0.1:9", disks: {disk1: {path: /mnt/disk1}}}
images:
  alpine: {title: Alpine Linux, uuid: "00000001", diskSelector: [ssd], checksum: "11111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111111", source: {download: {url: "UPSTREAM/slow.raw"}}}
  debian: {title: Debian 12, uuid: "00000002", diskSelector: [ssd], minNumberOfCopies: 2, checksum: SUM, source: {download: {url: "UPSTREAM/debian.raw"}}}
  fedora: {title: Fedora, uuid: "00000003", diskSelector: [ssd], checksum: "22222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222222", source: {download: {url: "UPSTREAM/missing.raw"}}}
  mint: {title: Linux Mint, uuid: "00000006", minNumberOfCopies: 3, checksum: SUM, source: {download: {url: "UPSTREAM/mint.raw"}}}
  ubuntu: {title: Ubuntu 24.04, uuid: "00000004", diskSelector: [ssd], suspend: {reason: not tested yet, by: ann, until: "2099-01-01"}, checksum: SUM, source: {download: {url: "UPSTREAM/ubuntu.raw"}}}
  windows: {title: Windows Server, uuid: "00000005", diskSelector: [ssd], source: {upload: {}}}
`), flags...)
}

// awaitShown waits until the images of a newShown daemon have their states.
func (d *daemon) awaitShown() {
	d.Helper()
	d.await("/images/debian", "2 of 2 ready")
	d.await("/images/alpine", "50 %")
	d.await("/images/fedora", "failed attempt")
}

// writeFiles writes files with a few bytes below a folder.
func writeFiles(dir string, names ...string) error {
	for _, name := range names {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte("a few bytes"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
