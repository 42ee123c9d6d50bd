package api

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/certtest"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

// hostilePaths returns paths with which an attacker tries to read other files.
func hostilePaths() []string {
	var paths []string
	for _, name := range []string{
		"..", ".", "%2e%2e", "..%2f..%2fsecret", "%2f%2e%2e%2fsecret", "/etc/passwd", "%2fetc%2fpasswd", "parrot%00", "parrot%2f..", "%5c..%5csecret",
		"PARROT", "a", strings.Repeat("x", 300), "%ff%fe", "-parrot", "parrot-6846a0b2%2fbacking.record", "*", "parrot%0d%0aX-Evil:%201",
	} {
		paths = append(paths,
			"/v1/images/"+name+"/copies", "/v1/images/"+name+"/6846a0b2/data?disk=disk1", "/v1/images/parrot/"+name+"/data?disk=disk1",
			"/v1/images/"+name+"/6846a0b2/manifest?disk=disk1", "/v1/images/parrot/6846a0b2/data?disk="+name, "/v1/images/parrot/6846a0b2/"+name)
	}
	return append(paths, "/secret", "/../secret", "//secret", "/v1/../../secret", "/v1/images/../../secret", "/v1/images/parrot/6846a0b2/data/../../../../../secret",
		"/v1/%2e%2e/secret", "http://127.0.0.1/secret", "/debug/pprof/", "/v1/state/", "//v1/state", "/v1/./state", "/V1/STATE", "/v1/images/parrot/6846a0b2/data")
}

func TestHostilePathsReadNothing(t *testing.T) {
	f := startDaemon(t, localAuthorizer(t))
	for _, path := range hostilePaths() {
		if status, body := f.send("GET "+path+" HTTP/1.1", "Host: localhost"); status < 400 || strings.Contains(body, secretText) {
			t.Errorf("%s: %d %.200s", path, status, body)
		}
	}
}

func TestRequestsWithoutARoleReadNothing(t *testing.T) {
	for name, a := range map[string]*auth.Authorizer{
		"token": newAuthorizer(t, writeTokens(t, "peer reads-0123456789"), auth.TLSFiles{}),
		"TLS":   newAuthorizer(t, "", writeCertificates(t)),
	} {
		f := startDaemon(t, a)
		paths := append(hostilePaths(), "/none", "/readyz/", "/metrics", "/v1/status", "/v1/state", "/v1/state?wait=30s", "/v1/images/parrot/copies", imageData,
			"/v1/images/parrot/6846a0b2/manifest?disk=disk1", "/v1/images/parrot/verify", "/healthz/", "/healthz/../v1/state", "//healthz", "/healthz%2f", "/%68ealthz/x")
		for i, path := range paths {
			for j, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PRI"} {
				if race.Enabled && (i+j)%4 != 0 {
					continue
				}
				status, body := f.send(method+" "+path+" HTTP/1.1", "Host: localhost", "Content-Length: 0", "Authorization: Bearer guess", "X-Forwarded-For: 127.0.0.1")
				if status != 0 && status != 400 && status != 401 && status != 403 && status != 404 || strings.Contains(body, secretText) {
					t.Errorf("%s: %s %s: %d %s", name, method, path, status, body)
				}
				if status == 404 && !strings.Contains(path, "healthz") {
					t.Errorf("%s: %s %s reveals that the path does not exist: %s", name, method, path, body)
				}
			}
		}
		if status, body := f.send("GET /healthz HTTP/1.1", "Host: x"); status != 200 {
			t.Errorf("%s: health is %d %s", name, status, body)
		}
	}
}

func TestRangesAreBounded(t *testing.T) {
	f := startDaemon(t, localAuthorizer(t))
	for _, tt := range []struct {
		ranges string
		status int
		size   int
	}{
		{"bytes=0-0", 206, 1},
		{"bytes=1048576-2097151", 206, 1 << 20},
		{"bytes=0-99999999999999999999999999", 0, 0},
		{"bytes=9223372036854775807-9223372036854775807", 416, 0},
		{"bytes=3145728-", 416, 0},
		{"bytes=-1", 0, 0}, {"bytes=--1", 400, 0}, {"bytes=-0", 0, 0}, {"bytes=5-2", 416, 0}, {"bytes=0--5", 400, 0},
		{"bytes=-9223372036854775808", 0, 0},
		{"bytes=0-1,3-4", 400, 0}, {"bytes=" + strings.Repeat("0-1,", 2000) + "0-1", 400, 0},
		{"bytes=", 400, 0}, {"chunks=0-1", 0, 0}, {"bytes=0x10-0x20", 400, 0}, {"bytes=1e3-1e4", 400, 0}, {"bytes=\x00-", 400, 0},
	} {
		status, body := f.send("GET "+imageData+" HTTP/1.1", "Host: localhost", "Range: "+tt.ranges)
		switch {
		case status == 206 && len(body) > 3<<20, status == 200, status == 0, status >= 500:
			t.Errorf("%.60q: %d with %d bytes", tt.ranges, status, len(body))
		case tt.status != 0 && (status != tt.status || tt.size > 0 && len(body) != tt.size):
			t.Errorf("%.60q: %d with %d bytes, want %d with %d", tt.ranges, status, len(body), tt.status, tt.size)
		}
	}
}

