// Package auth decides which callers may use a daemon, and provides the credentials that a process
// sends to a daemon.
//
// There are three roles. RoleNone may read whether the daemon is alive and ready. RolePeer may also
// read the status, the state for peers, and images. RoleAdmin may also change state. If a caller has
// a token and a client certificate, it has the higher of the two roles.
//
// Credentials are the token file and the TLS files of a process. A running daemon reads them again
// when they change, so that secrets can be replaced without a restart. An Authorizer checks each
// request against the credentials. A daemon without credentials and without --insecure accepts only
// requests from its own machine, and rejects those that a page of another web site causes.
//
// A ConnLimiter limits the number of connections to a server, and decides which connection is closed
// if there are too many. Callers without a role cannot displace callers with a role.
//
// Reading order: authorize.go, page.go, session.go, credentials.go, tokens.go, tls.go, reload.go, limit.go.
package auth

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// Role determines the allowed requests of a caller. A higher role includes the lower ones.
type Role int

// The roles of callers.
const (
	RoleNone  Role = iota // may read whether the daemon is alive and ready
	RolePeer              // may also read the status, the state and images
	RoleAdmin             // may also change state
)

func (r Role) String() string { return [...]string{"none", "peer", "admin"}[r] }

// Authorizer determines the roles of the callers of one daemon. It is safe for concurrent use.
type Authorizer struct {
	Credentials
	insecure bool   // without credentials, accept every caller
	host     string // of the listen address

	signedOut signedOut
	guesses   guesses
	forwarded guesses // through a proxy on this machine
}

// NewAuthorizer returns the Authorizer of a daemon that listens on address (HOST:PORT). Without
// credentials the address must be on loopback, unless insecure is set.
func NewAuthorizer(c Credentials, address string, insecure bool) (*Authorizer, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen is %q: write HOST:PORT", address)
	}
	if !isLoopback(host) && c.empty() && !insecure {
		return nil, fmt.Errorf("--listen %s can be reached from other machines: add --token-file, or --tls-cert, --tls-key and --tls-ca, or --insecure to accept every caller", address)
	}
	return &Authorizer{Credentials: c, insecure: insecure, host: host}, nil
}

// ServerTLS returns the TLS configuration for the server, or nil without TLS. The configuration
// always uses the current content of the files.
func (a *Authorizer) ServerTLS() *tls.Config {
	if a.identity == nil {
		return nil
	}
	config := baseTLS()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return a.identity.current().server, nil
	}
	return config
}

// Authorize returns the role of the sender of a request. isDeclared reports whether a host name, in lower
// case, belongs to a declared node. The error is an *httperror.Error with status 401 or 403.
//
// A token proves that the sender of the request knows it. The address of the caller, a client certificate
// and a session prove less: a browser sends the requests of every page from this address, with this
// certificate and this cookie. So they count only for a request that no foreign page can cause.
func (a *Authorizer) Authorize(r *http.Request, isDeclared func(host string) bool) (Role, error) {
	return a.authorize(r, isDeclared, checkSite)
}

// AuthorizePage is Authorize for the web page of the daemon. It also accepts a person who follows a link on another
// web site: that site can neither read nor embed the response, and reading changes nothing.
func (a *Authorizer) AuthorizePage(r *http.Request, isDeclared func(host string) bool) (Role, error) {
	if isNavigation(r) {
		return a.authorize(r, isDeclared, func(*http.Request) error { return nil })
	}
	return a.Authorize(r, isDeclared)
}

func (a *Authorizer) authorize(r *http.Request, isDeclared func(host string) bool, checkSite func(*http.Request) error) (Role, error) {
	byToken := RoleNone
	if a.tokens != nil {
		byToken = a.tokens.current().role(r.Header.Get("Authorization"))
	}
	ambient, denied := a.ambientRole(r)
	if ambient > byToken {
		if denied = cmp.Or(checkSite(r), a.checkHost(r, isDeclared)); denied != nil {
			ambient = RoleNone
		}
	}
	role := max(byToken, ambient)
	if s, ok := a.Session(r); ok && s.Role > role {
		// The host does not matter, because the browser sends the cookie only to the host that set it.
		failed := checkSite(r)
		if failed == nil && !s.hasRequestToken(r) {
			failed = errNoRequestToken
		}
		if failed == nil {
			return s.Role, nil
		}
		denied = failed
	}
	if role != RoleNone {
		return role, nil
	}
	return RoleNone, denied
}

// ambientRole returns the role of a caller by its address or its certificate. If the role is RoleNone, the
// error says what must change.
func (a *Authorizer) ambientRole(r *http.Request) (Role, error) {
	switch {
	case a.empty() && (a.insecure || isLocalAddress(r.RemoteAddr)):
		return RoleAdmin, nil
	case a.empty():
		return RoleNone, httperror.New(http.StatusForbidden, "requests from other machines are not allowed: start the daemon with --token-file or with TLS files")
	case a.identity != nil:
		if role := a.identity.current().role(r.TLS, time.Now()); role != RoleNone {
			return role, nil
		}
	}
	return RoleNone, a.explainDenial(r)
}

// explainDenial returns an error that names the credential that the caller must send.
func (a *Authorizer) explainDenial(r *http.Request) error {
	switch {
	case a.tokens != nil && r.Header.Get("Authorization") != "":
		return httperror.New(http.StatusUnauthorized, "the token is not valid")
	case a.identity == nil:
		return httperror.New(http.StatusUnauthorized, "a token is required: send Authorization: Bearer …")
	case a.tokens == nil:
		return httperror.New(http.StatusForbidden, "a client certificate is required")
	}
	return httperror.New(http.StatusUnauthorized, "a client certificate is required, or a token: send Authorization: Bearer …")
}

func isLocalAddress(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	return err == nil && isLoopback(host)
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
