// Package api is the HTTP API of a daemon: the server, its metrics, and the client that
// the commands use.
//
// The status, the metrics and the page show what the loop published after its last round: their requests read no disk, and only a
// long poll waits for a round. The loop decides about a verification, a clean-up and a retry. Downloads, uploads and the requests
// of peers use the disks: fetch/peer and fetch/upload serve their paths. Package web serves the paths of the page.
//
// Every path needs a role (package fetch/auth), except /healthz, the status code of /readyz, and the files and the sign-in of the
// page. The page authorizes its readers itself.
//
// Reading order: server.go (routes and handlers), documents.go (status), metrics.go, client.go.
package api

import (
	"encoding/json"
	"errors"
	"fmt"
	stdlog "log"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/fetch/upload"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/reconcile/web"
)

const (
	maxHeader    = 16 << 10
	readTimeout  = 5 * time.Second
	writeTimeout = time.Minute
	idleTimeout  = 2 * time.Minute
)

// server has the handlers of a daemon.
type server struct {
	loop      *reconcile.Loop
	peers     *peer.Server
	auth      *auth.Authorizer
	options   Options
	documents *documents
}

// Options are settings of a server.
type Options struct {
	// MaxRoundAge is the greatest age of the last round at which the daemon is ready.
	MaxRoundAge time.Duration
	// WebPrefix is the path below which readers see the web page, "" for the root. All routes are also below it.
	WebPrefix string
	// ConfigDir is the config directory, for people.
	ConfigDir string
}

// NewServer returns the HTTP server of a daemon. The caller starts and stops it. With TLS,
// its TLSConfig has the certificate.
func NewServer(loop *reconcile.Loop, a *auth.Authorizer, o Options, log *slog.Logger) *http.Server {
	return newHTTPServer(newServer(loop, a, o).handler(), a, log)
}

func newServer(loop *reconcile.Loop, a *auth.Authorizer, o Options) server {
	peers := loop.PeerServer()
	return server{loop, peers, a, o, &documents{loop: loop, peers: peers}}
}

func newHTTPServer(handler http.Handler, a *auth.Authorizer, log *slog.Logger) *http.Server {
	connections := auth.NewConnLimiter()
	h := &http.Server{
		Handler:           logPanics(handler, log),
		ReadHeaderTimeout: readTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ConnState:         connections.ConnState,
		ConnContext:       connections.ConnContext,
		Protocols:         &http.Protocols{},
		ErrorLog:          stdlog.New(&errorLog{log: log, limit: rate.Sometimes{First: 20, Interval: 10 * time.Second}}, "", 0),
		TLSConfig:         a.ServerTLS(),
	}
	h.Protocols.SetHTTP1(true) // and not HTTP/2: each transfer has a connection of its own
	return h
}

// errorLog logs the messages of an HTTP server, such as failed handshakes. Every machine
// that can connect can cause them, so only some of them are logged.
type errorLog struct {
	log   *slog.Logger
	limit rate.Sometimes
}

// Write logs one line, or drops it.
func (e *errorLog) Write(line []byte) (int, error) {
	e.limit.Do(func() { e.log.Warn(strings.TrimSpace(string(line))) })
	return len(line), nil
}

// logPanics logs every panic of a handler with its stack, because a panic is a fault of the
// daemon: errorLog would drop some of them. The connection of the request is closed.
func logPanics(handler http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause != http.ErrAbortHandler { // a handler that closes the connection on purpose
				log.Error("panic while a request was served", "caller", r.RemoteAddr, "path", r.URL.Path, "panic", cause, "stack", string(debug.Stack()))
			}
			panic(http.ErrAbortHandler)
		}()
		handler.ServeHTTP(w, r)
	})
}

// healthPath and readyPath respond with a status to every caller, because probes have no
// credentials. Only a peer gets the reasons why a daemon is not ready.
const (
	healthPath = "/healthz"
	readyPath  = "/readyz"
)

// The paths that have long polls, with the parameter "wait".
const (
	statePath  = "/v1/state"
	statusPath = "/v1/status"
)

// route is one path of the API.
type route struct {
	path    string
	methods []string // nil: the handler checks the method, and accepts a body
	role    auth.Role
	handler http.HandlerFunc
}

// The methods of routes. Peers use GET only. A program that downloads a file may request its
// size by HEAD first.
var (
	get       = []string{http.MethodGet}
	getOrHead = []string{http.MethodGet, http.MethodHead}
	post      = []string{http.MethodPost}
)

// isLongPoll reports whether a request waits for a change before the response.
func isLongPoll(r *http.Request) bool {
	return (r.URL.Path == statePath || r.URL.Path == statusPath) && r.URL.Query().Get("wait") != ""
}

