package auth

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

var (
	errCrossOrigin = httperror.New(http.StatusForbidden, "cross-origin requests are not allowed")
	errCrossSite   = httperror.New(http.StatusForbidden, "requests of other web sites are not allowed: open the address directly, or use a program that is no browser")
	errOtherHost   = httperror.New(http.StatusForbidden, "requests for another host are not allowed: use localhost")
	errUnknownHost = httperror.New(http.StatusForbidden, "requests for this host name are not allowed: use an IP address, localhost, a name of the daemon's certificate, or the name or address of a declared node")
)

// checkSite returns an error for a request that a page of another web site can cause in a browser. Such a
// request has the Origin or the Sec-Fetch-Site header of another site. Browsers send "none" if a person
// opens the address.
func checkSite(r *http.Request) error {
	sites := r.Header.Values("Sec-Fetch-Site")
	for _, site := range sites {
		if site != "none" && site != "same-origin" {
			return errCrossSite
		}
	}
	for _, origin := range r.Header.Values("Origin") {
		// Behind a proxy that does not send X-Forwarded-Proto, only the browser knows the scheme of the page.
		if origin != "" && !isOwnOrigin(r, origin) && !slices.Equal(sites, []string{"same-origin"}) {
			return errCrossOrigin
		}
	}
	return nil
}

// isOwnOrigin reports whether an origin is the origin of this daemon, as the browser sees it.
func isOwnOrigin(r *http.Request, origin string) bool {
	scheme := "http://"
	if isSecure(r) {
		scheme = "https://"
	}
	return r.Host != "" && strings.EqualFold(origin, scheme+r.Host)
}

// isNavigation reports whether a person opens the address by a link. Then the response is a page of its own.
func isNavigation(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Origin") == "" &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// checkHost returns an error for a request to a host name that is no name of the daemon, as after DNS rebinding.
func (a *Authorizer) checkHost(r *http.Request, isDeclared func(host string) bool) error {
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

// isOwnHost reports whether a host name can belong to this daemon. Rebinding needs a name that the
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
