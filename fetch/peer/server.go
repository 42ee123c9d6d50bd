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

// Host is the node that a Server answers for. Its functions are called
// concurrently.
type Host struct {
	Board *StateCache
	// Look looks at the disks, at once, for the copies of a name.
	Look func(ctx context.Context, name string) (State, error)
	// Disk returns the disk of a name, if it can be read.
	Disk func(name string) (*disk.Disk, bool)
	// Leaving reports whether a copy was withdrawn.
	Leaving func(disk string, id disk.ID) bool
	// Declared returns the uuid of the declared image of a name, "" for none.
	Declared func(name string) string
	// Damaged is told that a copy of a name is not as its manifest says, and may wait
	// until ctx ends; nil: nobody wants to know.
	Damaged func(ctx context.Context, name string)
}

const (
	maxLongPolls    = 4096 // long polls at once; beyond, nobody waits
	maxObservations = 16   // looks at once; beyond, they queue
)

// Server answers what the package comment says. Whoever gets to its Handler has the
// role peer.
type Server struct {
	host         Host
	sendLimits   *sendLimiter
	observations chan struct{}
	manifests    chan struct{}
	compressions chan struct{}
	longPolls    atomic.Int64
	pieceTimeout time.Duration // for pieceSize bytes to be taken
}

// NewServer returns a server for a node.
func NewServer(h Host) *Server {
	return &Server{
		host: h, sendLimits: newSendLimiter(), pieceTimeout: pieceTimeout,
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
	e, _ := s.host.Board.latest()
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
		e, _ := s.host.Board.latest()
		return e
	}
	// The server's write timeout has begun already. What cannot be set has none.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(wait + stateTimeout))
	ctx, cancel := context.WithTimeout(r.Context(), wait)
	defer cancel()
	return s.host.Board.waitForChange(ctx, etag)
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
	state, err := s.host.Look(r.Context(), name)
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
