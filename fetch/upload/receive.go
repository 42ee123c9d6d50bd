package upload

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/fetch"
)

// create begins an upload, and takes its first bytes if they come along.
func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	size, err := announced(r.Header)
	if err != nil {
		return err
	}
	m, err := parseMetadata(r.Header.Get("Upload-Metadata"))
	switch {
	case err != nil:
		return refuse(http.StatusBadRequest, "%v", err)
	case m.Name == "":
		return refuse(http.StatusBadRequest, "say which image it is: Upload-Metadata: name NAME, NAME in base64")
	case r.ContentLength != 0 && !hasBodyType(r):
		return refuse(http.StatusUnsupportedMediaType, "a body has to be of the type %s", bodyType)
	case encoded(r):
		return errEncoded
	}
	now, err := s.open(r.Context(), m, size)
	if err != nil {
		return err
	}
	w.Header().Set("Location", Path+"/"+now.ID)
	if r.ContentLength != 0 {
		if err := s.receive(w, r, now, &delivery{length: r.ContentLength, total: -1}); err != nil {
			return err
		}
	}
	tell(w.Header(), now.Info())
	w.WriteHeader(http.StatusCreated)
	return nil
}

// announced is the length that the headers of a new upload give; -1: it comes later.
func announced(h http.Header) (int64, error) {
	length, deferred := h.Get("Upload-Length"), h.Get("Upload-Defer-Length")
	switch {
	case (length == "") == (deferred == ""):
		return 0, refuse(http.StatusBadRequest, "send Upload-Length, or Upload-Defer-Length: 1")
	case deferred == "1":
		return -1, nil
	case deferred != "":
		return 0, refuse(http.StatusBadRequest, "Upload-Defer-Length can only be 1")
	}
	return parseLength(length)
}

func parseLength(text string) (int64, error) {
	n, err := parseCount("Upload-Length", text)
	if err == nil {
		err = checkLength(n)
	}
	if err != nil {
		return 0, refuse(http.StatusBadRequest, "%v", err)
	}
	return n, nil
}

// open has a job open the part of a new upload, and waits for that.
func (s *Server) open(ctx context.Context, m Metadata, size int64) (*Session, error) {
	now, err := s.sessions.announce(m, size)
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
		return nil, later("the disk has not begun with it: try again in a moment")
	}
}

func hasBodyType(r *http.Request) bool {
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return err == nil && kind == bodyType
}

// encoded reports whether the body is not what is to be kept, but packed for the way:
// kept as it came it would be another image.
func encoded(r *http.Request) bool {
	how := r.Header.Get("Content-Encoding")
	return how != "" && how != "identity"
}

var errEncoded = refuse(http.StatusUnsupportedMediaType, "send the body as it is, without a Content-Encoding")

// patch appends a body, or zeros that need none.
func (s *Server) patch(w http.ResponseWriter, r *http.Request, id string) error {
	if !hasBodyType(r) {
		return refuse(http.StatusUnsupportedMediaType, "the Content-Type has to be %s", bodyType)
	}
	if encoded(r) {
		return errEncoded
	}
	d := &delivery{length: r.ContentLength, total: -1}
	var err error
	if d.from, err = parseCount("Upload-Offset", r.Header.Get("Upload-Offset")); err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	if text := r.Header.Get("Upload-Length"); text != "" {
		if d.total, err = parseLength(text); err != nil {
			return err
		}
	}
	if text := r.Header.Get("Upload-Zeros"); text != "" {
		if d.zeros, err = parseCount("Upload-Zeros", text); err != nil {
			return refuse(http.StatusBadRequest, "%v", err)
		}
		if r.ContentLength != 0 {
			return refuse(http.StatusBadRequest, "Upload-Zeros stands for a body: send none")
		}
	}
	now, past := s.sessions.find(id)
	switch {
	case past != nil && past.err != nil:
		return verdict(past.err)
	case past != nil && d.from == past.Offset && r.ContentLength == 0 && d.zeros == 0: // nobody heard the answer
		tell(w.Header(), *past)
		w.WriteHeader(http.StatusNoContent)
		return nil
	case past != nil:
		return refuse(http.StatusConflict, "the upload has ended: the image is ready")
	case now == nil:
		return s.unknown(id)
	}
	if err := s.receive(w, r, now, d); err != nil {
		w.Header().Set("Upload-Offset", strconv.FormatInt(now.Info().Offset, 10))
		return err
	}
	tell(w.Header(), now.Info())
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
		d.body = fetch.Watch(r.Body, s.window, cancel)
	}
	if text := r.Header.Get("Upload-Checksum"); text != "" && d.body != nil {
		select {
		case s.checking <- struct{}{}:
			defer func() { <-s.checking }()
		default:
			return later("too many bodies with a checksum come at the same time")
		}
		room := rooms.Get().(*[roomSize]byte)
		defer rooms.Put(room) // the job is through with it when it has answered
		if err := check(d, text, room[:0]); err != nil {
			return err
		}
	}
	err := now.deliver(d)
	if _, known := errors.AsType[*Refused](err); err != nil && !known && !errors.Is(err, context.Canceled) {
		err = refuse(http.StatusRequestTimeout, "%v", err) // it stalled
	}
	if err != nil || r.ContentLength < 0 {
		w.Header().Set("Connection", "close") // there may be more of the body
	}
	_ = deadlines.SetWriteDeadline(time.Now().Add(answerTime))
	return err
}

// roomSize is what a body takes until its checksum is known, and what Buffer wants to
// see its end.
const roomSize = MaxChecked + 1 + bytes.MinRead

// rooms are used again and again: garbage of this size would double the memory.
var rooms = sync.Pool{New: func() any { return new([roomSize]byte) }}

// check reads a whole body into room and replaces it by what it was, if it has its
// checksum.
func check(d *delivery, text string, room []byte) error {
	sum, err := parseChecksum(text)
	if err != nil {
		return refuse(http.StatusBadRequest, "%v", err)
	}
	tooLong := refuse(http.StatusRequestEntityTooLarge, "a body with Upload-Checksum may have %d bytes at most: it is checked before any of it is kept", MaxChecked)
	if d.length > MaxChecked {
		return tooLong
	}
	body := bytes.NewBuffer(room)
	_, err = body.ReadFrom(io.LimitReader(d.body, MaxChecked+1))
	switch {
	case context.Cause(d.ctx) != nil:
		return context.Cause(d.ctx)
	case err != nil:
		return refuse(http.StatusBadRequest, "the body broke off")
	case body.Len() > MaxChecked:
		return tooLong
	case !sum.matches(body.Bytes()):
		return refuse(statusMismatch, "the body has not the checksum that it came with: nothing of it was kept")
	}
	d.body, d.length = body, int64(body.Len())
	return nil
}