// routes returns all routes.
func (s server) routes() []route {
	metrics := promhttp.HandlerFor(newRegistry(s.loop, s.auth), promhttp.HandlerOpts{})
	all := []route{
		{healthPath, getOrHead, auth.RoleNone, respond(s.health)},
		{readyPath, getOrHead, auth.RoleNone, respond(s.ready)},
		{"/metrics", getOrHead, auth.RolePeer, metrics.ServeHTTP},
		{statusPath, getOrHead, auth.RolePeer, s.status},
		{"/v1/images/{name}/verify", post, auth.RoleAdmin, respond(s.verify)},
		{"/v1/images/{name}/cleanup", post, auth.RoleAdmin, respond(s.cleanup)},
		{"/v1/images/{name}/retry", post, auth.RoleAdmin, respond(s.retry)},
	}
	uploads := s.loop.Uploads()
	for _, path := range []string{upload.Path, upload.Path + "/{id}"} {
		all = append(all, route{path, nil, auth.RoleAdmin, uploads.ServeHTTP})
	}
	peers := s.peers.Handler()
	for _, path := range []string{statePath, "/v1/images/{name}/copies", "/v1/images/{name}/{uuid}/manifest", "/v1/images/{name}/{uuid}/index", "/v1/images/{name}/{uuid}/data"} {
		all = append(all, route{path, get, auth.RolePeer, peers.ServeHTTP})
	}
	all = append(all, route{"/v1/images/{name}/download", getOrHead, auth.RolePeer, peers.ServeHTTP})
	site := web.New(web.Options{
		View: s.loop.View, NextRound: s.loop.NextRound, Status: s.loop.Status, Prefix: s.options.WebPrefix, Dir: s.options.ConfigDir,
		Auth: s.auth, IsDeclared: s.isDeclared,
	})
	for _, page := range site.Routes() {
		all = append(all, route{page.Pattern, page.Methods, auth.RoleNone, page.Handler})
	}
	return all
}

// handler returns the handler of all routes. It does not wrap the ResponseWriter of a
// route: the routes of peers send files by sendfile, which needs the original one.
func (s server) handler() http.Handler {
	mux, routes := http.NewServeMux(), map[string]route{}
	for _, r := range s.routes() {
		mux.Handle(r.path, checkMethod(r.methods, r.handler))
		routes[r.path] = r
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		httperror.New(http.StatusNotFound, "not found").Write(w)
	})
	isRoute := func(r *http.Request) bool {
		_, pattern := mux.Handler(r)
		_, known := routes[pattern]
		return known
	}
	return withoutPrefix(s.options.WebPrefix, isRoute, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, pattern := mux.Handler(r)
		to, known := routes[pattern]
		if !known { // an unknown path needs a role too, so that strangers cannot probe
			to = route{role: auth.RolePeer, methods: get}
		}
		if err := s.check(r, to); err != nil {
			refuse(w, r, err)
			return
		}
		mux.ServeHTTP(w, r)
	}))
}

// withoutPrefix removes the prefix from the path of a request, because not every proxy removes it. It leaves a path as it is if
// the rest is no route: the prefix may be the beginning of a route, as /images is.
func withoutPrefix(prefix string, isRoute func(*http.Request) bool, h http.Handler) http.Handler {
	if prefix == "" {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == prefix:
			http.Redirect(w, r, prefix+"/", http.StatusTemporaryRedirect) // browsers do not remember it
		case strings.HasPrefix(r.URL.Path, prefix+"/"):
			http.StripPrefix(prefix, http.HandlerFunc(func(w http.ResponseWriter, below *http.Request) {
				if !isRoute(below) {
					below = r
				}
				h.ServeHTTP(w, below)
			})).ServeHTTP(w, r)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// refuse sends the reason why a request is not executed, and closes the connection. It does not wait
// for the body of the request: otherwise every machine that can connect could hold connections with
// bodies that it announces and does not send.
func refuse(w http.ResponseWriter, r *http.Request, err *httperror.Error) {
	if r.ContentLength != 0 {
		// Without a deadline, net/http reads the rest of the body until its own timeout.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now())
	}
	w.Header().Set("Connection", "close")
	if err.Status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	err.Write(w)
}

// isDeclared reports whether a host is the name of a declared node, or the host in its address. Before
// the first round no node is known.
func (s server) isDeclared(host string) bool {
	v := s.loop.View()
	return v != nil && (host == strings.ToLower(v.Desired.Node) || v.Desired.Config.HasHost(host))
}

// check returns why a request must not be executed, or nil.
func (s server) check(r *http.Request, to route) *httperror.Error {
	if to.role > auth.RoleNone {
		role, err := s.auth.Authorize(r, s.isDeclared)
		if denied, ok := errors.AsType[*httperror.Error](err); ok {
			return denied
		}
		if !auth.Admit(r.Context(), isLongPoll(r)) {
			return auth.ErrTooManyConnections
		}
		if role < to.role {
			return httperror.New(http.StatusForbidden, "role %s is required: the caller has role %s", to.role, role)
		}
	}
	switch {
	case r.URL.Path != path.Clean(r.URL.Path):
		return httperror.New(http.StatusNotFound, "not found") // the mux would redirect to the clean path
	case r.ContentLength != 0 && to.methods != nil:
		return httperror.New(http.StatusRequestEntityTooLarge, "a request body is not allowed")
	}
	return nil
}

// checkMethod accepts the methods, or every method for nil.
func checkMethod(methods []string, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if methods != nil && !slices.Contains(methods, r.Method) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			httperror.New(http.StatusMethodNotAllowed, "method not allowed: use %s", strings.Join(methods, " or ")).Write(w)
			return
		}
		h(w, r)
	})
}

