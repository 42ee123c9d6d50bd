package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile"
)

const defaultURL = "http://localhost:8000"

const (
	clientTimeout = 30 * time.Second
	maxAnswer     = 256 << 20 // the status of 10,000 images has some 10 MiB
)

// fetchStatus asks the daemon at base for its status. tokenFile may be "".
func fetchStatus(ctx context.Context, base, tokenFile string) (reconcile.Status, error) {
	var s reconcile.Status
	err := ask(ctx, http.MethodGet, base, "/v1/status", tokenFile, &s)
	return s, err
}

// requestVerify asks the daemon at base to read every ready copy of an image anew.
// That happens in the background: the status tells how it ended.
func requestVerify(ctx context.Context, base, tokenFile, image string) error {
	return ask(ctx, http.MethodPost, base, "/v1/images/"+url.PathEscape(image)+"/verify", tokenFile, nil)
}

// ask sends one request to a daemon and decodes its answer into v, unless v is nil.
func ask(ctx context.Context, method, base, path, tokenFile string, v any) error {
	ctx, cancel := context.WithTimeout(ctx, clientTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(base, "/")+path, nil)
	if err != nil || r.URL.Host == "" || r.URL.Scheme != "http" && r.URL.Scheme != "https" {
		return errors.New("--url is not the address of a daemon: write http://HOST:PORT")
	}
	if tokenFile != "" {
		token, err := readToken(tokenFile)
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{
		// The environment's proxy, but never for loopback.
		Transport:     &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	answer, err := client.Do(r)
	if err != nil {
		return &unreachableError{base: withoutSecrets(base), err: err}
	}
	defer answer.Body.Close()
	return decodeAnswer(answer, base, v)
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
	return fmt.Sprintf("ask the daemon at %s: %v", e.base, cause)
}

func (e *unreachableError) Unwrap() error { return e.err }

func decodeAnswer(answer *http.Response, base string, v any) error {
	body := io.LimitReader(answer.Body, maxAnswer)
	if answer.StatusCode >= http.StatusMultipleChoices {
		var refusal apiError
		if err := json.NewDecoder(body).Decode(&refusal); err != nil || refusal.Message == "" {
			refusal.Message = answer.Status
		}
		return fmt.Errorf("the daemon at %s refuses: %s", withoutSecrets(base), refusal.Message)
	}
	if v == nil {
		return nil
	}
	if err := json.NewDecoder(body).Decode(v); err != nil {
		return fmt.Errorf("read the answer of %s: %w", withoutSecrets(base), err)
	}
	return nil
}

// apiError is how the daemon says what is wrong.
type apiError struct {
	Message string `json:"error"`
}

// readToken reads the secret that a daemon and its callers share. An empty one
// would let everybody in.
func readToken(file string) (string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read token: %w", err)
	}
	token := strings.TrimSpace(string(data))
	if token == "" || strings.ContainsAny(token, "\r\n") {
		return "", fmt.Errorf("read token: %s has to hold one line", file)
	}
	return token, nil
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
