package main

import (
	"net/http"
	"path"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed-26586806/backing-image-manager/fetch/upload"
)

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
