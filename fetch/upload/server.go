package upload

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

const (
	// Path is where uploads are created; each has its own below it.
	Path = "/v1/uploads"
	// maxChecked is the longest body that may come with an Upload-Checksum.
	maxChecked = 4 << 20

	version    = "1.0.0"
	extensions = "creation,creation-with-upload,creation-defer-length,termination,checksum,expiration"
	bodyType   = "application/offset+octet-stream"

	stallWindow = 30 * time.Second // less than 1 KiB/s for so long is a stall
	openTime    = time.Minute      // for a job to open a part
	answerTime  = time.Minute
)

// statusMismatch is tus's for a body that has not the checksum it came with.
const statusMismatch = 460

// Host is the manager of the node that receives uploads. Any goroutine may call its
// methods.
type Host interface {
	// Begin starts the job that receives a new upload of the image: it calls
	// Sessions.Begin. The image must have the digest, unless that is zero. An
	// *httperror.Error is why there is no such job.
	Begin(ctx context.Context, image string, digest disk.Digest) error
	// Interrupted reports whether a disk has a partial file of the upload for which a
	// job will start.
	Interrupted(id string) bool
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
	return &Server{sessions: sessions, host: host, checking: make(chan struct{}, maxUploads), window: stallWindow}
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

// show tells of one upload, for a while after it has ended too.
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

// notFound says that there is no such upload, if that is so.
func (s *Server) notFound(id string) error {
	if s.host.Interrupted(id) {
		return locked("the upload is interrupted: it goes on in a moment, or when what status says of the image is over")
	}
	return httperror.New(http.StatusNotFound, "there is no such upload: it was never there, or has ended")
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

// setOffsetHeaders says how far an upload is, and until when it is kept.
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

// deliverEmpty delivers what has no body.
func (*Server) deliverEmpty(r *http.Request, one *Session, d *delivery) error {
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

// writeError sends the response for err. An error that is not an *httperror.Error means
// that the daemon stops, or that the sender is gone.
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

// create begins an upload, and takes its first bytes if they come along.
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
		return httperror.New(http.StatusBadRequest, "say which image it is: Upload-Metadata: name NAME, NAME in base64")
	case r.ContentLength != 0 && !hasBodyType(r):
		return httperror.New(http.StatusUnsupportedMediaType, "a body has to be of the type %s", bodyType)
	case hasEncoding(r):
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

// parseUploadLength is the length that the headers of a new upload give; -1: it comes later.
func parseUploadLength(h http.Header) (int64, error) {
	length, deferred := h.Get("Upload-Length"), h.Get("Upload-Defer-Length")
	switch {
	case (length == "") == (deferred == ""):
		return 0, httperror.New(http.StatusBadRequest, "send Upload-Length, or Upload-Defer-Length: 1")
	case deferred == "1":
		return -1, nil
	case deferred != "":
		return 0, httperror.New(http.StatusBadRequest, "Upload-Defer-Length can only be 1")
	}
	return parseLength(length)
}

func parseLength(text string) (int64, error) {
	n, err := parseCount("Upload-Length", text)
	if err == nil {
		err = checkLength(n)
	}
	if err != nil {
		return 0, httperror.New(http.StatusBadRequest, "%v", err)
	}
	return n, nil
}

// openSession has a job open the part of a new upload, and waits for that.
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
		return nil, unavailable("the disk has not begun with it: try again in a moment")
	}
}

func hasBodyType(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == bodyType
}

// hasEncoding reports whether the body is not what is to be kept, but packed for the way:
// kept as it came it would be another image.
func hasEncoding(r *http.Request) bool {
	how := r.Header.Get("Content-Encoding")
	return how != "" && how != "identity"
}

var errEncoded = httperror.New(http.StatusUnsupportedMediaType, "send the body as it is, without a Content-Encoding")

// patch appends a body, or zeros that need none.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, id string) error {
	if !hasBodyType(r) {
		return httperror.New(http.StatusUnsupportedMediaType, "the Content-Type has to be %s", bodyType)
	}
	if hasEncoding(r) {
		return errEncoded
	}
	d := &delivery{length: r.ContentLength, total: -1}
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
			return httperror.New(http.StatusBadRequest, "Upload-Zeros stands for a body: send none")
		}
	}
	now, past := s.sessions.find(id)
	switch {
	case past != nil && past.err != nil:
		return responseError(past.err)
	case past != nil && d.from == past.Offset && r.ContentLength == 0 && d.zeros == 0: // nobody heard the answer
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

// receive delivers a request with its body. It is cut when it stalls, when another
// request goes on with the upload, or when the job ends.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, now *Session, d *delivery) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	deadlines := http.NewResponseController(w)
	spare := context.AfterFunc(ctx, func() { _ = deadlines.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !spare() { // it may come late, and is not for the next request
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
			return unavailable("too many bodies with a checksum come at the same time")
		}
		room := bodyBuffers.Get().(*[bodyBufferSize]byte)
		defer bodyBuffers.Put(room) // the job is through with it when it has answered
		if err := verifyBody(d, text, room[:0]); err != nil {
			return err
		}
	}
	err := now.deliver(d)
	if _, known := errors.AsType[*httperror.Error](err); err != nil && !known && !errors.Is(err, context.Canceled) {
		err = httperror.New(http.StatusRequestTimeout, "%v", err) // it stalled
	}
	if err != nil || r.ContentLength < 0 {
		w.Header().Set("Connection", "close") // there may be more of the body
	}
	_ = deadlines.SetWriteDeadline(time.Now().Add(answerTime))
	return err
}

// bodyBufferSize is what a body takes until its checksum is known, and what Buffer wants to
// see its end.
const bodyBufferSize = maxChecked + 1 + bytes.MinRead

// bodyBuffers are used again and again: garbage of this size would double the memory.
var bodyBuffers = sync.Pool{New: func() any { return new([bodyBufferSize]byte) }}

// verifyBody reads a whole body into room and replaces it by what it was, if it has its
// checksum.
func verifyBody(d *delivery, text string, room []byte) error {
	sum, err := parseChecksum(text)
	if err != nil {
		return httperror.New(http.StatusBadRequest, "%v", err)
	}
	tooLong := httperror.New(http.StatusRequestEntityTooLarge, "a body with Upload-Checksum may have %d bytes at most: it is checked before any of it is kept", maxChecked)
	if d.length > maxChecked {
		return tooLong
	}
	body := bytes.NewBuffer(room)
	_, err = body.ReadFrom(io.LimitReader(d.body, maxChecked+1))
	switch {
	case context.Cause(d.ctx) != nil:
		return context.Cause(d.ctx)
	case err != nil:
		return httperror.New(http.StatusBadRequest, "the body broke off")
	case body.Len() > maxChecked:
		return tooLong
	case !sum.matches(body.Bytes()):
		return httperror.New(statusMismatch, "the body has not the checksum that it came with: nothing of it was kept")
	}
	d.body, d.length = body, int64(body.Len())
	return nil
}
