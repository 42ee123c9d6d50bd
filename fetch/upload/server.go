package upload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
)

const (
	// Path is the path to create uploads. The path of an upload is below it.
	Path = "/v1/uploads"
	// maxChecked is the maximum length of a body with an Upload-Checksum.
	maxChecked = 4 << 20

	version    = "1.0.0"
	extensions = "creation,creation-with-upload,creation-defer-length,termination,checksum,expiration"
	bodyType   = "application/offset+octet-stream"

	stallWindow = 30 * time.Second // less than 1 KiB/s for this time counts as a stall
	openTime    = time.Minute      // time for a job to open the partial file
	answerTime  = time.Minute
)

// statusMismatch is the status of tus for a body with a wrong checksum.
const statusMismatch = 460

// Host is the manager of the node that receives uploads. Its methods must be safe for concurrent use.
type Host interface {
	// Begin starts the job that receives a new upload of the image; the job calls Sessions.Begin.
	// If digest is not zero, the image must have this digest. If no such job can be started, Begin
	// returns an *httperror.Error with the reason.
	Begin(ctx context.Context, image string, digest ident.Digest) error
	// Interrupted reports whether a disk has a partial file of the upload and a job for it will
	// start.
	Interrupted(id string) bool
}

// Server is the HTTP server for uploads. Its caller authorizes the requests.
type Server struct {
	sessions *Sessions
	host     Host
	checking chan struct{} // one element for each body in memory
	window   time.Duration
}

// NewServer returns a Server for the uploads in sessions. host starts their jobs.
func NewServer(sessions *Sessions, host Host) *Server {
	return &Server{sessions: sessions, host: host, checking: make(chan struct{}, maxUploads), window: stallWindow}
}