func TestHeadersAreBounded(t *testing.T) {
	f := startDaemon(t, localAuthorizer(t))
	for name, line := range map[string]string{
		"a million headers": "X-Y: z\r\n", "one huge header": strings.Repeat("x", 4096), "a huge address": "",
	} {
		conn := f.connect()
		begin := "GET /v1/state HTTP/1.1\r\nHost: localhost\r\n"
		if name == "one huge header" {
			begin += "X-Y: "
		}
		if name == "a huge address" {
			begin, line = "GET /", strings.Repeat("x", 4096)
		}
		answered := make(chan string)
		go func() {
			first, _ := bufio.NewReader(conn).ReadString('\n') // the server may reset the connection before it
			answered <- first
		}()
		if _, err := io.WriteString(conn, begin); err != nil {
			t.Fatal(err)
		}
		sent := 0
		for range 1_000_000 {
			n, err := io.WriteString(conn, line)
			if sent += n; err != nil {
				break
			}
		}
		if first := <-answered; first != "" && !strings.Contains(first, "431") || sent > 16<<20 {
			t.Errorf("%s: the response is %q after %d bytes", name, first, sent)
		}
	}
	// Headers within the limit are accepted.
	if status, body := f.send("GET /healthz HTTP/1.1", "Host: localhost", strings.Repeat("X-Y: z\r\n", 1000)+"X-Z: z"); status != 200 {
		t.Errorf("1,000 headers: %d %s", status, body)
	}
}

func TestRequestBodiesAreNotAllowed(t *testing.T) {
	f := startDaemon(t, localAuthorizer(t))
	for _, method := range []string{"GET", "POST"} {
		for _, path := range []string{"/healthz", "/v1/state", "/v1/status", imageData, "/v1/images/parrot/verify"} {
			for _, length := range []string{"Content-Length: 1099511627776", "Transfer-Encoding: chunked", "Content-Length: 1"} {
				status, body := f.send(method+" "+path+" HTTP/1.1", "Host: localhost", length)
				if status != 413 {
					t.Errorf("%s %s with %s: %d %s", method, path, length, status, body)
				}
			}
		}
	}
	for _, length := range []string{"Content-Length: -1", "Content-Length: 99999999999999999999", "Content-Length: 1\r\nContent-Length: 2", "Transfer-Encoding: evil"} {
		if status, body := f.send("POST /v1/images/parrot/verify HTTP/1.1", "Host: localhost", length); status != 400 && status != 501 {
			t.Errorf("%s: %d %s", length, status, body)
		}
	}
	// A body is not read to its end.
	conn := f.connect()
	if _, err := io.WriteString(conn, "POST /v1/images/parrot/verify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1099511627776\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	sent, block := 0, make([]byte, 64<<10)
	for {
		n, err := conn.Write(block)
		if sent += n; err != nil {
			break
		}
		if sent > 64<<20 {
			t.Fatalf("the server reads %d bytes of a body", sent)
		}
	}
}

// HTTP/2 has limits of its own for streams, headers and windows, so no daemon speaks it: not with prior
// knowledge, not after an upgrade, and not after a negotiation by TLS.
func TestHTTP2IsNotSpoken(t *testing.T) {
	for name, a := range map[string]*auth.Authorizer{
		"local": localAuthorizer(t),
		"TLS":   newAuthorizer(t, "", writeCertificates(t)),
	} {
		d := startDaemon(t, a)
		// The frame is empty settings, which a client sends after its preface.
		conn := d.connect()
		if _, err := io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(conn) // an HTTP/2 server would keep the connection
		if !bytes.HasPrefix(answer, []byte("HTTP/1.1 4")) && !bytes.HasPrefix(answer, []byte("HTTP/1.1 505 ")) {
			t.Errorf("%s: prior knowledge: %.60q, error %v", name, answer, err)
		}
		status, _ := d.send("GET /healthz HTTP/1.1", "Host: localhost", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
		if status != 200 {
			t.Errorf("%s: the response to an upgrade is %d, want the 200 of HTTP/1.1", name, status)
		}
	}
	d := startDaemon(t, newAuthorizer(t, "", writeCertificates(t)))
	for want, offer := range map[string][]string{"http/1.1": {"h2", "http/1.1"}, "": {"h2"}} {
		conn, err := tls.Dial("tcp", d.address, &tls.Config{InsecureSkipVerify: true, NextProtos: offer})
		if want == "" {
			if err == nil {
				t.Errorf("%v was accepted as %q", offer, conn.ConnectionState().NegotiatedProtocol)
				conn.Close()
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().NegotiatedProtocol; got != want {
			t.Errorf("%v is negotiated as %q, want %q", offer, got, want)
		}
		conn.Close()
	}
}

func writeTokens(t *testing.T, text string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "tokens")
	writeFile(t, file, text)
	return file
}

func writeCertificates(t *testing.T) auth.TLSFiles {
	t.Helper()
	authority, err := certtest.NewAuthority("test")
	if err != nil {
		t.Fatal(err)
	}
	c, err := authority.Issue("server", nil)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	f := auth.TLSFiles{Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
	writeFile(t, f.Cert, string(c.Cert))
	writeFile(t, f.Key, string(c.Key))
	writeFile(t, f.CA, string(authority.PEM()))
	return f
}
