package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// role is what a caller may do. A higher one may do all that a lower one may.
type role int

const (
	nobody    role = iota // may know that the daemon is alive
	peerRole              // may read
	adminRole             // may ask for deeds
)

func (r role) String() string { return [...]string{"nobody", "peer", "admin"}[r] }

// guard decides who may ask a daemon what. With tokens or TLS, callers have the role
// that their token or certificate gives. Without both the daemon listens on
// loopback only, and who can connect may ask anything, unless a web page in a
// browser does it: its request has an Origin, or a Host that somebody's name service
// leads here.
type guard struct {
	tokens   *reloaded[tokens]    // nil: none are asked for
	identity *reloaded[*identity] // nil: no TLS
	insecure bool                 // without both, anybody may connect, and the Host can be any
	host     string               // that is listened on
}

// newGuard reads the tokens and the certificates, where files of them are given.
func newGuard(log *slog.Logger, tokenFile string, files tlsFlags) (g guard, err error) {
	if tokenFile != "" {
		if g.tokens, err = newTokens(log, tokenFile); err != nil {
			return guard{}, err
		}
	}
	if files.given() {
		if g.identity, err = newIdentity(log, files); err != nil {
			return guard{}, err
		}
	}
	return g, nil
}

// listeningOn returns the guard for a listen address, or says what is missing to
// listen there.
func (g guard) listeningOn(listen string) (guard, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return guard{}, fmt.Errorf("--listen is %q: write HOST:PORT", listen)
	}
	g.host = host
	if !loopback(host) && g.open() && !g.insecure {
		return guard{}, fmt.Errorf("--listen %s can be reached from other machines: give a --token-file, or --tls-cert, --tls-key and --tls-ca, or --insecure to let everybody in", listen)
	}
	return g, nil
}

// open reports whether callers need not show who they are.
func (g guard) open() bool { return g.tokens == nil && g.identity == nil }

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// credentials are what this daemon shows to others: the token and the configuration
// of TLS as they are when a connection or a request is made. Each is nil if there is
// none.
func (g guard) credentials() (token func() string, config func() *tls.Config) {
	if g.tokens != nil {
		token = func() string { return g.tokens.now().weakest() }
	}
	if g.identity != nil {
		config = func() *tls.Config { return g.identity.now().client }
	}
	return token, config
}

// refusal is why a request is not answered.
type refusal struct {
	status int
	why    string
}

// admit returns the role of who sends a request, or why nobody may send it.
func (g guard) admit(r *http.Request) (role, *refusal) {
	if g.open() {
		if why := g.foreign(r); why != "" {
			return nobody, &refusal{http.StatusForbidden, why}
		}
		return adminRole, nil
	}
	known, shown := nobody, nobody
	if g.tokens != nil {
		known = g.tokens.now().role(r.Header.Get("Authorization"))
	}
	if g.identity != nil {
		shown = g.identity.now().role(r.TLS, time.Now())
	}
	// A browser shows its certificate for any page, and sends a token for none.
	page := r.Header.Get("Origin") != ""
	switch {
	case page && known == nobody && shown != nobody:
		return nobody, &refusal{http.StatusForbidden, "requests of web pages are refused"}
	case page:
		shown = nobody
	}
	if had := max(known, shown); had != nobody {
		return had, nil
	}
	if g.tokens != nil && r.Header.Get("Authorization") != "" {
		return nobody, &refusal{http.StatusUnauthorized, "the token that was sent is not known here"}
	}
	return nobody, g.unknown()
}

// unknown says what a caller has to show.
func (g guard) unknown() *refusal {
	switch {
	case g.identity == nil:
		return &refusal{http.StatusUnauthorized, "a token is needed: send Authorization: Bearer …"}
	case g.tokens == nil:
		return &refusal{http.StatusForbidden, "a client certificate is needed"}
	}
	return &refusal{http.StatusUnauthorized, "a client certificate is needed, or a token: send Authorization: Bearer …"}
}

// foreign says what is wrong with a request to a daemon that asks for no proof.
func (g guard) foreign(r *http.Request) string {
	switch {
	case r.Header.Get("Origin") != "":
		return "requests of web pages are refused"
	case g.insecure:
		return ""
	case !g.local(r.RemoteAddr):
		return "only this machine may ask"
	case !g.ours(r.Host):
		return "requests for another host are refused: ask for localhost"
	}
	return ""
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
