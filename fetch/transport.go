package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"

	"golang.org/x/net/http/httpproxy"
)

// network is how one transfer reaches servers: with whose credentials, through
// which proxy, and never to a host that is refused.
type network struct {
	client            *Client
	creds             *credentials
	credentialsOrigin string          // the origin that the credentials are for
	anonymous         *http.Transport // knows no secret
	authenticated     *http.Transport // presents the client certificate
}

// network makes the connections of a transfer whose credentials are for the
// origin of declared, and for the hosts that the credentials themselves name.
func (c *Client) network(creds *credentials, declared address) (*network, error) {
	n := &network{client: c, creds: creds, credentialsOrigin: webOrigin(declared.url)}
	if creds.hasHeaders() && declared.url.Scheme == "http" && !n.mayAuthenticate(declared.url) {
		return nil, failf(BadConfig, "credentials would cross the network in the clear: use https for %s", declared)
	}
	proxy, err := proxyFromEnvironment()
	if err != nil {
		return nil, err
	}
	n.anonymous, n.authenticated = n.transport(proxy, nil), n.transport(proxy, creds.certificate)
	return n, nil
}

func (n *network) close() {
	n.anonymous.CloseIdleConnections()
	n.authenticated.CloseIdleConnections()
}

// transport makes one that speaks HTTP/1.1 only: one large body at a time gains
// nothing from HTTP/2 and pays for its frames and flow control with up to a third
// of the rate. Connections are not kept, for there is one request to make on each;
// what a server sends past the end of a body would otherwise end up on stderr.
func (n *network) transport(p *proxy, cert *tls.Certificate) *http.Transport {
	t := n.client.timings()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: n.creds.roots}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	return &http.Transport{
		Proxy:                  p.forRequest,
		DialContext:            n.dialer(p),
		TLSClientConfig:        config,
		TLSHandshakeTimeout:    t.connect,
		ResponseHeaderTimeout:  t.firstByte,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: 256 << 10,
		ReadBufferSize:         64 << 10,
		TLSNextProto:           map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
}

// dialer refuses what refuseDial refuses, except on the way to a proxy, which
// the operator has chosen.
func (n *network) dialer(p *proxy) func(context.Context, string, string) (net.Conn, error) {
	open := &net.Dialer{Timeout: n.client.timings().connect}
	guarded := *open
	if !n.client.AllowLoopback {
		guarded.Control = checkDial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if p.addresses[addr] {
			return open.DialContext(ctx, network, addr)
		}
		return guarded.DialContext(ctx, network, addr)
	}
}

// roundTrip makes one request, with the secrets if u is where they may go.
func (n *network) roundTrip(ctx context.Context, u *url.URL, header http.Header) (*http.Response, error) {
	r := (&http.Request{
		Method: http.MethodGet, URL: u, Host: u.Host, Header: header.Clone(),
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}).WithContext(ctx)
	if n.mayAuthenticate(u) {
		n.creds.setHeaders(r.Header)
		return n.authenticated.RoundTrip(r)
	}
	return n.anonymous.RoundTrip(r)
}

// mayAuthenticate reports whether u may see the credentials: its origin is the declared
// one, or named by the credentials, and nobody can listen on the way.
func (n *network) mayAuthenticate(u *url.URL) bool {
	if u.Scheme != "https" && !isLoopback(u.Hostname()) {
		return false
	}
	return webOrigin(u) == n.credentialsOrigin || n.creds.hosts[u.Host]
}

// credentialsHint says what to do about a server that wants credentials.
func (n *network) credentialsHint(u *url.URL) string {
	switch {
	case !n.creds.hasHeaders() && n.creds.certificate == nil:
		return "no credentials are declared for it"
	case !n.mayAuthenticate(u):
		return "the credentials are for another host, and this one did not see them (name it in their file \"hosts\")"
	}
	return "it does not accept the credentials"
}

// isLoopback reports whether a host as it is spelled is this machine.
func isLoopback(host string) bool {
	var refused *hostError
	return errors.As(checkHost(host), &refused) && refused.kind == "loopback"
}

// webOrigin is what a browser would call so: scheme, host and port.
func webOrigin(u *url.URL) string { return u.Scheme + "://" + hostPort(u) }

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// proxy is what the environment says about proxies.
type proxy struct {
	find      func(*url.URL) (*url.URL, error)
	addresses map[string]bool // of the proxies themselves, as they are dialled
}

