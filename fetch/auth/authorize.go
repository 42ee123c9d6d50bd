// Package auth decides which callers may use a daemon, and provides the credentials that a process
// sends to a daemon.
//
// There are three roles. RoleNone may read whether the daemon is alive and ready. RolePeer may also
// read the status, the state for peers, and images. RoleAdmin may also change state. If a caller has
// a token and a client certificate, it has the higher of the two roles.
//
// Credentials are the token file and the TLS files of a process. A running daemon reads them again
// when they change, so that secrets can be replaced without a restart. An Authorizer checks each
// request against the credentials. A daemon without credentials accepts only requests from its own
// machine, and no requests of web pages.
//
// A ConnLimiter limits the number of connections to a server, in total and for each address.
//
// Reading order: authorize.go, credentials.go, tokens.go, tls.go, reload.go, limit.go.
package auth

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
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
	insecure bool   // without credentials, accept every caller and every Host header
	host     string // of the listen address
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
	return &Authorizer{c, insecure, host}, nil
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

// Authorize returns the role of the sender of a request. The error is an
// *httperror.Error with status 401 or 403.
func (a *Authorizer) Authorize(r *http.Request) (Role, error) {
	if a.empty() {
		if err := a.checkLocal(r); err != nil {
			return RoleNone, err
		}
		return RoleAdmin, nil
	}
	byToken, byCertificate := RoleNone, RoleNone
	if a.tokens != nil {
		byToken = a.tokens.current().role(r.Header.Get("Authorization"))
	}
	if a.identity != nil {
		byCertificate = a.identity.current().role(r.TLS, time.Now())
	}
	// A browser sends its client certificate for requests of any page, but only a page that knows the
	// token can send the token. Therefore only the token counts.
	if r.Header.Get("Origin") != "" {
		if byToken == RoleNone && byCertificate != RoleNone {
			return RoleNone, errCrossOrigin
		}
		byCertificate = RoleNone
	}
	if role := max(byToken, byCertificate); role != RoleNone {
		return role, nil
	}
	return RoleNone, a.explainDenial(r)
}

var errCrossOrigin = httperror.New(http.StatusForbidden, "cross-origin requests are not allowed")

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

// checkLocal checks a request to a daemon without credentials. A web page in a browser on the same
// machine can also send requests to loopback. Such requests have an Origin header or, after DNS
// rebinding, the Host header of another host.
func (a *Authorizer) checkLocal(r *http.Request) error {
	switch {
	case r.Header.Get("Origin") != "":
		return errCrossOrigin
	case a.insecure:
		return nil
	case !isLocalAddress(r.RemoteAddr):
		return httperror.New(http.StatusForbidden, "requests from other machines are not allowed")
	case !a.isOwnHost(r.Host):
		return httperror.New(http.StatusForbidden, "requests for another host are not allowed: use localhost")
	}
	return nil
}

func isLocalAddress(remote string) bool {
	host, _, err := net.SplitHostPort(remote)
	return err == nil && isLoopback(host)
}

// isOwnHost reports whether a Host header names loopback or the listen address.
func (a *Authorizer) isOwnHost(header string) bool {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return isLoopback(strings.ToLower(name)) || name != "" && name == a.host
}

func isLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}
