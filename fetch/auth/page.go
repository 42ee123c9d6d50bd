package auth

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

var (
	errCrossOrigin = httperror.New(http.StatusForbidden, "cross-origin requests are not allowed")
	errCrossSite   = httperror.New(http.StatusForbidden, "requests of other web sites are not allowed: open the address directly, or use a program that is no browser")
	errOtherHost   = httperror.New(http.StatusForbidden, "requests for another host are not allowed: use localhost")
	errUnknownHost = httperror.New(http.StatusForbidden, "requests for this host name are not allowed: use an IP address, localhost, a name of the daemon's certificate, or the name or address of a declared node")
)

// checkPage returns an error for a request that a foreign web page can cause in a browser. Such a
// request has an Origin header, the Sec-Fetch-Site header of another site or, after DNS rebinding,
// the Host header of another host. Browsers send "none" if a person opens the address.
func (a *Authorizer) checkPage(r *http.Request, isDeclared func(host string) bool) error {
	for _, origin := range r.Header.Values("Origin") {
		if origin != "" {
			return errCrossOrigin
		}
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site != "none" && site != "same-origin" {
			return errCrossSite
		}
	}
	host := hostName(r.Host)
	switch {
	case a.empty() && !a.insecure:
		if !isLoopback(host) && host != strings.ToLower(a.host) {
			return errOtherHost
		}
	case !a.isOwnHost(host, isDeclared):
		return errUnknownHost
	}
	return nil
}

// hostName returns the host of a Host header in lower case, without port and brackets.
func hostName(header string) string {
	name, _, err := net.SplitHostPort(header)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
	}
	return strings.ToLower(name)
}

// isOwnHost reports whether a host name can be that of this daemon. Rebinding needs a name that the
// attacker owns. Nobody owns an IP address or localhost in DNS, and the other names are those that the
// operator gave to the daemon: in its certificate, in --listen, and in the declared nodes.
func (a *Authorizer) isOwnHost(host string, isDeclared func(host string) bool) bool {
	if _, err := netip.ParseAddr(host); err == nil || host == "localhost" {
		return true
	}
	switch {
	case host == "":
		return false
	case host == strings.ToLower(a.host), isDeclared(host):
		return true
	}
	return a.identity != nil && a.identity.current().isValidFor(host)
}