// proxyFromEnvironment reads it anew: net/http would remember it for ever.
func proxyFromEnvironment() (*proxy, error) {
	p := &proxy{find: httpproxy.FromEnvironment().ProxyFunc(), addresses: map[string]bool{}}
	for _, scheme := range []string{"http", "https"} {
		// A name in a domain that nobody has, for which NO_PROXY holds only if it is "*".
		u, err := p.find(&url.URL{Scheme: scheme, Host: "proxied.invalid"})
		if err != nil { // the cause would print the address, which may hold a password
			return nil, failf(BadConfig, "the proxy of the environment (%s_PROXY) is not an address", scheme)
		}
		if u != nil {
			p.addresses[hostPort(u)] = true
		}
	}
	return p, nil
}

func (p *proxy) forRequest(r *http.Request) (*url.URL, error) { return p.find(r.URL) }

// hostError refuses a host that only this machine or its link can mean: an image
// from there would be another on every node, and a door to what listens there.
type hostError struct{ host, kind string }

func (e *hostError) Error() string {
	return fmt.Sprintf("host %s is a %s address: refused unless allowLoopbackSources is set", e.host, e.kind)
}

// checkHost judges a host as an address spells it; names that have to be
// resolved are judged when they are dialled.
func checkHost(host string) error {
	name := strings.TrimSuffix(strings.ToLower(host), ".")
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return &hostError{host, "loopback"}
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return nil
	}
	return checkIP(host, ip)
}

func checkIP(host string, ip netip.Addr) error {
	ip = ip.Unmap()
	switch {
	case ip.IsLoopback():
		return &hostError{host, "loopback"}
	case ip.IsUnspecified():
		return &hostError{host, "unspecified"}
	case ip.IsLinkLocalUnicast(), ip.IsLinkLocalMulticast(), ip.IsInterfaceLocalMulticast():
		return &hostError{host, "link-local"}
	}
	return nil
}

// checkDial is the Control of a net.Dialer: it sees the address that a name was
// resolved to, so that no name service can lead us where no address may.
func checkDial(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	return checkIP(ap.Addr().String(), ap.Addr())
}

// maxRedirects is how many a download may take: CDNs need two or three.
const maxRedirects = 10

// follow gets u through whatever redirects there are, and returns where it ended.
// Each step is judged as if it had been declared, and sees no Referer and no
// cookies, and secrets only if it is of the origin that they are for.
func (n *network) follow(ctx context.Context, u *url.URL, header http.Header) (*http.Response, *url.URL, error) {
	seen := map[string]bool{}
	for range maxRedirects + 1 {
		if err := n.checkHost(u); err != nil {
			return nil, u, err
		}
		seen[u.String()] = true
		resp, err := n.roundTrip(ctx, u, header)
		if err != nil {
			return nil, u, requestError(ctx, err)
		}
		next, err := redirectTarget(resp, u)
		if err != nil || next == nil {
			if err != nil {
				resp.Body.Close()
			}
			return resp, u, err
		}
		resp.Body.Close()
		if seen[next.String()] {
			return nil, u, failf(Refused, "redirect loop: %s leads back to %s", redact(u), redact(next))
		}
		u = next
	}
	return nil, u, failf(Refused, "more than %d redirects, the last one to %s", maxRedirects, redact(u))
}

// checkHost judges where a request is about to go.
func (n *network) checkHost(u *url.URL) error {
	if n.client.AllowLoopback {
		return nil
	}
	if err := checkHost(u.Hostname()); err != nil {
		return &Error{Class: BadConfig, Err: err}
	}
	return nil
}

// redirectTarget returns where resp, the answer of from, redirects to, or nil.
func redirectTarget(resp *http.Response, from *url.URL) (*url.URL, error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	to, err := from.Parse(resp.Header.Get("Location"))
	if err != nil || resp.Header.Get("Location") == "" { // the cause would print it whole
		return nil, failf(Refused, "%s redirects without a usable Location", redact(from))
	}
	switch {
	case to.Scheme != "http" && to.Scheme != "https":
		return nil, failf(BadConfig, "%s redirects to scheme %q: only http and https are followed", redact(from), to.Scheme)
	case from.Scheme == "https" && to.Scheme == "http":
		return nil, failf(BadConfig, "%s redirects from https to http: refused", redact(from))
	case to.Hostname() == "":
		return nil, failf(Refused, "%s redirects to an address without a host", redact(from))
	}
	to.User, to.Fragment = nil, ""
	return to, nil
}

// requestError gives its class to what kept a request from being answered.
func requestError(ctx context.Context, err error) error {
	var refused *hostError
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.As(err, &refused):
		return &Error{Class: BadConfig, Err: refused}
	case isConnectionLost(err):
		return &Error{Class: Dropped, Err: fmt.Errorf("connection broke before the answer: %w", withoutURL(err))}
	case isTimeout(err):
		return &Error{Class: Network, Err: fmt.Errorf("no answer in time: %w", withoutURL(err))}
	}
	return &Error{Class: Network, Err: withoutURL(err)}
}
