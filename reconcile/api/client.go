package api

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

const (
	clientTimeout = 30 * time.Second
	maxResponse   = 256 << 20 // the status of 10,000 images has some 10 MiB
)

// Client calls one daemon for the commands of a person. It is safe for concurrent use.
type Client struct {
	url         string
	credentials auth.Credentials
}

// NewClient returns a Client for the daemon at an address (http://HOST:PORT or
// https://HOST:PORT), with the token file, "" for none, and the TLS files. It does not
// connect.
func NewClient(address, tokenFile string, files auth.TLSFiles) (*Client, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("--url is not the address of a daemon: write http://HOST:PORT")
	case (files.Cert == "") != (files.Key == ""):
		return nil, errors.New("--tls-cert and --tls-key must be given together")
	case files.Given() && u.Scheme != "https":
		return nil, errors.New("--tls-cert, --tls-key and --tls-ca need a daemon with TLS: write --url https://HOST:PORT")
	}
	credentials, err := auth.Load(slog.New(slog.DiscardHandler), tokenFile, files)
	return &Client{strings.TrimRight(address, "/"), credentials}, err
}

// URL returns the address of the daemon as it was given. It may contain secrets.
func (c *Client) URL() string { return c.url }

// Address returns the address of the daemon without secrets, for messages.
func (c *Client) Address() string { return text.RedactURL(c.url) }

// Credentials returns the token, "" for none, and the TLS configuration for requests to the
// daemon.
func (c *Client) Credentials() (token string, config *tls.Config) { return c.credentials.ForCommand() }

// Status returns the status of the daemon.
func (c *Client) Status(ctx context.Context) (status.Status, error) {
	var s status.Status
	err := c.do(ctx, http.MethodGet, statusPath, &s)
	return s, err
}

// StatusAfter waits until the ETag of the status differs from the known one ("": none is known), and returns the status with its
// ETag. If it has not changed after the wait, the status is nil.
func (c *Client) StatusAfter(ctx context.Context, known string, wait time.Duration) (s *status.Status, etag string, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait+clientTimeout)
	defer cancel()
	query := url.Values{"wait": {wait.String()}}
	response, err := c.send(ctx, http.MethodGet, statusPath+"?"+query.Encode(), http.Header{"If-None-Match": {known}})
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotModified {
		return nil, known, nil
	}
	s = &status.Status{}
	if err := c.decode(response, s); err != nil {
		return nil, "", err
	}
	return s, response.Header.Get("ETag"), nil
}

// Verify requests that the daemon verifies every ready copy of an image on its disks. It
// does not wait for the result, which the status shows.
func (c *Client) Verify(ctx context.Context, image string) error {
	return c.do(ctx, http.MethodPost, "/v1/images/"+url.PathEscape(image)+"/verify", nil)
}

// CleanupRequest selects the copy of an image that Cleanup deletes, and the uses that do not keep it.
type CleanupRequest struct {
	UUID string // "": the declared generation
	On   string // NODE/DISK; "": Cleanup deletes no copy, and UseEnded is set
	// UseEnded ends the uses by replicas on the disks of the daemon that are not found any more.
	UseEnded bool
	// DespiteNeed are nodes whose claims of a use or a need do not keep the copy.
	DespiteNeed []string
}

// Cleanup requests the deletion of a copy on a disk, and returns the message of the daemon. If the
// daemon keeps the copy, the error is a *RefusedError.
func (c *Client) Cleanup(ctx context.Context, image string, r CleanupRequest) (message string, err error) {
	query := url.Values{"despiteNeed": r.DespiteNeed}
	if r.On != "" {
		query.Set("disk", r.On)
	}
	if r.UUID != "" {
		query.Set("uuid", r.UUID)
	}
	if r.UseEnded {
		query.Set("useEnded", "true")
	}
	var body cleanupBody
	err = c.do(ctx, http.MethodPost, "/v1/images/"+url.PathEscape(image)+"/cleanup?"+query.Encode(), &body)
	return body.Message, err
}

// Retry requests that the daemon tries failed actions of an image again now, and returns its message.
// on names the disks (NODE/DISK); empty: all disks of the daemon. If no attempt starts, the error is a
// *RefusedError.
func (c *Client) Retry(ctx context.Context, image string, on []string) (message string, err error) {
	var body retryBody
	err = c.do(ctx, http.MethodPost, "/v1/images/"+url.PathEscape(image)+"/retry?"+url.Values{"disk": on}.Encode(), &body)
	return body.Message, err
}

