package main

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// guard decides who may ask a daemon what. With a token, whoever knows it may ask
// anything. Without one the daemon listens on loopback only, and who can connect
// may ask anything, unless a web page in a browser does it: its request has an
// Origin, or a Host that somebody's name service leads here.
type guard struct {
	token    string
	insecure bool   // anybody may connect, and the Host can be any
	host     string // that is listened on
}

// newGuard returns the guard for a listen address, or says what is missing to
// listen there.
func newGuard(listen, token string, insecure bool) (guard, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return guard{}, fmt.Errorf("--listen is %q: write HOST:PORT", listen)
	}
	if !loopback(host) && token == "" && !insecure {
		return guard{}, fmt.Errorf("--listen %s can be reached from other machines: give a --token-file, or --insecure to let everybody in", listen)
	}
	return guard{token: token, insecure: insecure, host: host}, nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// refuse says why a request is refused, and with which status; 0: it is not.
func (g guard) refuse(r *http.Request) (status int, why string) {
	switch {
	case r.URL.Path == "/healthz":
		return 0, ""
	case g.token != "":
		if !g.knows(r.Header.Get("Authorization")) {
			return http.StatusUnauthorized, "a token is needed: send Authorization: Bearer …"
		}
		return 0, ""
	case r.Header.Get("Origin") != "":
		return http.StatusForbidden, "requests of web pages are refused"
	case g.insecure:
		return 0, ""
	case !g.local(r.RemoteAddr):
		return http.StatusForbidden, "only this machine may ask"
	case !g.ours(r.Host):
		return http.StatusForbidden, "requests for another host are refused: ask for localhost"
	}
	return 0, ""
}

func (g guard) knows(authorization string) bool {
	token, ok := strings.CutPrefix(authorization, "Bearer ")
	// Sums have the same length, whatever the token's is.
	got, want := sha256.Sum256([]byte(token)), sha256.Sum256([]byte(g.token))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && ok
}

func (guard) local(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	return err == nil && loopback(host)
}

func (g guard) ours(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return loopback(strings.ToLower(name)) || name != "" && name == g.host
}
