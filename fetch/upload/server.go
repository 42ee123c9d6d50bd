package upload

import (
	"bytes"
	"cmp"
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

	"github.com/seed-26586806/backing-image-manager/disk"
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
	id := r.PathValue("id")
	switch {
	case method == http.MethodOptions:
		s.options(w)
		return nil
	case id == "" && method == http.MethodGet:
		return answerJSON(w, s.sessions.list())
	case id == "" && method == http.MethodPost:
		return s.create(w, r)
	case id == "":
		return notAllowed(w, "GET, POST, OPTIONS")
	}
	handle := map[string]func(http.ResponseWriter, *http.Request, *Session) error{
		http.MethodGet: show, http.MethodHead: head, http.MethodPatch: s.patch, http.MethodDelete: terminate,
	}[method]
	if handle == nil {
		return notAllowed(w, "GET, HEAD, PATCH, DELETE, OPTIONS")
	}
	one, err := s.find(id)
	if err != nil {
		return err
	}
	return handle(w, r, one)
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

// find returns the session of an upload that is in progress or ended recently.
func (s *Server) find(id string) (*Session, error) {
	if one := s.sessions.find(id); one != nil {
		return one, nil
	}
	if s.host.Interrupted(id) {
		return nil, locked("the upload is interrupted: it resumes soon, or when the problem in the status of the image is solved")
	}
	return nil, httperror.New(http.StatusNotFound, "there is no such upload: it never existed, or it has ended")
}

func show(w http.ResponseWriter, _ *http.Request, one *Session) error {
	return answerJSON(w, one.info())
}

func head(w http.ResponseWriter, r *http.Request, one *Session) error {
	// use aborts the request in progress, so the offset is final.
	if err := one.use(r.Context(), nil, func(*disk.Part) (broken, end error) { return nil, nil }); err != nil {
		return err
	}
	h, i := w.Header(), one.info()
	setOffsetHeaders(h, i)
	if i.Length >= 0 {
		h.Set("Upload-Length", strconv.FormatInt(i.Length, 10))
	} else {
		h.Set("Upload-Defer-Length", "1")
	}
	if one.text != "" {
		h.Set("Upload-Metadata", one.text)
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

// setOffsetHeaders sets the headers for the offset and the expiry of an upload.
func setOffsetHeaders(h http.Header, i info) {
	h.Set("Upload-Offset", strconv.FormatInt(i.Offset, 10))
	if i.State == stateOpen {
		h.Set("Upload-Expires", i.Expires.UTC().Format(http.TimeFormat))
	}
}

// errReady is the response to a request that would change a ready image.
var errReady error = httperror.New(http.StatusConflict, "the upload has ended: the image is ready")

func terminate(w http.ResponseWriter, r *http.Request, one *Session) error {
	terminated := false
	err := one.use(r.Context(), nil, func(*disk.Part) (broken, end error) {
		terminated = true
		return nil, &fetch.Error{Class: fetch.BadSource, Err: errTerminated}
	})
	if !terminated || !errors.Is(one.err, errTerminated) { // for example, the partial file cannot be removed
		return cmp.Or(err, errReady)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func answerJSON(w http.ResponseWriter, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode a response: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
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
	if err != nil {
		return err
	}
	if m.Name == "" {
		return badRequest("the name of the image is missing: send Upload-Metadata: name NAME, with NAME in base64")
	}
	if r.ContentLength != 0 {
		if err := checkType(r.Header); err != nil {
			return err
		}
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
		return 0, badRequest("send Upload-Length, or Upload-Defer-Length: 1")
	case deferred == "1":
		return -1, nil
	case deferred != "":
		return 0, badRequest("Upload-Defer-Length must be 1")
	}
	return parseLength(length)
}

func parseLength(text string) (int64, error) {
	n, err := parseCount("Upload-Length", text)
	if err != nil {
		return 0, err
	}
	if err := checkLength(n); err != nil {
		return 0, badRequest("%s", oneLine(err))
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

// checkType returns an error if a body of this type cannot be appended.
func checkType(h http.Header) error {
	if kind, _, err := mime.ParseMediaType(h.Get("Content-Type")); err != nil || kind != bodyType {
		return httperror.New(http.StatusUnsupportedMediaType, "the Content-Type of a body must be %s", bodyType)
	}
	if fetch.Encoding(h) != "" {
		return httperror.New(http.StatusUnsupportedMediaType, "send the body without a Content-Encoding")
	}
	return nil
}

// patch appends a body, or zeros.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, now *Session) error {
	err := checkType(r.Header)
	if err != nil {
		return err
	}
	d := &delivery{length: r.ContentLength, total: -1, repeat: r.Header.Get("Upload-Overlap") != ""}
	if d.from, err = parseCount("Upload-Offset", r.Header.Get("Upload-Offset")); err != nil {
		return err
	}
	if text := r.Header.Get("Upload-Length"); text != "" {
		if d.total, err = parseLength(text); err != nil {
			return err
		}
	}
	if text := r.Header.Get("Upload-Zeros"); text != "" {
		d.zeros = true
		if d.length, err = parseCount("Upload-Zeros", text); err != nil {
			return err
		}
		if r.ContentLength != 0 {
			return badRequest("a request with Upload-Zeros must not have a body")
		}
	}
	if isClosed(now.ended) {
		err = now.outcome()
		// A client may repeat a request whose response it did not receive: the server sends that response again.
		if end := d.from + max(d.length, 0); err == nil && (end != now.offset || d.from != end && !(d.repeat && d.from < end)) {
			err = errReady
		}
		if err != nil {
			return err
		}
	} else if err := s.receive(w, r, now, d); err != nil {
		w.Header().Set("Upload-Offset", strconv.FormatInt(now.info().Offset, 10))
		return err
	}
	setOffsetHeaders(w.Header(), now.info())
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// receive appends the bytes of a request. It aborts the request when the body stalls, when another
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
	if r.ContentLength != 0 {
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
		defer bodyBuffers.Put(room)
		if err := verifyBody(ctx, d, text, room[:0]); err != nil {
			return err
		}
	}
	err := now.append(ctx, cancel, d)
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
func verifyBody(ctx context.Context, d *delivery, text string, room []byte) error {
	matches, err := parseChecksum(text)
	if err != nil {
		return err
	}
	tooLong := httperror.New(http.StatusRequestEntityTooLarge, "a body with Upload-Checksum must not exceed %d bytes: it is verified in memory", maxChecked)
	if d.length > maxChecked {
		return tooLong
	}
	body := bytes.NewBuffer(room)
	_, err = body.ReadFrom(io.LimitReader(d.body, maxChecked+1))
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return badRequest("the body is incomplete: the connection broke")
	case body.Len() > maxChecked:
		return tooLong
	case !matches(body.Bytes()):
		return httperror.New(statusMismatch, "the body does not match its Upload-Checksum, so no byte of it was appended")
	}
	d.body, d.length = body, int64(body.Len())
	return nil
}
