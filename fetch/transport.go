package fetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"golang.org/x/net/http/httpproxy"

	"github.com/seed-26586806/backing-image-manager/fetch/host"
)

// network connects one transfer to servers. It uses the credentials of the transfer, and a proxy from the credentials
// or the environment. It rejects hosts that are not allowed.
type network struct {
	client            *Client
	creds             *credentials
	credentialsOrigin string          // the origin that may receive the credentials
	anonymous         *http.Transport // without any secret
	authenticated     *http.Transport // presents the client certificate
}

// network returns the network of a transfer. Its credentials are sent to the origin of the address declared, and to
// the hosts that the credentials list.
func (c *Client) network(creds *credentials, declared address) (*network, error) {
	n := &network{client: c, creds: creds, credentialsOrigin: webOrigin(declared.url)}
	if creds.hasHeaders() && declared.url.Scheme == "http" && !n.mayAuthenticate(declared.url) {
		return nil, Errorf(BadConfig, "credentials would be sent unencrypted: use https for %s", declared)
	}
	proxy, err := creds.proxy()
	if err != nil {
		return nil, err
	}
	n.anonymous, n.authenticated = n.transport(proxy, nil), n.transport(proxy, creds.certificate)
	return n, nil
}

// keepConnections lets each connection serve several requests, for many small files or ranges, because each new
// connection costs a handshake. If the server closes an idle connection, the next request on it fails. Therefore
// the client closes an idle connection before the server does.
func (n *network) keepConnections() {
	for _, t := range []*http.Transport{n.anonymous, n.authenticated} {
		t.DisableKeepAlives = false
		t.MaxIdleConnsPerHost = 16
		t.IdleConnTimeout = 2 * time.Second
	}
}

func (n *network) close() {
	n.anonymous.CloseIdleConnections()
	n.authenticated.CloseIdleConnections()
}

// transport returns a transport for HTTP/1.1 only: for one large body at a time, the frames and the flow control of
// HTTP/2 cost up to a third of the rate. Each connection serves one request, unless keepConnections is called. A kept
// connection has a side effect: net/http logs, by package log, bytes that a server sends after the end of a body.
func (n *network) transport(p *proxy, cert *tls.Certificate) *http.Transport {
	t := n.client.timings()
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: n.creds.roots}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	return &http.Transport{
		Proxy:                  func(r *http.Request) (*url.URL, error) { return p.find(r.URL) },
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

// dialer rejects the hosts that checkDial rejects, but allows proxies, because the operator
// configured them.
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

// roundTrip sends one request. It adds the credentials if u may receive them.
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

// mayAuthenticate reports whether u may receive the credentials. Its origin must be the declared origin, or its host
// must be in the credentials. The connection must be encrypted or local.
func (n *network) mayAuthenticate(u *url.URL) bool {
	if u.Scheme != "https" && host.Of(u.Hostname()) != host.Loopback {
		return false
	}
	return webOrigin(u) == n.credentialsOrigin || n.creds.hosts[u.Host]
}

// credentialsHint returns a hint for a server that requires credentials.
func (n *network) credentialsHint(u *url.URL) string {
	switch {
	case !n.creds.hasHeaders() && n.creds.certificate == nil:
		return "no credentials are declared for it"
	case !n.mayAuthenticate(u):
		return "the credentials are for another host and were not sent (to send them, add the host to the file \"hosts\" of the credentials)"
	}
	return "it does not accept the credentials"
}

// webOrigin returns the origin of u as browsers define it: scheme, host and port.
func webOrigin(u *url.URL) string { return u.Scheme + "://" + hostPort(u) }

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// proxy is the configuration of the proxies of one transfer.
type proxy struct {
	find      func(*url.URL) (*url.URL, error)
	addresses map[string]bool // host and port of the proxies themselves, as they are dialed
}

// proxy reads the environment for each transfer, because net/http would cache it. As in Longhorn, a variable in the
// credentials has precedence over the environment.
func (c *credentials) proxy() (*proxy, error) {
	config, all := httpproxy.FromEnvironment(), cmp.Or(os.Getenv("ALL_PROXY"), os.Getenv("all_proxy"))
	config.HTTPProxy = cmp.Or(c.files["HTTP_PROXY"], config.HTTPProxy, all)
	config.HTTPSProxy = cmp.Or(c.files["HTTPS_PROXY"], config.HTTPSProxy, all)
	config.NoProxy = cmp.Or(c.files["NO_PROXY"], config.NoProxy)
	p := &proxy{find: config.ProxyFunc(), addresses: map[string]bool{}}
	for _, scheme := range []string{"http", "https"} {
		// ".invalid" is a reserved domain: NO_PROXY matches it only if NO_PROXY is "*".
		u, err := p.find(&url.URL{Scheme: scheme, Host: "proxied.invalid"})
		if err != nil { // err contains the address, which may contain a password
			return nil, Errorf(BadConfig, "the proxy for %s in the credentials or the environment is not a valid address: write it like http://HOST:PORT", scheme)
		}
		if u != nil {
			p.addresses[hostPort(u)] = true
		}
	}
	return p, nil
}

// maxRedirects is the maximum number of redirects of one request. CDNs need two or three.
const maxRedirects = 10

// follow sends a request for u, follows redirects, and returns the last response and its URL. It
// checks the target of each redirect like a declared address. No request has a Referer or cookies,
// and secrets are not sent to another origin.
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
			return nil, u, Errorf(Refused, "redirect loop: %s redirects back to %s", redact(u), redact(next))
		}
		u = next
	}
	return nil, u, Errorf(Refused, "more than %d redirects, the last one to %s", maxRedirects, redact(u))
}

// checkHost checks the host of the next request.
func (n *network) checkHost(u *url.URL) error {
	if n.client.AllowLoopback {
		return nil
	}
	if err := checkHost(u.Hostname()); err != nil {
		return &Error{Class: BadConfig, Err: err}
	}
	return nil
}

// redirectTarget returns the redirect target of resp, or nil if resp is not a redirect. from is the
// address of the request.
func redirectTarget(resp *http.Response, from *url.URL) (*url.URL, error) {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
		http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
	default:
		return nil, nil
	}
	to, err := from.Parse(resp.Header.Get("Location"))
	if err != nil || resp.Header.Get("Location") == "" { // err contains the whole address
		return nil, Errorf(Refused, "%s redirects without a usable Location", redact(from))
	}
	switch {
	case to.Scheme != "http" && to.Scheme != "https":
		return nil, Errorf(BadConfig, "%s redirects to scheme %q: only http and https are followed", redact(from), to.Scheme)
	case from.Scheme == "https" && to.Scheme == "http":
		return nil, Errorf(BadConfig, "%s redirects from https to http, which is not allowed: declare another address", redact(from))
	case to.Hostname() == "":
		return nil, Errorf(Refused, "%s redirects to an address without a host", redact(from))
	}
	to.User, to.Fragment = nil, ""
	return to, nil
}

// requestError classifies an error of a request without a response.
func requestError(ctx context.Context, err error) error {
	var refused *hostError
	var late net.Error
	switch {
	case context.Cause(ctx) != nil:
		return context.Cause(ctx)
	case errors.As(err, &refused):
		return &Error{Class: BadConfig, Err: refused}
	case isConnectionLost(err):
		return &Error{Class: Dropped, Err: fmt.Errorf("connection broke before the response: %w", withoutURL(err))}
	case errors.As(err, &late) && late.Timeout():
		return &Error{Class: Network, Err: fmt.Errorf("no response in time: %w", withoutURL(err))}
	}
	return &Error{Class: Network, Err: withoutURL(err)}
}
