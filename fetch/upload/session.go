package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// Session is one upload. Requests deliver its bytes to a job, which writes them to the partial file.
// A session ends with its job.
type Session struct {
	ID string
	metadata

	started  bool          // a job has the session; guarded by the mutex of Sessions
	pace     *rate.Limiter // limits the received bytes; set by the job
	incoming chan *delivery
	opened   chan struct{} // closed when the partial file is open
	ended    chan struct{} // closed after err is set

	mu      sync.Mutex
	size    int64 // -1: unknown
	offset  int64
	expires time.Time
	waiting int       // number of requests that the job has not received yet
	current *delivery // the request that the job is handling
	err     error
}

// info is the public state of an upload.
type info struct {
	ID          string    `json:"id"`
	Image       string    `json:"image"`
	Offset      int64     `json:"offset"`
	Length      int64     `json:"length"` // -1: unknown
	Fingerprint string    `json:"fingerprint,omitempty"`
	Expires     time.Time `json:"expires,omitzero"`
	State       state     `json:"state"`
	Error       string    `json:"error,omitempty"` // why the upload failed

	metadata string
	err      error
}

// state is the phase of an upload.
type state string

// The states of an upload. While an upload is opening, its offset is unknown.
const (
	stateOpening state = "opening"
	stateOpen    state = "open"
	stateDone    state = "done"
	stateFailed  state = "failed"
)

// operation is the action of a request on an upload.
type operation uint8

const (
	opAppend    operation = iota // append bytes or zeros
	opStatus                     // read the number of received bytes
	opTerminate                  // discard the upload
)

// delivery contains what one request passes to the job.
type delivery struct {
	op     operation
	ctx    context.Context // of the request; when it ends, the body is aborted
	cancel context.CancelCauseFunc

	from   int64     // the offset of the bytes
	length int64     // of the body; -1: unknown
	total  int64     // of the image; -1: not given
	body   io.Reader // nil: no body
	zeros  int64
	repeat bool  // the client may have sent the first bytes before
	skip   int64 // number of bytes that the upload has already

	done chan error
}

func newSession(id string, m metadata, size int64) *Session {
	return &Session{
		ID: id, metadata: m, size: size,
		incoming: make(chan *delivery), opened: make(chan struct{}), ended: make(chan struct{}),
	}
}

// info returns the current state.
func (s *Session) info() info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := info{
		ID: s.ID, Image: s.Name, Offset: s.offset, Length: s.size, Fingerprint: s.Fingerprint, Expires: s.expires,
		State: stateOpening, metadata: s.text, err: s.err,
	}
	switch {
	case s.err != nil:
		i.State, i.Error = stateFailed, oneLine(s.err)
	case isClosed(s.ended):
		i.State = stateDone
	case isClosed(s.opened):
		i.State = stateOpen
	}
	return i
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *Session) isOpen() bool { return isClosed(s.opened) }

// end ends the session.
func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	close(s.ended)
}