// action executes a request, and returns the status and the body of the response.
type action func(*http.Request) (status int, body any, err error)

// respond sends what an action returns.
func respond(do action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		status, body, err := do(r)
		if err != nil {
			refusalOf(err).Write(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(encode(body)) // fails if the caller has closed the connection
	}
}

// refusalOf returns the response for the error of an action. An unknown error is no fault of the request: the same request
// may succeed later.
func refusalOf(err error) *httperror.Error {
	code := http.StatusServiceUnavailable
	refusal, known := errors.AsType[*httperror.Error](err)
	switch {
	case known:
		return refusal
	case errors.Is(err, reconcile.ErrNotDeclared), errors.Is(err, status.ErrNoDisk):
		code = http.StatusNotFound
	case errors.Is(err, reconcile.ErrNotReady), errors.Is(err, reconcile.ErrNothingFailed):
		code = http.StatusConflict
	}
	return httperror.New(code, "%v", err)
}

// encode returns the JSON of a response. People read responses on a terminal, so characters that are
// not printable are escaped.
func encode(v any) []byte {
	document, err := json.Marshal(v)
	if err != nil {
		panic("api: a response cannot be encoded: " + err.Error())
	}
	return append(text.PrintableJSON(document), '\n')
}

func (server) health(*http.Request) (int, any, error) {
	return http.StatusOK, map[string]bool{"alive": true}, nil
}

// unreadyBody is the body of a response of readyPath if the daemon is not ready.
type unreadyBody struct {
	Error   string   `json:"error"`
	Reasons []string `json:"reasons,omitempty"`
}

func (s server) ready(r *http.Request) (int, any, error) {
	reasons := s.loop.View().Unready(time.Now(), s.options.MaxRoundAge)
	if len(reasons) == 0 {
		return http.StatusOK, map[string]bool{"ready": true}, nil
	}
	if _, err := s.auth.Authorize(r, s.isDeclared); err != nil {
		reasons = nil
	}
	return http.StatusServiceUnavailable, unreadyBody{"not ready", reasons}, nil
}

var errNotRead = httperror.New(http.StatusServiceUnavailable, "the disks were not read yet: retry later")

func (s server) verify(r *http.Request) (int, any, error) {
	copies, err := s.loop.Verify(r.Context(), r.PathValue("name"))
	if errors.Is(err, reconcile.ErrNotReady) {
		_, status := s.loop.Status()
		if node, url, ok := status.FindHolder(r.PathValue("name")); ok {
			err = fmt.Errorf("%w: call the daemon of node %s with --url %s", err, node, url)
		}
	}
	return http.StatusAccepted, map[string]int{"copies": copies}, err
}

// cleanupBody is the body of a response for a copy that is deleted or does not exist.
type cleanupBody struct {
	Message string `json:"message"`
}

// cleanup requests the deletion of a copy, and responds with the decision about it. With useEnded it first ends the uses by
// replicas that are not found any more; then the disk, and with it the deletion, is optional.
func (s server) cleanup(r *http.Request) (int, any, error) {
	query := r.URL.Query()
	name, uuid, useEnded := r.PathValue("name"), query.Get("uuid"), query.Get("useEnded") == "true"
	err := ident.CheckName(name)
	if err == nil && uuid != "" {
		err = ident.CheckUUID(uuid)
	}
	if err != nil {
		return 0, nil, httperror.New(http.StatusBadRequest, "%v", err)
	}
	var on []ident.DiskRef
	if query.Get("disk") != "" || !useEnded {
		if on, err = parseDisks(query.Get("disk")); err != nil {
			return 0, nil, err
		}
	}
	if useEnded {
		err := s.loop.EndUses(r.Context(), name, uuid)
		if err != nil || len(on) == 0 {
			return http.StatusOK, cleanupBody{"ended the uses by replicas that are not found any more"}, err
		}
	}
	if err := s.checkOwnDisks(on); err != nil {
		return 0, nil, err
	}
	a, err := s.loop.Cleanup(r.Context(), name, uuid, on[0], query["despiteNeed"]...)
	switch {
	case errors.Is(err, reconcile.ErrNotDeclared):
		return 0, nil, fmt.Errorf("%w: name the copy of an undeclared image with --uuid", err)
	case errors.Is(err, reconcile.ErrNotReady) && uuid != "":
		return http.StatusOK, cleanupBody{"there is no copy with the uuid " + uuid}, nil
	case errors.Is(err, reconcile.ErrNotReady):
		return http.StatusOK, cleanupBody{"there is no copy"}, nil
	case err == nil && !a.Op.Deletes():
		err = httperror.New(http.StatusConflict, "%s", keptText(a))
	}
	return http.StatusAccepted, cleanupBody{"deleting: " + a.Text}, err
}

// parseDisks parses the values of the parameter "disk".
func parseDisks(values ...string) (on []ident.DiskRef, err error) {
	for _, text := range values {
		ref, err := ident.ParseDiskRef(text)
		if err != nil {
			return nil, httperror.New(http.StatusBadRequest, "disk: %v", err)
		}
		on = append(on, ref)
	}
	return on, nil
}

// checkOwnDisks returns why this daemon cannot decide about copies on the disks, or nil.
func (s server) checkOwnDisks(on []ident.DiskRef) error {
	v := s.loop.View()
	if v == nil || !v.Loaded { // it is not known yet which disks are declared
		return errNotRead
	}
	for _, ref := range on {
		if err := v.CheckOwnDisk(ref); errors.Is(err, status.ErrNoDisk) {
			return err
		} else if err != nil {
			return httperror.New(http.StatusConflict, "%v", err)
		}
	}
	return nil
}

// retryBody is the body of a response if at least one attempt starts.
type retryBody struct {
	Message  string        `json:"message"`
	Attempts []attemptBody `json:"attempts"`
}

type attemptBody struct {
	Disk    string       `json:"disk"`
	Op      model.Op     `json:"op"`      // wait or blocked: the attempt does not start
	Attempt int          `json:"attempt"` // its number; 2 is the first retry
	Started bool         `json:"started"` // false: it waits for a free slot, or does not start
	Reason  model.Reason `json:"reason"`
}

// retry ends the wait after failed attempts, and responds with the attempts that start.
func (s server) retry(r *http.Request) (int, any, error) {
	on, err := parseDisks(r.URL.Query()["disk"]...)
	if err == nil {
		err = s.checkOwnDisks(on)
	}
	if err != nil {
		return 0, nil, err
	}
	attempts, err := s.loop.Retry(r.Context(), r.PathValue("name"), on)
	if err != nil {
		return 0, nil, err
	}
	body, starts := newRetryBody(attempts)
	if !starts {
		err = httperror.New(http.StatusConflict, "%s", body.Message)
	}
	return http.StatusAccepted, body, err
}

// newRetryBody returns the body for attempts, and whether one of them starts.
func newRetryBody(attempts []reconcile.Attempt) (body retryBody, starts bool) {
	var texts []string
	for _, t := range attempts {
		a := t.Action
		on := a.CopyRef().Disk.String()
		text := fmt.Sprintf("%s: %s started (attempt %d)", on, a.Op, t.Number)
		switch {
		case a.Idle():
			text = fmt.Sprintf("%s: not started: %s", on, a.Text)
		case !t.Started:
			text = fmt.Sprintf("%s: %s starts when a running transfer ends (attempt %d)", on, a.Op, t.Number)
		}
		starts = starts || !a.Idle()
		texts = append(texts, text)
		body.Attempts = append(body.Attempts, attemptBody{on, a.Op, t.Number, t.Started, a.Reason})
	}
	body.Message = strings.Join(texts, "; ")
	return body, starts
}

// keptText returns why the requested deletion of a copy does not happen: the plan has the action
// a for the copy instead.
func keptText(a plan.Action) string {
	if a.Idle() {
		return "kept: " + a.Text
	}
	return fmt.Sprintf("kept for now: the action %s comes first (%s): request the clean-up again when it has ended", a.Op, a.Text)
}
