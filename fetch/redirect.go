package fetch

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// maxRedirects is how many a download may take: CDNs need two or three.
const maxRedirects = 10

// follow gets u through whatever redirects there are, and returns where it ended.
// Each step is judged as if it had been declared, and sees no Referer and no
// cookies, and secrets only if it is of the origin that they are for.
func (n *network) follow(ctx context.Context, u *url.URL, header http.Header) (*http.Response, *url.URL, error) {
	seen := map[string]bool{}
	for range maxRedirects + 1 {
		if err := n.allow(u); err != nil {
			return nil, u, err
		}
		seen[u.String()] = true
		resp, err := n.roundTrip(ctx, u, header)
		if err != nil {
			return nil, u, requestError(ctx, err)
		}
		next, err := target(resp, u)
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

// allow judges where a request is about to go.
func (n *network) allow(u *url.URL) error {
	if n.client.AllowLoopback {
		return nil
	}
	if err := checkHost(u.Hostname()); err != nil {
		return &Error{Class: Config, Err: err}
	}
	return nil
}

// target returns where resp, the answer of from, redirects to, or nil.
func target(resp *http.Response, from *url.URL) (*url.URL, error) {
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
		return nil, failf(Config, "%s redirects to scheme %q: only http and https are followed", redact(from), to.Scheme)
	case from.Scheme == "https" && to.Scheme == "http":
		return nil, failf(Config, "%s redirects from https to http: refused", redact(from))
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
		return &Error{Class: Config, Err: refused}
	case broken(err):
		return &Error{Class: Dropped, Err: fmt.Errorf("connection broke before the answer: %w", bare(err))}
	case timedOut(err):
		return &Error{Class: Network, Err: fmt.Errorf("no answer in time: %w", bare(err))}
	}
	return &Error{Class: Network, Err: bare(err)}
}