// do sends one request and decodes the body of the response into v, unless v is nil.
func (c *Client) do(ctx context.Context, method, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	response, err := c.send(ctx, method, path, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	return c.decode(response, v)
}

// send sends one request. The caller closes the body of the response.
func (c *Client) send(ctx context.Context, method, path string, header http.Header) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("make a request for %s: %w", c.Address(), err)
	}
	maps.Copy(r.Header, header)
	token, config := c.Credentials()
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{
		Transport: &http.Transport{
			Proxy:             http.ProxyFromEnvironment, // without a proxy for loopback
			DisableKeepAlives: true,
			TLSClientConfig:   config,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, c.Unreachable(err)
	}
	return response, nil
}

func (c *Client) decode(response *http.Response, v any) error {
	body := io.LimitReader(response.Body, maxResponse)
	if response.StatusCode >= http.StatusMultipleChoices {
		return c.Refused(readError(response, body))
	}
	if v == nil {
		return nil
	}
	err := json.NewDecoder(body).Decode(v)
	_, syntax := errors.AsType[*json.SyntaxError](err)
	_, shape := errors.AsType[*json.UnmarshalTypeError](err)
	switch {
	case err == nil:
		return nil
	case syntax, shape, err == io.EOF: // another program listens there
		return fmt.Errorf("read the response of %s: %w", c.Address(), err)
	}
	return c.Unreachable(fmt.Errorf("the response ended early: %w", err))
}

// readError returns the error in the body of a response.
func readError(response *http.Response, body io.Reader) *httperror.Error {
	// A Go server with TLS responds to a request without TLS in HTTP/1.0, before it reads the
	// request. Every other response of a daemon is in HTTP/1.1.
	if response.StatusCode == http.StatusBadRequest && !response.ProtoAtLeast(1, 1) {
		return httperror.New(response.StatusCode, "the server uses TLS: write --url https://HOST:PORT")
	}
	text, _ := io.ReadAll(io.LimitReader(body, maxHeader)) // if this fails, the error has only the status
	return httperror.Read(response.StatusCode, text)
}

// RefusedError is a response of a daemon that did not execute a request.
type RefusedError struct {
	Address  string // without secrets
	Response httperror.Error
}

// Refused makes a *RefusedError from the response of the daemon.
func (c *Client) Refused(err *httperror.Error) error { return &RefusedError{c.Address(), *err} }

func (e *RefusedError) Error() string {
	return fmt.Sprintf("the daemon at %s refuses: %s", e.Address, e.Response.Message)
}

// Hint returns what to do about a missing or wrong credential.
func (e *RefusedError) Hint() (hint string, ok bool) {
	if e.Response.Status != http.StatusUnauthorized {
		return "", false
	}
	return "name the file with the token with --token-file FILE; a daemon with TLS may accept a client certificate instead: --tls-cert and --tls-key", true
}

// UnreachableError is the error for a daemon that did not respond.
type UnreachableError struct {
	Address string // without secrets
	Err     error
}

// Unreachable returns an *UnreachableError for a request to the daemon that failed.
func (c *Client) Unreachable(err error) error { return &UnreachableError{c.Address(), err} }

func (e *UnreachableError) Error() string {
	cause := e.Err
	if u, ok := errors.AsType[*url.Error](cause); ok {
		cause = u.Err // u would print the address with its secrets
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Sprintf("call the daemon at %s: no response in time", e.Address)
	}
	return fmt.Sprintf("call the daemon at %s: %v", e.Address, cause)
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// Hint returns what to do, if the cause is known.
func (e *UnreachableError) Hint() (hint string, ok bool) {
	_, unknownAuthority := errors.AsType[x509.UnknownAuthorityError](e.Err)
	_, otherHost := errors.AsType[x509.HostnameError](e.Err)
	_, notTLS := errors.AsType[tls.RecordHeaderError](e.Err)
	switch {
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return "no daemon listens there: start it, or name another daemon with --url; backing-image list, upload and download work without a daemon with --disk PATH", true
	case errors.Is(e.Err, context.DeadlineExceeded):
		return "check the daemon's log and the network, or name another daemon with --url", true
	case notTLS || errors.Is(e.Err, http.ErrSchemeMismatch):
		return "the daemon does not use TLS: write --url http://HOST:PORT", true
	case unknownAuthority:
		return "name the authority of its certificate with --tls-ca FILE", true
	case strings.Contains(e.Err.Error(), "protocol version"): // crypto/tls has no value for it
		return "the server at this address must support TLS 1.3", true
	case otherHost:
		return "in --url, use a name or an address that its certificate is valid for", true
	}
	return "", false
}
