package peer

import (
	"context"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// Node is the interface between a Server and the node that it serves. Its methods return everything
// that must be current when a request arrives, unlike the published state. They must be safe for
// concurrent use. They may be called at any time, even before the first observation and while disks
// are opened and closed.
type Node interface {
	// Copies observes the disks now and returns the node's state with only the copies of one image
	// name. Withdrawn copies have Leaving set. If the content of a disk is uncertain, the disk has a
	// Problem. Without a Problem, an empty list proves that the disk has no copies. mark is the name of the mark
	// for model.Node.Mark and model.Copy.Mark; "" means no mark. The client receives an error as a 503.
	Copies(ctx context.Context, name, mark string) (model.Node, error)
	// Disk returns the disk with this name. It returns false if there is no such disk, or if its files
	// must not be read because the disk has a problem.
	Disk(name string) (*disk.Disk, bool)
	// Leaving reports whether the copy is withdrawn. The server sends no withdrawn copy, and ends its sends:
	// the copy may be deleted at any time, and no other node may use its bytes for a proof. Leaving is
	// called for each piece of a send.
	Leaving(diskName string, id ident.ID) bool
	// DeclaredUUID returns the uuid of the declared generation of an image; false if no
	// image with this name is declared.
	DeclaredUUID(name string) (string, bool)
	// ReportDamage is called when a ready copy of an image did not match its chunk manifest while it
	// was sent. It may block until ctx ends.
	ReportDamage(ctx context.Context, name string)
}

const (
	maxLongPolls    = 4096 // number of pending long polls; further requests get a response immediately
	maxObservations = 16   // concurrent calls of Node.Copies; further requests wait
)

// Server responds to the requests in the package comment. It does not authorize them: all callers of
// its Handler must have the role peer.
type Server struct {
	cache        *StateCache
	node         Node
	sendLimits   *sendLimiter
	observations chan struct{} // semaphores: each element in a channel is an acquired permit
	manifests    chan struct{}
	proofs       chan struct{}
	compressions chan struct{}
	longPolls    atomic.Int64
	pieceTimeout time.Duration // see pieceTimeout
}

// NewServer returns a server that publishes the state in cache and sends the copies of node.
func NewServer(cache *StateCache, node Node) *Server {
	return &Server{
		cache: cache, node: node, sendLimits: newSendLimiter(), pieceTimeout: pieceTimeout,
		observations: make(chan struct{}, maxObservations), manifests: make(chan struct{}, maxManifests),
		proofs: make(chan struct{}, maxProofs), compressions: make(chan struct{}, maxCompressions),
	}
}

const downloadPath = "/v1/images/{name}/download"

// Handler returns the handler of the routes in the package comment. When the context of a request ends, its
// long poll or send ends immediately. At a shutdown, the caller ends the BaseContext of the http.Server, and
// thus all requests. The handler extends the write timeout of the http.Server for long responses.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for pattern, h := range map[string]handler{
		"/v1/state":                         s.state,
		"/v1/images/{name}/copies":          s.copies,
		"/v1/images/{name}/{uuid}/manifest": s.manifest,
		"/v1/images/{name}/{uuid}/index":    s.index,
		"/v1/images/{name}/{uuid}/data":     s.data,
		downloadPath:                        s.download,
		"/":                                 func(http.ResponseWriter, *http.Request) *httperror.Error { return errNotFound },
	} {
		mux.Handle(pattern, h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		methods := []string{http.MethodGet}
		if _, pattern := mux.Handler(r); pattern == downloadPath {
			methods = append(methods, http.MethodHead)
		}
		switch {
		case !slices.Contains(methods, r.Method):
			w.Header().Set("Allow", strings.Join(methods, ", "))
			httperror.New(http.StatusMethodNotAllowed, "method not allowed: use %s", strings.Join(methods, " or ")).Write(w)
		case path.Clean(r.URL.Path) != r.URL.Path: // the mux would redirect
			errNotFound.Write(w)
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

// handler responds to a request, or returns the reason why it does not.
type handler func(http.ResponseWriter, *http.Request) *httperror.Error

// ServeHTTP implements http.Handler.
func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	refused := h(w, r)
	if refused == nil {
		return
	}
	if refused.Status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	refused.Write(w)
}

var (
	errNotFound    = httperror.New(http.StatusNotFound, "not found")
	errNotObserved = httperror.New(http.StatusServiceUnavailable, "the disks were not read yet: retry later")
	// ErrShutdown is the response to a request that waits for a change, at the end of the server.
	ErrShutdown   = httperror.New(http.StatusServiceUnavailable, "the node is shutting down")
	errOverloaded = httperror.New(http.StatusServiceUnavailable, "too many requests at once: retry later")
)

func (s *Server) state(w http.ResponseWriter, r *http.Request) *httperror.Error {
	wait, refused := ParseWait(r)
	if refused != nil {
		return refused
	}
	etag := r.Header.Get("If-None-Match")
	current, _ := s.cache.latest()
	if current != nil && current.etag == etag && wait > 0 {
		if current = s.waitForChange(w, r, etag, wait); r.Context().Err() != nil {
			return ErrShutdown // or the client has disconnected, and receives nothing
		}
	}
	if current == nil {
		return errNotObserved
	}
	w.Header().Set("ETag", current.etag)
	if current.etag == etag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	return writeState(w, r, current)
}

// waitForChange returns the published snapshot when its ETag differs from etag, or after wait.
func (s *Server) waitForChange(w http.ResponseWriter, r *http.Request, etag string, wait time.Duration) *snapshot {
	defer s.longPolls.Add(-1)
	if s.longPolls.Add(1) > maxLongPolls {
		current, _ := s.cache.latest()
		return current
	}
	// The write timeout of the http.Server runs since the request arrived, so it must be extended. An error
	// means that there is no timeout.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + stateTimeout))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	return s.cache.waitForChange(ctx, etag)
}

// ParseWait returns how long a request waits for a change, by its parameter "wait": at most a minute, 0 without the parameter.
func ParseWait(r *http.Request) (time.Duration, *httperror.Error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil {
		return 0, httperror.New(http.StatusBadRequest, "wait must be a duration such as 30s")
	}
	return min(wait, maxWait), nil
}

func (s *Server) copies(w http.ResponseWriter, r *http.Request) *httperror.Error {
	name := r.PathValue("name")
	if err := ident.CheckName(name); err != nil {
		return httperror.New(http.StatusBadRequest, "%v", err)
	}
	mark := r.URL.Query().Get(markParameter)
	if mark != "" && !disk.IsMarkName(mark) {
		return httperror.New(http.StatusBadRequest, "a mark is 16 hex digits")
	}
	if !acquire(r.Context(), s.observations) {
		return errOverloaded
	}
	defer release(s.observations)
	state, err := s.node.Copies(r.Context(), name, mark)
	if err != nil {
		return httperror.New(http.StatusServiceUnavailable, "%v", err)
	}
	return writeState(w, r, &snapshot{state: state})
}

// writeState always returns nil.
func writeState(w http.ResponseWriter, r *http.Request, s *snapshot) *httperror.Error {
	body, gzipped := s.encoded()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Vary", "Accept-Encoding")
	if gzipped != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = gzipped
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // fails only if the peer has disconnected; it polls again
	return nil
}
