package upload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	requestTime = 10 * time.Minute // for a piece, over a slow line too
	maxAnswer   = 1 << 20
)

// Client asks one daemon.
type Client struct {
	Base          string // its address
	Authorization string // the header that it asks for; "": none
	Transport     http.RoundTripper
}

// answer is what a daemon answered.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// ask makes one request. The error is one of the way to the daemon.
func (c *Client) ask(ctx context.Context, method, path string, header map[string]string, body []byte) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.Base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, errors.New("the address of the daemon is none")
	}
	if c.Authorization != "" {
		r.Header.Set("Authorization", c.Authorization)
	}
	r.Header.Set("Tus-Resumable", version)
	for key, value := range header {
		r.Header.Set(key, value)
	}
	a, err := c.Transport.RoundTrip(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // it would print the address
		}
		return answer{}, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	return answer{a.StatusCode, a.Header, text}, err
}

// refusal is why a daemon does not do what it was asked, if so.
func (a answer) refusal() *Refused {
	if a.status < http.StatusMultipleChoices {
		return nil
	}
	var said struct {
		Error string `json:"error"`
	}
	if json.Unmarshal(a.body, &said) != nil || said.Error == "" {
		said.Error = fmt.Sprintf("%d %s", a.status, http.StatusText(a.status))
	}
	return &Refused{a.status, said.Error}
}

// passes reports whether a refusal may be over in a moment.
func (e *Refused) passes() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusLocked, http.StatusTooManyRequests, statusMismatch:
		return true
	}
	return e.Status >= http.StatusInternalServerError
}

// offset reads how far the daemon is.
func (a answer) offset() (int64, error) {
	n, err := strconv.ParseInt(a.header.Get("Upload-Offset"), 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New("the answer does not say how far the upload is: is that a daemon?")
	}
	return n, nil
}

// uploads returns what is under way there.
func (c *Client) uploads(ctx context.Context) ([]Info, error) {
	a, err := c.ask(ctx, http.MethodGet, Path, nil, nil)
	if err != nil {
		return nil, err
	}
	if no := a.refusal(); no != nil {
		return nil, no
	}
	var all []Info
	return all, json.Unmarshal(a.body, &all)
}

// create begins an upload and returns its path.
func (c *Client) create(ctx context.Context, m Metadata, length int64) (string, error) {
	header := map[string]string{"Upload-Metadata": m.header(), "Upload-Length": strconv.FormatInt(length, 10)}
	if length < 0 {
		header = map[string]string{"Upload-Metadata": m.header(), "Upload-Defer-Length": "1"}
	}
	a, err := c.ask(ctx, http.MethodPost, Path, header, nil)
	if err != nil {
		return "", err
	}
	if no := a.refusal(); no != nil {
		return "", no
	}
	at, err := url.Parse(a.header.Get("Location"))
	if err != nil || !strings.HasPrefix(at.Path, Path+"/") {
		return "", errors.New("the answer does not say where the upload is: is that a daemon?")
	}
	return at.Path, nil
}

// how asks how far an upload is, and whether the daemon knows where it ends, or why it
// has ended.
func (c *Client) how(ctx context.Context, path string) (at int64, measured bool, err error) {
	a, err := c.ask(ctx, http.MethodHead, path, nil, nil)
	if err != nil {
		return 0, false, err
	}
	if a.status < http.StatusMultipleChoices {
		at, err = a.offset()
		return at, a.header.Get("Upload-Length") != "", err
	}
	if no := a.refusal(); no.passes() && no.Status != http.StatusLocked { // that may last
		return 0, false, no
	}
	told, err := c.ask(ctx, http.MethodGet, path, nil, nil) // a HEAD has no room for a sentence
	if err != nil {
		return 0, false, err
	}
	var i Info
	switch no := told.refusal(); {
	case no != nil:
		return 0, false, no
	case json.Unmarshal(told.body, &i) != nil || i.Error == "":
		return 0, false, a.refusal()
	}
	return 0, false, &Refused{a.status, i.Error}
}

// send brings one piece, and returns how far the upload is then. total is said along
// with it when it is known.
func (c *Client) send(ctx context.Context, path string, p piece, total int64) (int64, error) {
	header := map[string]string{"Content-Type": bodyType, "Upload-Offset": strconv.FormatInt(p.at, 10)}
	if p.zeros > 0 {
		header["Upload-Zeros"] = strconv.FormatInt(p.zeros, 10)
	}
	if len(p.data) > 0 {
		sum := sha256.Sum256(p.data)
		header["Upload-Checksum"] = "sha256 " + base64.StdEncoding.EncodeToString(sum[:])
	}
	if total >= 0 {
		header["Upload-Length"] = strconv.FormatInt(total, 10)
	}
	a, err := c.ask(ctx, http.MethodPatch, path, header, p.data)
	if err != nil {
		return 0, err
	}
	if no := a.refusal(); no != nil {
		return 0, no
	}
	return a.offset()
}

// terminate ends an upload that is there.
func (c *Client) terminate(ctx context.Context, path string) error {
	a, err := c.ask(ctx, http.MethodDelete, path, nil, nil)
	if err != nil {
		return err
	}
	if no := a.refusal(); no != nil && no.Status != http.StatusNotFound && no.Status != http.StatusGone {
		return no
	}
	return nil
}
