package peer

import (
	"context"
	"encoding/json"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Node is the contract between a Server and the node that it serves: everything
// that the published State cannot answer, because it must be as new as the request.
// All methods may be called concurrently and at any time. They must not return
// copies or disks of which only an incomplete observation exists.
type Node interface {
	// Copies observes the disks now and returns the node's State with the copies of
	// one image name only. Copies that are withdrawn have Leaving set. An error means
	// that no observation is possible yet; the client receives a 503.
	Copies(ctx context.Context, name string) (State, error)
	// Disk returns the disk with this name; false if there is none, or its files must
	// not be read because the disk has a problem.
	Disk(name string) (*disk.Disk, bool)
	// Leaving reports whether the copy is withdrawn. A withdrawn copy is not sent,
	// because it may be deleted at any moment.
	Leaving(diskName string, id disk.ID) bool
	// DeclaredUUID returns the uuid of the declared generation of an image; false if
	// no image with this name is declared.
	DeclaredUUID(name string) (string, bool)
	// ReportDamage is called when a ready copy of an image did not match its chunk
	// manifest while it was sent. It may block until ctx ends.
	ReportDamage(ctx context.Context, name string)
}

const (
	maxLongPolls    = 4096 // long polls at once; beyond, nobody waits
	maxObservations = 16   // looks at once; beyond, they queue
)

// Server answers what the package comment says. Whoever gets to its Handler has the
// role peer.
type Server struct {
	cache        *StateCache
	node         Node
	sendLimits   *sendLimiter
	observations chan struct{}
	manifests    chan struct{}
	compressions chan struct{}
	longPolls    atomic.Int64
	pieceTimeout time.Duration // for pieceSize bytes to be taken
}

// NewServer returns a server that sends the State in cache and the copies of node.
func NewServer(cache *StateCache, node Node) *Server {
	return &Server{
		cache: cache, node: node, sendLimits: newSendLimiter(), pieceTimeout: pieceTimeout,
		observations: make(chan struct{}, maxObservations), manifests: make(chan struct{}, maxManifests),
		compressions: make(chan struct{}, maxCompressions),
	}
}

const downloadPath = "/v1/images/{name}/download"

// Handler serves /v1/state, /v1/images/{name}/copies and what is below
// /v1/images/{name}/{uuid}/, and /v1/images/{name}/download. A request whose context ends, as all do when the
// BaseContext of the http.Server ends, is given up at once: a wait as well as a send.
// The server's write timeout is put off where an answer takes longer.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/state", s.state)
	mux.HandleFunc("/v1/images/{name}/copies", s.copies)
	mux.HandleFunc("/v1/images/{name}/{uuid}/manifest", s.manifest)
	mux.HandleFunc("/v1/images/{name}/{uuid}/data", s.data)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		writeError(w, http.StatusNotFound, "nothing is here")
	})
	mux.HandleFunc(downloadPath, s.download)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		switch {
		case r.Method != http.MethodGet && (r.Method != http.MethodHead || pattern != downloadPath):
			w.Header().Set("Allow", http.MethodGet)
			writeError(w, http.StatusMethodNotAllowed, "ask with GET")
		case path.Clean(r.URL.Path) != r.URL.Path: // the mux would redirect
			writeError(w, http.StatusNotFound, "nothing is here")
		default:
			mux.ServeHTTP(w, r)
		}
	})
}

func (s *Server) state(w http.ResponseWriter, r *http.Request) {
	wait, err := parseWait(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, "wait is a duration like 30s")
		return
	}
	etag := r.Header.Get("If-None-Match")
	e, _ := s.cache.latest()
	if e != nil && e.etag == etag && wait > 0 {
		if e = s.waitForChange(w, r, etag, wait); r.Context().Err() != nil {
			writeError(w, http.StatusServiceUnavailable, "this node shuts down")
			return
		}
	}
	switch {
	case e == nil:
		writeError(w, http.StatusServiceUnavailable, "the disks were not looked at yet: ask again")
	case e.etag == etag:
		w.Header().Set("ETag", e.etag)
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("ETag", e.etag)
		writeState(w, r, e)
	}
}

// waitForChange holds the request until the board shows another state, or for so long.
func (s *Server) waitForChange(w http.ResponseWriter, r *http.Request, etag string, wait time.Duration) *snapshot {
	defer s.longPolls.Add(-1)
	if s.longPolls.Add(1) > maxLongPolls {
		e, _ := s.cache.latest()
		return e
	}
	// The server's write timeout has begun already. What cannot be set has none.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + stateTimeout))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	return s.cache.waitForChange(ctx, etag)
}

func parseWait(r *http.Request) (time.Duration, error) {
	text := r.URL.Query().Get("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	return min(wait, maxWait), err
}

func (s *Server) copies(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if err := disk.CheckName(name); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	select {
	case s.observations <- struct{}{}:
		defer func() { <-s.observations }()
	case <-r.Context().Done():
		writeError(w, http.StatusServiceUnavailable, "too many ask at once")
		return
	}
	state, err := s.node.Copies(r.Context(), name)
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeState(w, r, &snapshot{state: state})
}

func writeState(w http.ResponseWriter, r *http.Request, e *snapshot) {
	body, zip := e.encoded()
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Vary", "Accept-Encoding")
	if zip != nil && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = zip
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // a peer that is gone asks again
}

func writeError(w http.ResponseWriter, status int, why string) {
	text, err := json.Marshal(map[string]string{"error": why})
	if err != nil {
		panic("peer: " + err.Error())
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}
