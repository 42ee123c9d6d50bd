package browser

import (
	"bufio"
	"bytes"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/seed-26586806/backing-image-manager/internal/testx/files"
	"github.com/seed-26586806/backing-image-manager/internal/testx/freeport"
	"github.com/seed-26586806/backing-image-manager/internal/testx/need"
)

// newNginx starts nginx before a daemon, with the server of the documents, and returns its address. At the end, it fails the test if
// nginx has logged a warning, for example that it has written an upload to a file.
func newNginx(t testing.TB, d *daemon) (site string) {
	t.Helper()
	address, err := freeport.Address("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	document, err := os.ReadFile("../../../docs/web-page.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(document), "```nginx\n")
	server, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("the document has no server of nginx")
	}
	cert, key := issueServer(t, "images.test")
	for old, now := range map[string]string{
		" 443 ": " " + address + " ", "images.example.com": "images.test", "127.0.0.1:8000": d.address, "/etc/nginx/tls.crt": cert, "/etc/nginx/tls.key": key,
	} {
		if !strings.Contains(server, old) {
			t.Fatalf("the server of nginx does not contain %q:\n%s", old, server)
		}
		server = strings.ReplaceAll(server, old, now)
	}
	dir := t.TempDir()
	var config strings.Builder
	config.WriteString("daemon off;\nmaster_process off;\npid nginx.pid;\nevents {}\nhttp {\naccess_log off;\n")
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		config.WriteString(kind + "_temp_path " + kind + ";\n")
	}
	files.Put(t, config.String()+server+"}\n", dir, "nginx.conf")
	cmd := need.Command(t, "nginx", "-p", dir, "-c", "nginx.conf", "-e", "stderr", "-g", "error_log stderr notice;")
	listening, problems, ended := runNginx(t, cmd)
	t.Cleanup(func() {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Error(err)
		}
		<-ended
		if err := cmd.Wait(); err != nil || problems.Len() > 0 {
			t.Errorf("nginx ended with %v and the log\n%s", err, problems)
		}
	})
	select {
	case <-listening:
	case <-ended:
		t.Fatal("nginx ended before it listened")
	}
	return "https://" + strings.Replace(address, "127.0.0.1", "images.test", 1)
}

// runNginx starts nginx. problems are the warnings and errors in its log, valid after ended.
func runNginx(t testing.TB, cmd *exec.Cmd) (listening <-chan struct{}, problems *bytes.Buffer, ended <-chan struct{}) {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	started, done := make(chan struct{}), make(chan struct{})
	problems = &bytes.Buffer{}
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stderr)
		for once := sync.OnceFunc(func() { close(started) }); lines.Scan(); {
			switch line := lines.Bytes(); {
			case bytes.Contains(line, []byte("[notice]")):
				once() // nginx logs the first one when it listens
			default:
				problems.Write(append(line, '\n'))
			}
		}
	}()
	return started, problems, done
}

// The page can be used behind the proxy of the documents, below a path and on a host name of its own.
func TestReverseProxy(t *testing.T) {
	for name, prefix := range map[string]string{"path": "/backing-images", "host": ""} {
		t.Run(name, func(t *testing.T) {
			flags := withTokens(t)
			if prefix != "" {
				flags = append(flags, "--web-prefix", prefix)
			}
			d := newDaemon(t, oneDisk+"images: {windows: {source: {upload: {}}}}\n", flags...)
			d.token = adminToken
			d.await("/images/windows", "0 of 1 ready")
			site := newNginx(t, d)
			d.url, d.trust = site+prefix, newTrust(t)

			tab := newTrustingTab(t)
			signIn(tab, d, adminToken)
			checkSecureCookie(tab, site)
			tab.run(evaluate("loaded = true"))
			d.commit("debian.yaml", "images: {debian: {source: {upload: {}}}}\n")
			tab.awaitText("#matrix", "debian")
			if !eval[bool](tab, "loaded") {
				t.Error("the page was loaded again")
			}

			file := filepath.Join(t.TempDir(), "windows.raw")
			image := bytes.Join([][]byte{content, make([]byte, 12<<20), content}, nil) // two pieces, and zeros between them
			files.Put(t, string(image), file)
			tab.load(click(`#matrix a[href$="/images/windows"]`))
			tab.run(chromedp.SetUploadFiles(chromedp.CSS("#file"), []string{file}))
			tab.awaitText("#facts", "1 of 1 ready")
			if got := download(tab); !bytes.Equal(got, image) {
				t.Errorf("the download has %d bytes that differ from those of the upload", len(got))
			}
			signOut(tab, d)
			tab.checkOwnRequests(site)
		})
	}
}

// A caller of the proxy who guesses tokens does not keep others from signing in, and a browser that sends only Origin can sign in.
func TestSignInBehindAReverseProxy(t *testing.T) {
	d := newDaemon(t, oneDisk, withTokens(t)...)
	site := newNginx(t, d)
	attempt := func(from, token string) int {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		trust := newTrust(t)
		trust.ServerName = "images.test"
		transport := &http.Transport{DialContext: dialer.DialContext, TLSClientConfig: trust}
		defer transport.CloseIdleConnections()
		r, err := http.NewRequestWithContext(t.Context(), "POST", strings.Replace(site, "images.test", "127.0.0.1", 1)+"/signin", strings.NewReader(url.Values{"token": {token}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = strings.TrimPrefix(site, "https://")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", site)
		r.Header.Set("X-Forwarded-For", "198.51.100.1") // the caller cannot choose where its attempts count
		response, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		return response.StatusCode
	}
	for range 5 {
		if got := attempt("127.0.0.2", "wrong"); got != http.StatusUnauthorized {
			t.Fatalf("a wrong token: status %d", got)
		}
	}
	for from, want := range map[string]int{"127.0.0.2": http.StatusTooManyRequests, "127.0.0.3": http.StatusSeeOther} {
		if got := attempt(from, adminToken); got != want {
			t.Errorf("after the wrong tokens, the right one from %s: status %d, want %d", from, got, want)
		}
	}
}
