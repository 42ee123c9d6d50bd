package api

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/internal/testx/race"
)

const (
	peerToken      = "Bearer 0123456789a-peer"
	tokensWithPeer = "peer 0123456789a-peer\nadmin 0123456789a-admin"
	refusedUpload  = "POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
)

// connectFrom returns a connection from a local address.
func (d *daemon) connectFrom(host string) net.Conn {
	d.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(host)}, Timeout: timeout}
	conn, err := dialer.Dial("tcp", d.address)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		d.t.Fatal(err)
	}
	if d.tls {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	return conn
}

// request sends text from a local address and returns the status of the response and whether the
// server closed the connection after it. Status 0 means that there is no response.
func (d *daemon) request(from, text string) (status int, closed bool) {
	d.t.Helper()
	conn := d.connectFrom(from)
	if _, err := io.WriteString(conn, text); err != nil {
		return 0, true
	}
	return readResponse(conn)
}

func readResponse(conn net.Conn) (status int, closed bool) {
	in := bufio.NewReader(conn)
	response, err := http.ReadResponse(in, nil)
	if err != nil {
		return 0, !errors.Is(err, os.ErrDeadlineExceeded)
	}
	_, err = io.Copy(io.Discard, response.Body)
	response.Body.Close()
	if err == nil {
		_, err = in.ReadByte()
	}
	return response.StatusCode, err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
}

func authorizers(t *testing.T) map[string]*auth.Authorizer {
	return map[string]*auth.Authorizer{
		"token": newAuthorizer(t, writeTokens(t, tokensWithPeer), auth.TLSFiles{}),
		"TLS":   newAuthorizer(t, writeTokens(t, tokensWithPeer), writeCertificates(t)),
	}
}

func TestRefusedRequestEndsWithoutItsBody(t *testing.T) {
	for name, a := range authorizers(t) {
		d := startDaemon(t, a)
		for text, want := range map[string]int{
			refusedUpload: 401,
			"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n":                                       413,
			"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n":                               413,
			"GET /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n123":                                    401,
			"GET /v1/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\nAuthorization: " + peerToken + "\r\n\r\n": 413,
		} {
			if status, closed := d.request("127.0.0.1", text); status != want || !closed {
				t.Errorf("%s: %q: status %d, want %d; closed %v", name, text, status, want, closed)
			}
		}
	}
}

// honest sends requests of a caller with a role, each with a new connection, and returns how many
// of them were served.
func (d *daemon) honest(from string, n int) (served int) {
	d.t.Helper()
	for range n {
		status, _ := d.request(from, "GET /v1/status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: "+peerToken+"\r\n\r\n")
		if status == 200 {
			served++
		}
	}
	return served
}

// hold opens connections from addresses and sends text on each of them, which holds it.
func (d *daemon) hold(n int, text string, addresses ...string) []net.Conn {
	d.t.Helper()
	var held []net.Conn
	for i := range n {
		conn := d.connectFrom(addresses[i%len(addresses)])
		if text != "" {
			_, _ = io.WriteString(conn, text) // the server may have closed it
		}
		held = append(held, conn)
	}
	return held
}

func TestConnectionsWithoutARoleKeepNobodyOut(t *testing.T) {
	const honest = 20
	several := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6", "127.0.0.7", "127.0.0.8", "127.0.0.9"}
	for name, a := range authorizers(t) {
		d := startDaemon(t, a)
		for _, tt := range []struct {
			name, text string
			from       []string
		}{
			{"bodies that do not come, from the address of the caller", refusedUpload, []string{"127.0.0.1"}},
			{"bodies that do not come, from other addresses", refusedUpload, several},
			{"half a request, from the address of the caller", "GET /healthz HTTP/1.1\r\nX-Slow: ", []string{"127.0.0.1"}},
			{"half a request, from other addresses", "GET /healthz HTTP/1.1\r\nX-Slow: ", several},
			{"nothing, from other addresses", "", several},
			{"requests without a role that are served", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", several},
		} {
			if name == "TLS" && tt.text != "" && (race.Enabled || tt.text != refusedUpload) {
				continue // too many handshakes for a test
			}
			held := d.hold(1100, tt.text, tt.from...)
			if served := d.honest("127.0.0.1", honest); served != honest {
				t.Errorf("%s: %s: %d of %d requests with a role are served", name, tt.name, served, honest)
			}
			for _, conn := range held {
				conn.Close()
			}
		}
	}
}

func TestLongPollsKeepNobodyOut(t *testing.T) {
	const honest = 20
	d := startDaemon(t, newAuthorizer(t, writeTokens(t, tokensWithPeer), auth.TLSFiles{}))
	state, body := d.send("GET /v1/state HTTP/1.1", "Host: localhost", "Authorization: "+peerToken)
	if state != 200 {
		t.Fatalf("the state is %d %s", state, body)
	}
	conn := d.connect()
	if _, err := io.WriteString(conn, "GET /v1/state HTTP/1.1\r\nHost: localhost\r\nAuthorization: "+peerToken+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	poll := fmt.Sprintf("GET /v1/state?wait=60s HTTP/1.1\r\nHost: localhost\r\nIf-None-Match: %s\r\nAuthorization: %s\r\n\r\n", response.Header.Get("ETag"), peerToken)
	polls := d.hold(1100, poll, "127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6")
	if served := d.honest("127.0.0.1", honest); served != honest {
		t.Errorf("%d of %d requests beside long polls are served", served, honest)
	}
	for _, conn := range polls {
		conn.Close()
	}
}

// An uploader with a wrong token sends its body before it reads the response.
func TestRefusedSenderReceivesTheReason(t *testing.T) {
	d := startDaemon(t, newAuthorizer(t, writeTokens(t, tokensWithPeer), auth.TLSFiles{}))
	conn := d.connect()
	text := strings.Replace(refusedUpload, "Host: localhost", "Host: localhost\r\nAuthorization: Bearer wrong", 1)
	if _, err := conn.Write(append([]byte(text), bytes.Repeat([]byte{1}, 50000)...)); err != nil {
		t.Fatal(err)
	}
	if status, closed := readResponse(conn); status != 401 || !closed {
		t.Errorf("status %d, closed %v", status, closed)
	}
}
