package fetchtest

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// answer is the response to one request for a file.
type answer struct {
	server *Server
	record *Request
	file   *file
	faults map[Kind]Fault
	nth    int // number of earlier requests that due counted for the last added fault
	cut    int64

	w http.ResponseWriter
	r *http.Request
}

func (a *answer) has(k Kind) bool { _, ok := a.faults[k]; return ok }

func (a *answer) status(code int) {
	a.server.note(func() { a.record.Status = code })
	a.w.WriteHeader(code)
}

func (a *answer) serve() {
	switch {
	case a.has(Silent):
		<-a.r.Context().Done()
	case a.has(Unavailable), a.has(Flaky):
		a.status(http.StatusServiceUnavailable)
	case a.has(Busy):
		a.w.Header().Set("Retry-After", a.faults[Busy].After)
		a.status(http.StatusTooManyRequests)
	case a.has(NotFound):
		a.status(http.StatusNotFound)
	case a.has(Page):
		a.w.Header().Set("Content-Type", "text/html; charset=utf-8")
		a.status(http.StatusOK)
		io.WriteString(a.w, "<!doctype html><title>Log in</title>")
	case a.has(Loop):
		a.redirect(loopOf(a.r))
	case a.has(Redirect):
		a.redirect(a.faults[Redirect].To)
	case !a.authorized():
		a.w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
		a.status(http.StatusUnauthorized)
	default:
		a.content()
	}
}

func (a *answer) redirect(to string) {
	a.w.Header().Set("Location", to)
	a.status(http.StatusFound)
}

// loopOf returns a URL that redirects back to the URL of r. The two URLs differ only in the query.
func loopOf(r *http.Request) string {
	if r.URL.Query().Has("again") {
		return r.URL.Path + "?fault=loop"
	}
	return r.URL.Path + "?fault=loop&again"
}

func (a *answer) authorized() bool {
	user, password, _ := a.r.BasicAuth()
	switch {
	case a.has(Basic):
		return user == "user" && password == "password"
	case a.has(Bearer):
		return a.r.Header.Get("Authorization") == "Bearer token"
	}
	return true
}

// content sends the file, or the requested range.
func (a *answer) content() {
	size, etag := a.file.content.Size(), a.file.etag
	if a.has(Empty) {
		size = 0
	}
	switch {
	case a.has(Changing):
		etag = fmt.Sprintf(`"%d"`, a.nth)
	case a.has(Changed):
		etag = `"changed"`
	case a.has(Weak):
		etag = "W/" + etag
	}
	a.validators(etag)
	start, end := a.span(etag, size)
	if start >= size && size > 0 {
		a.w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		a.status(http.StatusRequestedRangeNotSatisfiable)
		return
	}
	body := io.NewSectionReader(a.file.content, start, end-start)
	if a.has(Flip) || a.has(Changed) {
		a.send(&flipped{body, start, a.faults[Flip].At}, start, end, size)
		return
	}
	a.send(body, start, end, size)
}

func (a *answer) validators(etag string) {
	if a.has(NoValidator) {
		return
	}
	a.w.Header().Set("ETag", etag)
	if !a.has(Weak) {
		a.w.Header().Set("Last-Modified", a.file.modified.UTC().Format(http.TimeFormat))
	}
}

// span returns the first byte to send, and the end of the range.
func (a *answer) span(etag string, size int64) (start, end int64) {
	span, ok := strings.CutPrefix(a.r.Header.Get("Range"), "bytes=")
	first, last, ok2 := strings.Cut(span, "-")
	start, err := strconv.ParseInt(first, 10, 64)
	if !ok || !ok2 || err != nil || a.has(NoRange) || size == 0 {
		return 0, size
	}
	if only := a.r.Header.Get("If-Range"); only != "" && only != etag && only != a.w.Header().Get("Last-Modified") {
		return 0, size
	}
	if end, err := strconv.ParseInt(last, 10, 64); err == nil {
		return start, min(end+1, size)
	}
	return start, size
}

// send sends the bytes from start to end of a file of size bytes, with the faults of this request.
func (a *answer) send(body io.Reader, start, end, size int64) {
	h := a.w.Header()
	status := http.StatusOK
	if start > 0 || end < size {
		status = http.StatusPartialContent
		shown := start
		if a.has(BadRange) {
			shown++
		}
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", shown, end-1, size))
	}
	h.Set("Content-Type", "application/octet-stream")
	if a.has(HTML) {
		h.Set("Content-Type", "text/html")
	}
	length := end - start + a.faults[Long].At - a.faults[Short].At
	switch {
	case a.has(NoLength), a.has(Short):
		a.raw(status, length, body)
		return
	case a.has(Gzip):
		h.Set("Content-Encoding", "gzip")
		a.status(status)
		z := gzip.NewWriter(a.w)
		io.Copy(z, body)
		z.Close()
		return
	case !a.has(Chunked):
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	a.status(status)
	a.body(body)
}

// body writes the body, up to the offset at which a fault ends it.
func (a *answer) body(body io.Reader) {
	for _, k := range []Kind{Cut, Reset, Stall, Drip} {
		f, ok := a.faults[k]
		if !ok {
			continue
		}
		a.copy(a.w, io.LimitReader(body, f.At))
		a.w.(http.Flusher).Flush()
		switch k {
		case Stall:
			<-a.r.Context().Done()
		case Drip:
			a.drip(body)
		case Reset:
			a.reset()
		}
		panic(http.ErrAbortHandler)
	}
	a.copy(a.w, body)
	if a.has(Long) {
		panic(http.ErrAbortHandler)
	}
}

func (a *answer) copy(w io.Writer, r io.Reader) {
	n, _ := io.Copy(w, r) // a client that disconnects is not an error
	a.server.note(func() { a.record.Sent += n })
}

func (a *answer) drip(body io.Reader) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-a.r.Context().Done():
			return
		case <-tick.C:
			a.copy(a.w, io.LimitReader(body, 1))
			a.w.(http.Flusher).Flush()
		}
	}
}

// reset closes the connection in such a way that the client receives RST.
func (a *answer) reset() {
	conn, _, err := a.w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0)
	}
	conn.Close()
}

// raw writes responses that net/http does not allow: a body without a length, or a body that is
// longer than its Content-Length.
func (a *answer) raw(status int, length int64, body io.Reader) {
	conn, rw, err := a.w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	a.server.note(func() { a.record.Status = status })
	h := a.w.Header().Clone()
	h.Set("Connection", "close")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	if !a.has(NoLength) {
		h.Set("Content-Length", strconv.FormatInt(length, 10))
	}
	out := bufio.NewWriter(rw)
	fmt.Fprintf(out, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	h.Write(out)
	io.WriteString(out, "\r\n")
	if f, ok := a.faults[Cut]; ok {
		body = io.LimitReader(body, f.At)
	}
	a.copy(out, body)
	out.Flush()
	rw.Flush()
}

// flipped is a reader of a content with one changed byte.
type flipped struct {
	io.Reader
	at, wrong int64
}

func (f *flipped) Read(p []byte) (int, error) {
	n, err := f.Reader.Read(p)
	if i := f.wrong - f.at; i >= 0 && i < int64(n) {
		p[i] ^= 0x80
	}
	f.at += int64(n)
	return n, err
}
