package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/url"

	"golang.org/x/net/http/httpproxy"
)

// network is how one transfer reaches servers: with whose credentials, through
// which proxy, and never to a host that is refused.
type network struct {
	client   *Client
	creds    *credentials
	own      string          // the origin that the credentials are for
	bare     *http.Transport // knows no secret
	personal *http.Transport // presents the client certificate
}

// network makes the connections of a transfer whose credentials are for the
// origin of declared, and for the hosts that the credentials themselves name.
func (c *Client) network(creds *credentials, declared address) (*network, error) {
	n := &network{client: c, creds: creds, own: origin(declared.url)}
	if creds.secret() && declared.url.Scheme == "http" && !n.mayTell(declared.url) {
		return nil, failf(Config, "credentials would cross the network in the clear: use https for %s", declared)
	}
	proxy, err := proxyFromEnvironment()
	if err != nil {
		return nil, err
	}
	n.bare, n.personal = n.transport(proxy, nil), n.transport(proxy, creds.certificate)
	return n, nil
}

func (n *network) close() {
	n.bare.CloseIdleConnections()
	n.personal.CloseIdleConnections()
}

// transport makes one that speaks HTTP/1.1 only: one large body at a time gains
// nothing from HTTP/2 and pays for its frames and flow control with up to a third
// of the rate. Connections are not kept, for there is one request to make on each;
// what a server sends past the end of a body would otherwise end up on stderr.
func (n *network) transport(p *proxy, cert *tls.Certificate) *http.Transport {
	t := n.client.times()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: n.creds.roots}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	return &http.Transport{
		Proxy:                  p.of,
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
	open := &net.Dialer{Timeout: n.client.times().connect}
	guarded := *open
	if !n.client.AllowLoopback {
		guarded.Control = refuseDial
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
	if n.mayTell(u) {
		n.creds.apply(r.Header)
		return n.personal.RoundTrip(r)
	}
	return n.bare.RoundTrip(r)
}

// mayTell reports whether u may see the credentials: its origin is the declared
// one, or named by the credentials, and nobody can listen on the way.
func (n *network) mayTell(u *url.URL) bool {
	if u.Scheme != "https" && !loopback(u.Hostname()) {
		return false
	}
	return origin(u) == n.own || n.creds.hosts[u.Host]
}

// credentialsHint says what to do about a server that wants credentials.
func (n *network) credentialsHint(u *url.URL) string {
	switch {
	case !n.creds.secret() && n.creds.certificate == nil:
		return "no credentials are declared for it"
	case !n.mayTell(u):
		return "the credentials are for another host, and this one did not see them (name it in their file \"hosts\")"
	}
	return "it does not accept the credentials"
}

// loopback reports whether a host as it is spelled is this machine.
func loopback(host string) bool {
	var refused *hostError
	return errors.As(checkHost(host), &refused) && refused.kind == "loopback"
}

// origin is what a browser would call so: scheme, host and port.
func origin(u *url.URL) string { return u.Scheme + "://" + hostPort(u) }

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
			return nil, failf(Config, "the proxy of the environment (%s_PROXY) is not an address", scheme)
		}
		if u != nil {
			p.addresses[hostPort(u)] = true
		}
	}
	return p, nil
}

func (p *proxy) of(r *http.Request) (*url.URL, error) { return p.find(r.URL) }
