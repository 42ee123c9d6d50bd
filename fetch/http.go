package fetch

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// httpSource reads a file at an http or https address.
type httpSource struct {
	net     *network
	url     *url.URL
	packing packing
}

func (t *transfer) newHTTPSource(a address) (source, error) {
	return &httpSource{net: t.net, url: a.url, packing: t.packing}, nil
}

// get sends one GET request. A partial request has a Range header and, with a validator, an If-Range
// header: if the server has another version, it then sends the whole file.
func (s *httpSource) get(ctx context.Context, q rangeRequest) (*response, error) {
	header := http.Header{"Accept-Encoding": {"identity"}, "User-Agent": {s.net.client.userAgent()}}
	if q.isPartial() {
		header.Set("Range", q.rangeHeader())
		if q.validator != "" {
			header.Set("If-Range", q.validator)
		}
	}
	resp, from, err := s.net.follow(ctx, s.url, header)
	if err != nil {
		return nil, err
	}
	got, err := s.checkResponse(resp, from, q)
	if err != nil {
		resp.Body.Close()
	}
	return got, err
}

func (s *httpSource) checkResponse(resp *http.Response, from *url.URL, q rangeRequest) (*response, error) {
	got := &response{body: resp.Body, total: resp.ContentLength, delimited: len(resp.TransferEncoding) > 0, from: from}
	got.etag, got.lastModified = validators(resp.Header)
	got.isHTML = strings.HasPrefix(strings.ToLower(resp.Header.Get("Content-Type")), "text/html")
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusPartialContent:
		if err := got.checkContinuation(resp.Header, q); err != nil {
			return nil, err
		}
	case http.StatusRequestedRangeNotSatisfiable:
		if !q.isPartial() {
			return nil, s.statusError(resp, from)
		}
		whole := fmt.Sprintf("bytes */%d", q.offset)
		if q.total < 0 && resp.Header.Get("Content-Range") == whole && q.isSameVersion(got.etag, resp.Header.Get("Last-Modified")) {
			return nil, errComplete
		}
		return nil, errChanged
	default:
		return nil, s.statusError(resp, from)
	}
	return got, s.checkEncoding(resp.Header)
}

// checkContinuation checks that a 206 response begins at the offset of q and has the version that q requests.
func (a *response) checkContinuation(h http.Header, q rangeRequest) error {
	if !q.isPartial() {
		return Errorf(Refused, "the server sent a part of the file (206) in response to a request for the whole file")
	}
	start, total, ok := contentRange(h.Get("Content-Range"))
	if !ok || start != q.offset || q.total >= 0 && total != q.total {
		return errChanged
	}
	if !q.isSameVersion(a.etag, h.Get("Last-Modified")) {
		return errChanged
	}
	a.start, a.total = start, total
	return nil
}

// isSameVersion reports whether a partial response with this etag and date has the version that q
// requests. A server that does not support If-Range may send a part of another version. A server that
// supports If-Range repeats the ETag, but may omit the date.
func (q rangeRequest) isSameVersion(etag, date string) bool {
	if strings.HasPrefix(q.validator, `"`) {
		return etag == q.validator || etag == "" && !q.noDigest
	}
	return q.validator == "" || date == "" || date == q.validator
}

// contentRange parses "bytes START-END/TOTAL". It rejects an unknown total, because a truncated body
// would not be detected.
func contentRange(s string) (start, total int64, ok bool) {
	span, ok := strings.CutPrefix(s, "bytes ")
	span, of, ok2 := strings.Cut(span, "/")
	first, last, ok3 := strings.Cut(span, "-")
	if !ok || !ok2 || !ok3 {
		return 0, 0, false
	}
	start, err := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	total, err3 := strconv.ParseInt(of, 10, 64)
	if err != nil || err2 != nil || err3 != nil || start < 0 || end < start || total <= end {
		return 0, 0, false
	}
	return start, total, true
}

// validators returns the values that identify this version of the file: a strong ETag, and a
// Last-Modified date that is at least one second before the server's own Date.
func validators(h http.Header) (etag, lastModified string) {
	if e := h.Get("ETag"); len(e) > 2 && strings.HasPrefix(e, `"`) {
		etag = e
	}
	modified, err := http.ParseTime(h.Get("Last-Modified"))
	date, err2 := http.ParseTime(h.Get("Date"))
	if err == nil && err2 == nil && date.Sub(modified) >= time.Second {
		lastModified = h.Get("Last-Modified")
	}
	return etag, lastModified
}

// checkEncoding returns an error for an encoded body. Content-Encoding: gzip is accepted for a .gz
// file, because some servers send it for the unchanged file.
func (s *httpSource) checkEncoding(h http.Header) error {
	if e := Encoding(h); e != "" && (s.packing != packedGz || e != "gzip" && e != "x-gzip") {
		return Errorf(BadSource, "the server encoded the body (Content-Encoding: %q) although the request allowed only identity", e)
	}
	return nil
}

// noEncodings are values of Content-Encoding with which the body is the file itself. Servers repeat what a
// client declared when it stored the file: the framing of its request (aws-chunked), or a character set.
var noEncodings = []string{"", "identity", "aws-chunked", "utf-8", "utf8", "binary", "none"}

// Encoding returns the encodings of a body by its Content-Encoding. "" means that the body is the file itself.
func Encoding(h http.Header) string {
	var encodings []string
	for e := range strings.SplitSeq(strings.ToLower(strings.Join(h.Values("Content-Encoding"), ",")), ",") {
		if e = strings.TrimSpace(e); !slices.Contains(noEncodings, e) {
			encodings = append(encodings, e)
		}
	}
	return strings.Join(encodings, ", ")
}

// statusError returns the error for a response with an unexpected status.
func (s *httpSource) statusError(resp *http.Response, from *url.URL) error {
	e := Errorf(Refused, "the server responds with %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	if from.Host != s.url.Host {
		e = Errorf(Refused, "after a redirect, %s responds with %d %s", redact(from), resp.StatusCode, http.StatusText(resp.StatusCode))
	}
	switch code := resp.StatusCode; {
	case code >= 500, code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests:
		e.Class = Network
		e.RetryAfter = retryAfter(resp.Header)
	case code == http.StatusNotFound, code == http.StatusGone:
		e.Err = missingError{e.Err}
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		e.Err = fmt.Errorf("%w: %s", e.Err, s.net.credentialsHint(from))
	}
	return e
}

// retryAfter returns the delay that the server requests: a number of seconds, or a date relative to
// the server's own Date.
func retryAfter(h http.Header) time.Duration {
	value := h.Get("Retry-After")
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), 1<<30)) * time.Second
	}
	until, err := http.ParseTime(value)
	now, err2 := http.ParseTime(h.Get("Date"))
	if err != nil || err2 != nil {
		return 0
	}
	return max(0, until.Sub(now))
}
