package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	pace "golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const (
	maxHeader    = 16 << 10
	headerTime   = 5 * time.Second
	answerTime   = time.Minute
	idleTime     = 2 * time.Minute
	shutdownTime = 5 * time.Second
)

// server answers for a daemon. It reads what the loop saw last, and never the
// disks, so that asking costs the disks nothing.
type server struct {
	loop  *reconcile.Loop
	guard guard
	stuck time.Duration // a loop without a round for so long is not ready
	peers http.Handler  // what other managers ask, and who downloads; nil: nothing
	// uploads takes images from people; nil: nobody can send any.
	uploads http.Handler
	// cleanup asks for a copy to be removed now; nil: that cannot be asked. An empty
	// uuid is that of the declared image.
	cleanup func(ctx context.Context, image, uuid string, on schema.DiskRef) (reconcile.Action, error)
}

// newServer returns a server that is yet to listen.
func newServer(s server, log *slog.Logger) *http.Server {
	h := &http.Server{
		Handler:           s.handler(),
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       headerTime,
		WriteTimeout:      answerTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ConnState:         newCrowd().follow,
		Protocols:         &http.Protocols{},
		ErrorLog:          newComplaints(log),
	}
	h.Protocols.SetHTTP1(true) // a transfer has a connection of its own
	if s.guard.identity != nil {
		h.TLSConfig = tlsConfig()
		h.TLSConfig.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return s.guard.identity.now().server, nil
		}
	}
	return h
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // it fails when the caller is gone
}

func answerError(w http.ResponseWriter, status int, why string) {
	answer(w, status, apiError{Message: why})
}

func (server) healthz(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]bool{"alive": true})
}

// unreadyError is the answer of readyz to what keeps a manager from its work.
type unreadyError struct {
	apiError
	Reasons []string `json:"reasons,omitempty"`
}

func (s server) readyz(w http.ResponseWriter, r *http.Request) {
	if reasons := unready(s.loop.View(), time.Now(), s.stuck); len(reasons) > 0 {
		if _, no := s.guard.admit(r); no != nil {
			reasons = nil
		}
		answer(w, http.StatusServiceUnavailable, unreadyError{apiError{"not ready"}, reasons})
		return
	}
	answer(w, http.StatusOK, map[string]bool{"ready": true})
}

// unready lists what keeps a manager from its work. Mistakes that only hold some
// images do not, nor does one of several disks.
func unready(v *reconcile.View, now time.Time, stuck time.Duration) []string {
	if v == nil {
		return []string{"the config directory is not read yet"}
	}
	var reasons []string
	switch {
	case !v.Loaded && v.Fault != "":
		reasons = append(reasons, v.Fault)
	case !v.Loaded:
		reasons = append(reasons, "the config directory is not read yet")
	case v.Desired.May == schema.ObserveOnly:
		reasons = append(reasons, fmt.Sprintf("the configuration cannot be acted on: it has %s, or this node is not in it", count(len(v.Config.Errors), "error")))
	}
	if age := now.Sub(v.Observed.Now); age > stuck {
		reasons = append(reasons, fmt.Sprintf("the last look at the disks was %v ago", age.Round(time.Second)))
	}
	if v.Loaded {
		reasons = append(reasons, noDisk(v)...)
	}
	return reasons
}

// noDisk says why no disk can be used, if none can.
func noDisk(v *reconcile.View) []string {
	var problems []string
	for ref, seen := range v.Observed.Disks {
		if ref.Node != v.Desired.Node {
			continue
		}
		if seen.Problem == "" {
			return nil
		}
		problems = append(problems, fmt.Sprintf("disk %s: %s", ref, seen.Problem))
	}
	if len(problems) == 0 {
		return []string{"no disks are declared for this node"}
	}
	slices.Sort(problems)
	return problems
}

func (s server) status(w http.ResponseWriter, _ *http.Request) {
	status, ok := s.loop.Status()
	if !ok {
		answerError(w, http.StatusServiceUnavailable, "the disks were not looked at yet: ask again")
		return
	}
	answer(w, http.StatusOK, status)
}

func (s server) verify(w http.ResponseWriter, r *http.Request) {
	copies, err := s.loop.Verify(r.Context(), r.PathValue("name"))
	switch {
	case errors.Is(err, reconcile.ErrNotDeclared):
		answerError(w, http.StatusNotFound, err.Error())
	case errors.Is(err, reconcile.ErrNotReady):
		answerError(w, http.StatusConflict, err.Error()+s.whoHas(r.PathValue("name")))
	case err != nil:
		answerError(w, http.StatusServiceUnavailable, err.Error())
	default:
		answer(w, http.StatusAccepted, map[string]int{"copies": copies})
	}
}