// ServeHTTP serves Path and the paths below it. The pattern of the caller must contain the
// id of the upload as the wildcard "id".
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if over := r.Header.Get("X-HTTP-Method-Override"); over != "" && method == http.MethodPost {
		method = over // for clients that can only send POST
	}
	h := w.Header()
	h.Set("Tus-Resumable", version)
	deadlines := http.NewResponseController(w)
	// A body may take hours to arrive. StallReader detects a stall.
	_ = deadlines.SetReadDeadline(time.Time{})
	_ = deadlines.SetWriteDeadline(time.Time{})
	// Limit the time for the rest of a body that is not read.
	defer func() { _ = deadlines.SetReadDeadline(time.Now().Add(s.window)) }()
	err := s.answer(w, r, method)
	if err == nil {
		return
	}
	_ = deadlines.SetWriteDeadline(time.Now().Add(answerTime))
	writeError(w, err)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, method string) error {
	if method != http.MethodOptions && method != http.MethodGet {
		if r.Header.Get("Tus-Resumable") != version {
			w.Header().Set("Tus-Version", version)
			return httperror.New(http.StatusPreconditionFailed, "send Tus-Resumable: %s", version)
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
	return httperror.New(http.StatusMethodNotAllowed, "use one of %s", allow)
}

func (*Server) options(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Tus-Version", version)
	h.Set("Tus-Extension", extensions)
	h.Set("Tus-Checksum-Algorithm", checksumAlgorithms)
	w.WriteHeader(http.StatusNoContent)
}

// show returns the state of one upload. It also returns the state of an upload that ended recently.
func (s *Server) show(w http.ResponseWriter, id string) error {
	now, past := s.sessions.find(id)
	switch {
	case now != nil:
		return answerJSON(w, http.StatusOK, now.info())
	case past != nil:
		return answerJSON(w, http.StatusOK, past)
	}
	return s.notFound(id)
}

// notFound returns the error for an upload without a session.
func (s *Server) notFound(id string) error {
	if s.host.Interrupted(id) {
		return locked("the upload is interrupted: it resumes soon, or when the problem in the status of the image is solved")
	}
	return httperror.New(http.StatusNotFound, "there is no such upload: it never existed, or it has ended")
}

func (s *Server) head(w http.ResponseWriter, r *http.Request, id string) error {
	now, past := s.sessions.find(id)
	if now == nil && past == nil {
		return s.notFound(id)
	}
	if past == nil {
		if err := s.deliverEmpty(r, now, &delivery{op: opStatus}); err != nil {
			return err
		}
		info := now.info()
		past = &info
	}
	if past.err != nil {
		return responseError(past.err)
	}
	h := w.Header()
	setOffsetHeaders(h, *past)
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

// setOffsetHeaders sets the headers for the offset and the expiry of an upload.
func setOffsetHeaders(h http.Header, i info) {
	h.Set("Upload-Offset", strconv.FormatInt(i.Offset, 10))
	if i.State == stateOpen && !i.Expires.IsZero() {
		h.Set("Upload-Expires", i.Expires.UTC().Format(http.TimeFormat))
	}
}

func (s *Server) terminate(w http.ResponseWriter, r *http.Request, id string) error {
	now, past := s.sessions.find(id)
	switch {
	case past != nil && past.err == nil:
		return httperror.New(http.StatusConflict, "the upload has ended: the image is ready")
	case past != nil:
		return responseError(past.err)
	case now == nil:
		return s.notFound(id)
	}
	if err := s.deliverEmpty(r, now, &delivery{op: opTerminate}); !errors.Is(now.endError(), errTerminated) {
		if err == nil {
			err = httperror.New(http.StatusConflict, "the upload has ended: the image is ready")
		}
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// deliverEmpty delivers a request without a body.
func (*Server) deliverEmpty(r *http.Request, one *Session, d *delivery) error {
	d.done = make(chan error, 1)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	d.ctx, d.cancel = ctx, cancel
	return one.deliver(d)
}

func answerJSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(text.PrintableJSON(body), '\n')) // fails only if the client has disconnected
	return nil
}

// writeError sends the response for err. An error other than *httperror.Error means that the daemon
// shuts down, or that the client has disconnected.
func writeError(w http.ResponseWriter, err error) {
	e, ok := errors.AsType[*httperror.Error](err)
	if !ok {
		e = locked("%v", err)
	}
	if e.Status == http.StatusLocked || e.Status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	e.Write(w)
}

// create starts an upload, and appends the body if there is one.
func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	size, err := parseUploadLength(r.Header)
	if err != nil {
		return err
	}
	m, err := parseMetadata(r.Header.Get("Upload-Metadata"))
	switch {
	case err != nil:
		return httperror.New(http.StatusBadRequest, "%v", err)
	case m.Name == "":
		return httperror.New(http.StatusBadRequest, "the name of the image is missing: send Upload-Metadata: name NAME, with NAME in base64")
	case r.ContentLength != 0 && !hasBodyType(r):
		return httperror.New(http.StatusUnsupportedMediaType, "the Content-Type of a body must be %s", bodyType)
	case fetch.Encoding(r.Header) != "":
		return errEncoded
	}
	now, err := s.openSession(r.Context(), m, size)
	if err != nil {
		return err
	}
	w.Header().Set("Location", Path+"/"+now.ID)
	if r.ContentLength != 0 {
		if err := s.receive(w, r, now, &delivery{length: r.ContentLength, total: -1}); err != nil {
			return err
		}
	}
	setOffsetHeaders(w.Header(), now.info())
	w.WriteHeader(http.StatusCreated)
	return nil
}

// parseUploadLength returns the length in the headers of a new upload; -1: the client will send it
// later.
func parseUploadLength(h http.Header) (int64, error) {
	length, deferred := h.Get("Upload-Length"), h.Get("Upload-Defer-Length")
	switch {
	case (length == "") == (deferred == ""):
		return 0, httperror.New(http.StatusBadRequest, "send Upload-Length, or Upload-Defer-Length: 1")
	case deferred == "1":
		return -1, nil
	case deferred != "":
		return 0, httperror.New(http.StatusBadRequest, "Upload-Defer-Length must be 1")
	}
	return parseLength(length)
}

func parseLength(text string) (int64, error) {
	n, err := parseCount("Upload-Length", text)
	if err == nil {
		err = checkLength(n)
	}
	if err != nil {
		return 0, httperror.New(http.StatusBadRequest, "%s", oneLine(err))
	}
	return n, nil
}

// openSession creates a session, and waits until its job has opened the partial file.
func (s *Server) openSession(ctx context.Context, m metadata, size int64) (*Session, error) {
	now, err := s.sessions.create(m, size)
	if err != nil {
		return nil, err
	}
	defer s.sessions.drop(now)
	ctx, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	if err := s.host.Begin(ctx, m.Name, m.Digest); err != nil {
		return nil, err
	}
	select {
	case <-now.opened:
		return now, nil
	case <-now.ended:
		return nil, now.outcome()
	case <-ctx.Done():
		return nil, unavailable("the job for the upload has not started yet: retry later")
	}
}

func hasBodyType(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == bodyType
}

var errEncoded = httperror.New(http.StatusUnsupportedMediaType, "send the body without a Content-Encoding")

// patch appends a body, or zeros.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, id string) error {
	if !hasBodyType(r) {
		return httperror.New(http.StatusUnsupportedMediaType, "the Content-Type must be %s", bodyType)
	}
	if fetch.Encoding(r.Header) != "" {
		return errEncoded
	}
	d := &delivery{length: r.ContentLength, total: -1, repeat: r.Header.Get("Upload-Overlap") != ""}
	var err error
	if d.from, err = parseCount("Upload-Offset", r.Header.Get("Upload-Offset")); err != nil {
		return httperror.New(http.StatusBadRequest, "%v", err)
	}
	if text := r.Header.Get("Upload-Length"); text != "" {
		if d.total, err = parseLength(text); err != nil {
			return err
		}
	}
	if text := r.Header.Get("Upload-Zeros"); text != "" {
		if d.zeros, err = parseCount("Upload-Zeros", text); err != nil {
			return httperror.New(http.StatusBadRequest, "%v", err)
		}
		if r.ContentLength != 0 {
			return httperror.New(http.StatusBadRequest, "a request with Upload-Zeros must not have a body")
		}
	}
	now, past := s.sessions.find(id)
	end := d.from + max(d.length, d.zeros)
	switch {
	case past != nil && past.err != nil:
		return responseError(past.err)
	case past != nil && end == past.Offset && (d.from == end || d.repeat && d.from < end): // the client repeats a request because it did not receive the response
		setOffsetHeaders(w.Header(), *past)
		w.WriteHeader(http.StatusNoContent)
		return nil
	case past != nil:
		return httperror.New(http.StatusConflict, "the upload has ended: the image is ready")
	case now == nil:
		return s.notFound(id)
	}
	if err := s.receive(w, r, now, d); err != nil {
		w.Header().Set("Upload-Offset", strconv.FormatInt(now.info().Offset, 10))
		return err
	}
	setOffsetHeaders(w.Header(), now.info())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// receive delivers a request with a body. It aborts the request when the body stalls, when another
// request continues the upload, or when the job ends.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, now *Session, d *delivery) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	deadlines := http.NewResponseController(w)
	spare := context.AfterFunc(ctx, func() { _ = deadlines.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !spare() { // a deadline that has passed may be set late, and must not affect the next request
			w.Header().Set("Connection", "close")
		}
	}()
	d.ctx, d.cancel, d.done = ctx, cancel, make(chan error, 1)
	if d.zeros == 0 && r.ContentLength != 0 {
		d.body = fetch.StallReader(r.Body, s.window, cancel)
	}
	if text := r.Header.Get("Upload-Checksum"); text != "" && d.body != nil {
		select {
		case s.checking <- struct{}{}:
			defer func() { <-s.checking }()
		default:
			return unavailable("too many concurrent requests with a checksum: retry later")
		}
		room := bodyBuffers.Get().(*[bodyBufferSize]byte)
		defer bodyBuffers.Put(room) // after deliver, the job does not use the buffer
		if err := verifyBody(d, text, room[:0]); err != nil {
			return err
		}
	}
	err := now.deliver(d)
	if _, known := errors.AsType[*httperror.Error](err); err != nil && !known && !errors.Is(err, context.Canceled) {
		err = httperror.New(http.StatusRequestTimeout, "%v", err) // the body stalled
	}
	if err != nil || r.ContentLength < 0 {
		w.Header().Set("Connection", "close") // the rest of the body may still arrive
	}
	_ = deadlines.SetWriteDeadline(time.Now().Add(answerTime))
	return err
}

// bodyBufferSize is the memory for a body until its checksum is verified, plus the space that
// bytes.Buffer needs to detect the end.
const bodyBufferSize = maxChecked + 1 + bytes.MinRead

// bodyBuffers reuses buffers, because garbage of this size would double the memory.
var bodyBuffers = sync.Pool{New: func() any { return new([bodyBufferSize]byte) }}

// verifyBody reads the whole body into room, verifies its checksum, and replaces d.body by
// the verified bytes.
func verifyBody(d *delivery, text string, room []byte) error {
	sum, err := parseChecksum(text)
	if err != nil {
		return httperror.New(http.StatusBadRequest, "%v", err)
	}
	tooLong := httperror.New(http.StatusRequestEntityTooLarge, "a body with Upload-Checksum must not exceed %d bytes: it is verified in memory", maxChecked)
	if d.length > maxChecked {
		return tooLong
	}
	body := bytes.NewBuffer(room)
	_, err = body.ReadFrom(io.LimitReader(d.body, maxChecked+1))
	switch {
	case context.Cause(d.ctx) != nil:
		return context.Cause(d.ctx)
	case err != nil:
		return httperror.New(http.StatusBadRequest, "the body is incomplete: the connection broke")
	case body.Len() > maxChecked:
		return tooLong
	case !sum.matches(body.Bytes()):
		return httperror.New(statusMismatch, "the body does not match its Upload-Checksum, so no byte of it was appended")
	}
	d.body, d.length = body, int64(body.Len())
	return nil
}
