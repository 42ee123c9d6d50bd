package fetchtest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// Content is the content of a path.
type Content interface {
	io.ReaderAt
	Size() int64
}

// Request is a request that the server received.
type Request struct {
	Method, Path, Query string
	Host                string
	Range, IfRange      string
	Header              http.Header
	Status              int   // status of the response; 0 if the server took over the connection
	Sent                int64 // number of content bytes that were written
}

// Server is an HTTP handler. It is safe for concurrent use.
type Server struct {
	URL string // set by Start, without a slash at the end

	mu       sync.Mutex
	files    map[string]*file
	counts   map[string]int // number of requests, by fault and path or URL
	requests []*Request
}

type file struct {
	content  Content
	etag     string
	modified time.Time
	faults   []Fault
}

// New returns a server without any content.
func New() *Server {
	return &Server{files: map[string]*file{}, counts: map[string]int{}}
}

// Start returns a server that listens on a loopback address until the test ends.
func Start(t testing.TB) *Server {
	s := New()
	listening := httptest.NewServer(s)
	t.Cleanup(listening.Close)
	s.URL = listening.URL
	return s
}

// StartTLS is like Start, but with https. ca is the certificate authority of the server in PEM.
func StartTLS(t testing.TB) (s *Server, ca []byte) {
	s = New()
	listening := httptest.NewUnstartedServer(s)
	listening.Config.ErrorLog = log.New(io.Discard, "", 0) // errors of clients that do not trust the server are expected
	listening.StartTLS()
	t.Cleanup(listening.Close)
	s.URL = listening.URL
	return s, certificatePEM(listening.Certificate())
}

// Serve makes the server send content at path, with the faults, and returns the URL.
func (s *Server) Serve(path string, content Content, faults ...Fault) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.files[path] = &file{
		content: content, etag: etagOf(path, content), modified: time.Now().Add(-time.Hour), faults: faults,
	}
	return s.URL + path
}

// etagOf returns the digest of the content. For a large content, it uses only the begin and the end,
// so that the server need not read all of it.
func etagOf(path string, c Content) string {
	const small = 64 << 20
	h := sha256.New()
	fmt.Fprintln(h, path, c.Size())
	if c.Size() <= small {
		io.Copy(h, io.NewSectionReader(c, 0, c.Size()))
	} else {
		io.Copy(h, io.NewSectionReader(c, 0, 4096))
		io.Copy(h, io.NewSectionReader(c, c.Size()-4096, 4096))
	}
	return `"` + hex.EncodeToString(h.Sum(nil)[:12]) + `"`
}

// Requests returns all requests so far, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	var l []Request
	for _, r := range s.requests {
		l = append(l, *r)
	}
	return l
}

// ClearRequests removes the recorded requests.
func (s *Server) ClearRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// ServeHTTP sends the content of the path, with its faults.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := &Request{
		Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Host: r.Host,
		Range: r.Header.Get("Range"), IfRange: r.Header.Get("If-Range"), Header: r.Header.Clone(),
	}
	s.mu.Lock()
	s.requests = append(s.requests, record)
	f, ok := s.files[r.URL.Path]
	s.mu.Unlock()
	a := &answer{server: s, record: record, w: w, r: r, faults: map[Kind]Fault{}, cut: -1}
	switch {
	case r.Method != http.MethodGet:
		a.status(http.StatusMethodNotAllowed)
	case !ok:
		a.status(http.StatusNotFound)
	default:
		a.file = f
		a.due(r.URL.RequestURI(), parseFaults(r.URL.Query()))
		a.due("in code "+r.URL.Path, f.faults)
		a.serve()
	}
}

// note calls change with the lock that guards the records.
func (s *Server) note(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}
