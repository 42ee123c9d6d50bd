package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"syscall"
)

// unreachableError says that no daemon answered.
type unreachableError struct {
	base string
	err  error
}

func (e *unreachableError) Error() string {
	cause := e.err
	if u, ok := errors.AsType[*url.Error](cause); ok {
		cause = u.Err // it would print the address
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Sprintf("ask the daemon at %s: it does not answer in time", e.base)
	}
	return fmt.Sprintf("ask the daemon at %s: %v", e.base, cause)
}

func (e *unreachableError) Unwrap() error { return e.err }

// hint says what to do about it, or "".
func (e *unreachableError) hint() string {
	_, unknown := errors.AsType[x509.UnknownAuthorityError](e.err)
	_, misnamed := errors.AsType[x509.HostnameError](e.err)
	_, plain := errors.AsType[tls.RecordHeaderError](e.err)
	switch {
	case errors.Is(e.err, syscall.ECONNREFUSED):
		return "no daemon runs there: start it, or ask another one with --url; backing-image list, upload and download need none with --disk PATH"
	case errors.Is(e.err, context.DeadlineExceeded):
		return "it may hang, or the way to it may be broken: look at its log, or ask another one with --url"
	case plain || errors.Is(e.err, http.ErrSchemeMismatch):
		return "it does not speak TLS: write --url http://HOST:PORT"
	case unknown:
		return "name the authority that made its certificate with --tls-ca FILE"
	case misnamed:
		return "ask it with --url by a name or an address that its certificate is for"
	}
	return ""
}