// whoHas says whom to ask about the copies of a declared image that are on other nodes.
func (s server) whoHas(image string) string {
	status, _ := s.loop.Status()
	v := s.loop.View()
	for _, i := range status.Images {
		if i.Name != image || !i.Declared {
			continue
		}
		for _, c := range i.Copies {
			if address := v.Desired.Config.Nodes[c.Node].Address; c.State == disk.Ready && address != "" {
				return fmt.Sprintf(": ask the daemon of node %s with --url %s", c.Node, withoutSecrets(address))
			}
		}
	}
	return ""
}

// alivePath and readyPath answer everybody with a status, as those who probe programs
// have nothing to show. Why a daemon is not ready is for peers.
const (
	alivePath = "/healthz"
	readyPath = "/readyz"
)

// route is one path of a daemon, and who may ask it.
type route struct {
	path, method string
	role         role
	answer       http.HandlerFunc
}

// uploads reports whether the route takes bodies, and looks at methods by itself.
func (r route) uploads() bool { return r.method == "" }

// routes are all there is. Asking a path that is not among them needs a role too.
func (s server) routes() []route {
	metrics := promhttp.HandlerFor(newRegistry(s.loop), promhttp.HandlerOpts{})
	all := []route{
		{alivePath, http.MethodGet, nobody, s.healthz},
		{readyPath, http.MethodGet, nobody, s.readyz},
		{"/metrics", http.MethodGet, peerRole, metrics.ServeHTTP},
		{"/v1/status", http.MethodGet, peerRole, s.status},
		{"/v1/images/{name}/verify", http.MethodPost, adminRole, s.verify},
	}
	if s.cleanup != nil {
		all = append(all, route{"/v1/images/{name}/cleanup", http.MethodPost, adminRole, s.cleanUp})
	}
	if s.uploads != nil {
		for _, path := range []string{upload.Path, upload.Path + "/{id}"} {
			all = append(all, route{path, "", adminRole, s.uploads.ServeHTTP})
		}
	}
	if s.peers != nil {
		for _, path := range []string{
			"/v1/state", "/v1/images/{name}/copies", "/v1/images/{name}/{uuid}/manifest", "/v1/images/{name}/{uuid}/data",
			"/v1/images/{name}/download",
		} {
			all = append(all, route{path, http.MethodGet, peerRole, s.peers.ServeHTTP})
		}
	}
	return all
}

// handler answers those who may ask. It does not wrap the writers of its routes:
// they send files without copying them.
func (s server) handler() http.Handler {
	mux, routes := http.NewServeMux(), map[string]route{}
	for _, r := range s.routes() {
		mux.Handle(r.path, only(r.method, r.answer))
		routes[r.path] = r
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		answerError(w, http.StatusNotFound, "nothing is here")
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, pattern := mux.Handler(r)
		to, known := routes[pattern]
		if !known {
			to = route{role: peerRole, method: http.MethodGet}
		}
		if to.uploads() && s.guard.tokens != nil && letPagesUpload(w, r) {
			return
		}
		if no := s.refuse(r, to); no != nil {
			w.Header().Set("Connection", "close")
			if no.status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			answerError(w, no.status, no.why)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// refuse says why a request is not answered, if it is not.
func (s server) refuse(r *http.Request, to route) *refusal {
	if need := to.role; need > nobody {
		had, no := s.guard.admit(r)
		switch {
		case no != nil:
			return no
		case had < need:
			return &refusal{http.StatusForbidden, "the role " + need.String() + " is needed: this is " + had.String()}
		}
	}
	switch {
	case r.URL.Path != path.Clean(r.URL.Path):
		return &refusal{http.StatusNotFound, "nothing is here"} // the mux would redirect to what may be meant
	case r.ContentLength != 0 && !to.uploads():
		return &refusal{http.StatusRequestEntityTooLarge, "send no body"}
	}
	return nil
}

// only lets one method through, and HEAD where that is GET; without a method, all.
func only(method string, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if method != "" && r.Method != method && (method != http.MethodGet || r.Method != http.MethodHead) {
			w.Header().Set("Allow", method)
			answerError(w, http.StatusMethodNotAllowed, "use "+method)
			return
		}
		h(w, r)
	})
}

// complaints logs what an HTTP server has to say of its callers, such as handshakes
// that fail. Whoever can connect can cause as many as he likes: only some are logged.
type complaints struct {
	log  *slog.Logger
	some pace.Sometimes
}

func newComplaints(log *slog.Logger) *stdlog.Logger {
	return stdlog.New(&complaints{log: log, some: pace.Sometimes{First: 20, Interval: 10 * time.Second}}, "", 0)
}

// Write takes one line. A panic is no caller's doing, and always logged.
func (c *complaints) Write(line []byte) (int, error) {
	say := func() { c.log.Warn(strings.TrimSpace(string(line))) }
	if bytes.HasPrefix(line, []byte("http: panic")) {
		say()
	} else {
		c.some.Do(say)
	}
	return len(line), nil
}
