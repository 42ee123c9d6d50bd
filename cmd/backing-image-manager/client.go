package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-26586806/backing-image-manager/reconcile"
)

const defaultURL = "http://localhost:8000"

const (
	clientTimeout = 30 * time.Second
	maxAnswer     = 256 << 20 // the status of 10,000 images has some 10 MiB
)

// caller says which daemon a command asks, and what it shows there.
type caller struct {
	url       string
	tokenFile string
	tls       tlsFlags
}

func (c *caller) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&c.url, "url", defaultURL, "`URL` of the daemon to ask")
	cmd.Flags().StringVar(&c.tokenFile, "token-file", "", "`FILE` with the token that the daemon asks for")
	c.tls.add(cmd, "`FILE` with the certificate to show to the daemon, as PEM", "`FILE` with the authority of the daemon's certificate, as PEM (default those of the system)")
}

// status asks the daemon for its status.
func (c caller) status(ctx context.Context) (reconcile.Status, error) {
	var s reconcile.Status
	err := c.ask(ctx, http.MethodGet, "/v1/status", &s)
	return s, err
}

// verify asks the daemon to read every ready copy of an image anew. That happens in
// the background: the status tells how it ended.
func (c caller) verify(ctx context.Context, image string) error {
	return c.ask(ctx, http.MethodPost, "/v1/images/"+url.PathEscape(image)+"/verify", nil)
}

// ask sends one request to a daemon and decodes its answer into v, unless v is nil.
func (c caller) ask(ctx context.Context, method, path string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	token, config, err := c.credentials()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.url, "/")+path, nil)
	if err != nil {
		return errNoDaemon
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{
		Transport: &http.Transport{
			Proxy:             http.ProxyFromEnvironment, // but never for loopback
			DisableKeepAlives: true,
			TLSClientConfig:   config,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(r)
	if err != nil {
		return &unreachableError{base: withoutSecrets(c.url), err: err}
	}
	defer answer.Body.Close()
	return decodeAnswer(answer, c.url, v)
}

var errNoDaemon = errors.New("--url is not the address of a daemon: write http://HOST:PORT")

// credentials are what the daemon is shown: the token, "" for none, and the
// certificate. They fit the address.
func (c caller) credentials() (token string, config *tls.Config, err error) {
	u, err := url.Parse(c.url)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", nil, errNoDaemon
	case (c.tls.cert == "") != (c.tls.key == ""):
		return "", nil, errors.New("--tls-cert and --tls-key belong together")
	case c.tls.given() && u.Scheme != "https":
		return "", nil, errors.New("--tls-cert, --tls-key and --tls-ca are for a daemon that is asked by TLS: write --url https://HOST:PORT")
	}
	quiet := slog.New(slog.DiscardHandler) // nothing is read twice
	if c.tokenFile != "" {
		tokens, err := newTokens(quiet, c.tokenFile)
		if err != nil {
			return "", nil, err
		}
		token = tokens.now().strongest()
	}
	identity, err := newIdentity(quiet, c.tls)
	if err != nil {
		return "", nil, err
	}
	return token, identity.now().client, nil
}

// refusedError is an answer of a daemon that says no.
type refusedError struct {
	base    string
	status  int
	message string
}

func (e *refusedError) Error() string {
	return fmt.Sprintf("the daemon at %s refuses: %s", e.base, e.message)
}

func decodeAnswer(answer *http.Response, base string, v any) error {
	body := io.LimitReader(answer.Body, maxAnswer)
	if answer.StatusCode >= http.StatusMultipleChoices {
		return &refusedError{withoutSecrets(base), answer.StatusCode, reasonOf(answer.Status, body)}
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
	case syntax, shape, err == io.EOF: // somebody else answers there
		return fmt.Errorf("read the answer of %s: %w", withoutSecrets(base), err)
	}
	return &unreachableError{withoutSecrets(base), fmt.Errorf("its answer broke off: %w", err)}
}

// reasonOf returns why a daemon, or what is in its place, refuses.
func reasonOf(status string, body io.Reader) string {
	text, err := io.ReadAll(io.LimitReader(body, maxHeader))
	var said apiError
	switch {
	case err == nil && json.Unmarshal(text, &said) == nil && said.Message != "":
		return said.Message
	case strings.Contains(string(text), "HTTP request to an HTTPS server"): // Go's own words
		return "it speaks TLS: write --url https://HOST:PORT"
	}
	return status
}

// apiError is how the daemon says what is wrong.
type apiError struct {
	Message string `json:"error"`
}

// withoutSecrets returns an address without user, password, query and fragment.
func withoutSecrets(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "the address"
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	return cmp.Or(shown.String(), "the address")
}

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