// Fill fills part with the bytes of requests until the image is complete. It returns an error when
// ctx ends, and when the upload is discarded (see IsDiscarded). In both cases a later job can resume
// part. It receives at most perSecond bytes per second; 0: no limit.
func (s *Session) Fill(ctx context.Context, part *disk.Part, perSecond int64, progress *fetch.Progress) error {
	s.pace = fetch.NewLimiter(perSecond)
	last, err := s.open(part)
	if err != nil {
		return fetch.ClassifyDiskError(err)
	}
	progress.Resume(part.Offset())
	close(s.opened)
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for {
		size, offset := s.updateOffset(part, last)
		progress.Total.Store(size)
		if offset == size {
			return nil
		}
		expiry.Reset(time.Until(last.Add(sessionTTL)))
		select {
		case d := <-s.incoming:
			s.dequeued()
			if err := s.handle(ctx, part, progress, d); err != nil {
				return fetch.ClassifyDiskError(err)
			}
			if part.Offset() > offset {
				last = time.Now()
			}
		case <-expiry.C:
			return &fetch.Error{Class: fetch.BadSource, Err: ErrExpired}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// CanResume reports whether a partial file from this source belongs to this upload.
func (s *Session) CanResume(o disk.PartSource) bool {
	return o.Kind == model.PartFromUpload && o.ETag == s.ID
}

// open prepares part for this upload, and returns the time when its last byte was received.
func (s *Session) open(part *disk.Part) (last time.Time, err error) {
	now := time.Now()
	if s.CanResume(part.Source()) {
		touched, err := part.ModTime()
		if touched.After(now) {
			touched = now // the clock was set back after that
		}
		return touched, err
	}
	return now, part.Begin(disk.PartSource{Kind: model.PartFromUpload, ETag: s.ID, Metadata: s.text, Size: s.size, Data: s.Data})
}

// updateOffset publishes the offset of part and the expiry.
func (s *Session) updateOffset(part *disk.Part, last time.Time) (size, offset int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset, s.expires = part.Offset(), last.Add(sessionTTL)
	return s.size, s.offset
}

// deliver passes a request to the job, and waits until the job has handled it. If the request
// completes the image, deliver waits until the image is ready or has failed.
func (s *Session) deliver(d *delivery) error {
	if !s.isOpen() {
		return locked("the upload is being read back from the disk: retry later")
	}
	s.mu.Lock()
	s.waiting++
	if s.current != nil {
		s.current.cancel(errSuperseded)
	}
	s.mu.Unlock()
	select {
	case s.incoming <- d:
	case <-s.ended:
		return s.outcome()
	case <-d.ctx.Done():
		s.dequeued()
		return context.Cause(d.ctx)
	}
	select {
	case err := <-d.done:
		return err
	case <-s.ended:
		return s.outcome()
	}
}

// outcome returns the result of an ended upload: nil if the image is ready.
func (s *Session) outcome() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return responseError(s.err)
}

// responseError returns the error response for the end of an upload.
func responseError(err error) error {
	if err == nil {
		return nil
	}
	if known, ok := errors.AsType[*httperror.Error](err); ok {
		return known
	}
	status := http.StatusUnprocessableEntity
	switch {
	case IsDiscarded(err):
		status = http.StatusGone
	case errors.Is(err, disk.ErrNoSpace), errors.Is(err, disk.ErrTooLarge):
		status = http.StatusRequestEntityTooLarge
	}
	return httperror.New(status, "%s", oneLine(fmt.Errorf("the upload has ended: %w", err)))
}

// endError returns the error with which the upload ended, or nil.
func (s *Session) endError() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// handle handles a request in the goroutine of the job. If it returns an error, the upload ends, and
// the error is the response to the request.
func (s *Session) handle(ctx context.Context, part *disk.Part, progress *fetch.Progress, d *delivery) error {
	switch {
	case d.op == opTerminate:
		return &fetch.Error{Class: fetch.BadSource, Err: errTerminated}
	case d.op == opStatus:
		d.done <- nil
		return nil
	}
	if err := s.checkRange(d, part.Offset()); err != nil {
		d.done <- err
		return nil
	}
	if err := s.recordSize(part); err != nil {
		return err
	}
	s.setCurrent(d)
	defer s.setCurrent(nil)
	defer context.AfterFunc(ctx, func() { d.cancel(context.Cause(ctx)) })()
	broken, err := s.append(part, progress, d)
	if err != nil {
		return err
	}
	if s.isComplete(part) && broken == nil {
		return nil // the response is the result of the commit
	}
	s.updateOffset(part, time.Now())
	d.done <- broken
	return nil
}

// checkRange returns an error if the delivery does not continue the upload at its offset. Only
// otherwise is its total used, because it may complete the image.
func (s *Session) checkRange(d *delivery, offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := s.size
	if d.total >= 0 {
		if size >= 0 && size != d.total {
			return httperror.New(http.StatusBadRequest, "Upload-Length is %d, but was %d before", d.total, size)
		}
		if d.total < offset {
			return httperror.New(http.StatusBadRequest, "Upload-Length is %d, but %d bytes were already received", d.total, offset)
		}
		size = d.total
	}
	more := max(d.length, d.zeros)
	if had := offset - d.from; d.repeat && had > 0 && had <= more {
		d.from, d.skip, d.zeros, more = offset, had, max(0, d.zeros-had), more-had
	}
	switch {
	case d.from != offset:
		return httperror.New(http.StatusConflict, "the upload has %d bytes, but the request begins at %d", offset, d.from)
	case size < 0 && more > maxDeferred-offset:
		return httperror.New(http.StatusRequestEntityTooLarge, "an upload without Upload-Length can have at most 1 TiB: send Upload-Length first")
	case size >= 0 && more > size-offset:
		return httperror.New(http.StatusRequestEntityTooLarge, "the request has %d bytes, but only %d are missing", more, size-offset)
	}
	s.size = size
	return nil
}

// recordSize stores the length of the image in the partial file when it becomes known. A client sends
// the length only once, and the daemon may restart before the last byte.
func (s *Session) recordSize(part *disk.Part) error {
	s.mu.Lock()
	size := s.size
	s.mu.Unlock()
	if size == part.Source().Size {
		return nil
	}
	return part.SetSize(size)
}

// dequeued decrements the number of waiting requests.
func (s *Session) dequeued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
}

// setCurrent sets the request that the job is handling. The next request aborts it, immediately if
// the next request is already waiting.
func (s *Session) setCurrent(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current = d; d != nil && s.waiting > 0 {
		d.cancel(errSuperseded)
	}
}

func (s *Session) isComplete(part *disk.Part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return part.Offset() == s.size
}

// append appends the bytes of a request to part. broken is an error of the request; the bytes that
// were received before it are kept. err ends the upload.
func (s *Session) append(part *disk.Part, progress *fetch.Progress, d *delivery) (broken, err error) {
	if d.zeros > 0 {
		return appendZeros(d.ctx, part, progress, d.zeros)
	}
	if d.body == nil {
		return nil, nil
	}
	sent := fetch.RateLimitReader(d.ctx, d.body, s.pace)
	_, err = io.CopyN(io.Discard, sent, d.skip)
	body := &fetch.ErrorRecorder{R: fetch.CountReader(d.ctx, sent, &progress.Done, &progress.UpstreamBytes), Err: err}
	limit := int64(1<<63 - 1)
	s.mu.Lock()
	if s.size >= 0 {
		limit = s.size - part.Offset()
	}
	s.mu.Unlock()
	// The last byte is appended only after the end of the body: the beginning of a larger file must not
	// become an image.
	_, err = part.ReadFrom(io.LimitReader(body, limit-1))
	var last [2]byte
	n := 0
	if err == nil && body.Err == nil {
		n, _ = io.ReadFull(body, last[:]) // body has the error
	}
	if body.Err != nil {
		if cause := context.Cause(d.ctx); cause != nil {
			return cause, nil
		}
		return httperror.New(http.StatusBadRequest, "the body is incomplete: the connection broke"), nil
	}
	switch {
	case err != nil:
		return nil, err
	case n == len(last):
		return httperror.New(http.StatusRequestEntityTooLarge, "the request has more bytes than are missing: the last missing byte was not appended"), nil
	}
	_, err = part.ReadFrom(bytes.NewReader(last[:n]))
	return nil, err
}

// appendZeros appends zeros: holes for whole chunks, and bytes for the rest.
func appendZeros(ctx context.Context, part *disk.Part, progress *fetch.Progress, n int64) (broken, err error) {
	for n > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx), nil
		}
		step := min(n, disk.ChunkSize-part.Offset()%disk.ChunkSize)
		if step == disk.ChunkSize {
			err = part.AppendZeros(step)
		} else {
			_, err = part.ReadFrom(io.LimitReader(zeros{}, step))
		}
		if err != nil {
			return nil, err
		}
		n -= step
		progress.Done.Add(step)
	}
	return nil, nil
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// errSuperseded aborts a request because another request continues the upload.
var errSuperseded = httperror.New(http.StatusConflict, "another request continues the upload")
