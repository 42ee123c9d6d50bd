package upload

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const (
	// Path is where uploads are created; each has its own below it.
	Path = "/v1/uploads"
	// MaxChecked is the longest body that may come with an Upload-Checksum.
	MaxChecked = 4 << 20

	version    = "1.0.0"
	extensions = "creation,creation-with-upload,creation-defer-length,termination,checksum,expiration"
	bodyType   = "application/offset+octet-stream"

	stallWindow = 30 * time.Second // less than 1 KiB/s for so long is a stall
	openTime    = time.Minute      // for a job to open a part
	answerTime  = time.Minute
)

// statusMismatch is tus's for a body that has not the checksum it came with.
const statusMismatch = 460

// Host is the node that takes uploads.
type Host struct {
	// Begin asks for a job to open the part of a new upload of the image, or says why
	// there can be none: a *Refused. The whole has to have the digest, if one is given.
	Begin func(ctx context.Context, image string, given disk.Digest) error
	// Interrupted reports whether there is a part of the upload that a job will open.
	Interrupted func(id string) bool
}

// Server answers requests for uploads. Who may send them is for its caller to know.
type Server struct {
	sessions *Sessions
	host     Host
	checking chan struct{} // one for each body that is in memory
	window   time.Duration
}

// NewServer returns a Server of the uploads that the jobs of host fill parts with.
func NewServer(sessions *Sessions, host Host) *Server {
	return &Server{sessions: sessions, host: host, checking: make(chan struct{}, most), window: stallWindow}
}

// ServeHTTP answers requests to Path and below, where the wildcard "id" of the
// pattern is the upload's.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if over := r.Header.Get("X-HTTP-Method-Override"); over != "" && method == http.MethodPost {
		method = over // of clients that cannot send other methods
	}
	h := w.Header()
	h.Set("Tus-Resumable", version)
	deadlines := http.NewResponseController(w)
	// A body may take hours. That it comes at all is watched.
	_ = deadlines.SetReadDeadline(time.Time{})
	_ = deadlines.SetWriteDeadline(time.Time{})
	// What is left of a body is not waited for without end.
	defer func() { _ = deadlines.SetReadDeadline(time.Now().Add(s.window)) }()
	err := s.answer(w, r, method)
	if err == nil {
		return
	}
	_ = deadlines.SetWriteDeadline(time.Now().Add(answerTime))
	answerRefused(w, err)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, method string) error {
	if method != http.MethodOptions && method != http.MethodGet {
		if r.Header.Get("Tus-Resumable") != version {
			w.Header().Set("Tus-Version", version)
			return refuse(http.StatusPreconditionFailed, "send Tus-Resumable: %s", version)
		}
	}
	id, all := r.PathValue("id"), r.PathValue("id") == ""
	switch {
	case method == http.MethodOptions:
		s.options(w)
		return nil
	case all && method == http.MethodGet:
		return answerJSON(w, http.StatusOK, s.sessions.list())
	case all && method == http.MethodPost:
		return s.create(w, r)
	case all:
		return notAllowed(w, "GET, POST, OPTIONS")
	case method == http.MethodGet:
		return s.show(w, id)
	case method == http.MethodHead:
		return s.head(w, r, id)
	case method == http.MethodPatch:
		return s.patch(w, r, id)
	case method == http.MethodDelete:
		return s.terminate(w, r, id)
	}
	return notAllowed(w, "GET, HEAD, PATCH, DELETE, OPTIONS")
}

func notAllowed(w http.ResponseWriter, allow string) error {
	w.Header().Set("Allow", allow)
	return refuse(http.StatusMethodNotAllowed, "use one of %s", allow)
}

func (*Server) options(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Tus-Version", version)
	h.Set("Tus-Extension", extensions)
	h.Set("Tus-Checksum-Algorithm", checksumAlgorithms)
	w.WriteHeader(http.StatusNoContent)
}

// show tells of one upload, for a while after it has ended too.
func (s *Server) show(w http.ResponseWriter, id string) error {
	now, past := s.sessions.find(id)
	switch {
	case now != nil:
		return answerJSON(w, http.StatusOK, now.Info())
	case past != nil:
		return answerJSON(w, http.StatusOK, past)
	}
	return s.unknown(id)
}

// unknown says that there is no such upload, if that is so.
func (s *Server) unknown(id string) error {
	if s.host.Interrupted(id) {
		return locked("the upload is interrupted: it goes on in a moment, or when what status says of the image is over")
	}
	return refuse(http.StatusNotFound, "there is no such upload: it was never there, or has ended")
}

func (s *Server) head(w http.ResponseWriter, r *http.Request, id string) error {
	now, past := s.sessions.find(id)
	if now == nil && past == nil {
		return s.unknown(id)
	}
	if past == nil {
		if err := s.ask(r, now, &delivery{look: true}); err != nil {
			return err
		}
		info := now.Info()
		past = &info
	}
	if past.err != nil {
		return verdict(past.err)
	}
	h := w.Header()
	tell(h, *past)
	if past.Length >= 0 {
		h.Set("Upload-Length", strconv.FormatInt(past.Length, 10))
	} else {
		h.Set("Upload-Defer-Length", "1")
	}
	if past.metadata != "" {
		h.Set("Upload-Metadata", past.metadata)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// tell says how far an upload is, and until when it is kept.
func tell(h http.Header, i Info) {
	h.Set("Upload-Offset", strconv.FormatInt(i.Offset, 10))
	if i.State == Open && !i.Expires.IsZero() {
		h.Set("Upload-Expires", i.Expires.UTC().Format(http.TimeFormat))
	}
}

func (s *Server) terminate(w http.ResponseWriter, r *http.Request, id string) error {
	now, past := s.sessions.find(id)
	switch {
	case past != nil && past.err == nil:
		return refuse(http.StatusConflict, "the upload has ended: the image is ready")
	case past != nil:
		return verdict(past.err)
	case now == nil:
		return s.unknown(id)
	}
	if err := s.ask(r, now, &delivery{end: true}); !errors.Is(now.ending(), ErrTerminated) {
		if err == nil {
			err = refuse(http.StatusConflict, "the upload has ended: the image is ready")
		}
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// ask delivers what has no body.
func (*Server) ask(r *http.Request, one *Session, d *delivery) error {
	d.done = make(chan error, 1)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	d.ctx, d.cancel = ctx, cancel
	return one.deliver(d)
}

func answerJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // it fails when the caller is gone
	return nil
}

// answerRefused answers with the status of a *Refused, and in the words of a daemon.
func answerRefused(w http.ResponseWriter, err error) {
	status := http.StatusLocked // the daemon stops, or the sender is gone
	if e, ok := errors.AsType[*Refused](err); ok {
		status = e.Status
	}
	if status == http.StatusLocked || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	_ = answerJSON(w, status, map[string]string{"error": err.Error()})
}
