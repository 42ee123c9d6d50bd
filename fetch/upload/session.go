package upload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

// Session is one upload. Requests append its bytes to the partial file of a job. A session ends with
// its job.
type Session struct {
	ID string
	metadata

	started  bool            // a job has the session; guarded by the mutex of Sessions
	opened   chan struct{}   // closed when the partial file is open
	part     chan *disk.Part // the partial file, while neither a request nor the job uses it
	filled   chan error      // why the upload ends; io.EOF: the image is complete
	ended    chan struct{}   // closed after err is set, which then does not change
	job      context.Context // set, like the next fields, before opened is closed
	pace     *rate.Limiter   // limits the received bytes
	progress *fetch.Progress

	mu      sync.Mutex
	size    int64 // -1: unknown; only the user of the partial file sets it
	offset  int64
	expires time.Time
	abort   context.CancelCauseFunc // aborts the last request that came; nil: it has no body
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

// delivery is what one request appends.
type delivery struct {
	from   int64     // the offset of the bytes
	length int64     // of the body; -1: unknown
	total  int64     // of the image; -1: not given
	body   io.Reader // nil: no body
	zeros  bool      // length zeros, which are not in a body
	repeat bool      // the client may have sent the first bytes before
	skip   int64     // number of bytes at the beginning that the upload already has
}

func newSession(id string, m metadata, size int64) *Session {
	return &Session{
		ID: id, metadata: m, size: size,
		opened: make(chan struct{}), part: make(chan *disk.Part, 1), filled: make(chan error, 1), ended: make(chan struct{}),
	}
}

// info returns the current state.
func (s *Session) info() info {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := info{
		ID: s.ID, Image: s.Name, Offset: s.offset, Length: s.size, Fingerprint: s.Fingerprint, Expires: s.expires,
		State: stateOpening,
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

// end ends the session with its result; nil: the image is ready.
func (s *Session) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	close(s.ended)
}

// Fill fills part with the bytes of requests until the image is complete. It returns an error when ctx
// ends, when the upload fails, and when the upload is discarded (see IsDiscarded). It leaves part to the
// caller in each case. It receives at most perSecond bytes per second; 0: no limit.
func (s *Session) Fill(ctx context.Context, part *disk.Part, perSecond int64, progress *fetch.Progress) error {
	last, err := s.open(part)
	if err != nil {
		return fetch.ClassifyDiskError(err)
	}
	s.job, s.pace, s.progress = ctx, fetch.NewLimiter(perSecond), progress
	progress.Total.Store(s.size)
	progress.Resume(part.Offset())
	s.mu.Lock()
	s.offset, s.expires = part.Offset(), last.Add(sessionTTL)
	s.mu.Unlock()
	if part.Offset() == s.size {
		s.filled <- io.EOF
	} else {
		s.part <- part
	}
	close(s.opened)
	for {
		select {
		case end := <-s.filled:
			return fillError(end)
		case <-time.After(time.Until(s.info().Expires)):
		case <-ctx.Done():
		}
		select { // wait for the request that uses the partial file
		case end := <-s.filled:
			return fillError(end)
		case part := <-s.part:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !time.Now().Before(s.expires) {
				return &fetch.Error{Class: fetch.BadSource, Err: ErrExpired}
			}
			s.part <- part
		}
	}
}

// fillError returns the result of Fill for the end of an upload.
func fillError(end error) error {
	if end == io.EOF {
		return nil
	}
	return fetch.ClassifyDiskError(end)
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

// use calls f with the partial file, which no other goroutine uses meanwhile. It aborts the previous
// request; the next request calls abort. If f returns broken, only the request has failed, and use returns
// that error. If f returns end, the upload ends: use waits until the image is ready or has failed, and
// returns the result.
func (s *Session) use(ctx context.Context, abort context.CancelCauseFunc, f func(*disk.Part) (broken, end error)) error {
	select {
	case <-s.ended:
	case <-s.opened:
	default:
		return locked("the upload is being read back from the disk: retry later")
	}
	s.mu.Lock()
	if s.abort != nil {
		s.abort(errSuperseded)
	}
	s.abort = abort
	s.mu.Unlock()
	var part *disk.Part
	select {
	case part = <-s.part:
	case <-s.ended:
		return s.outcome()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	returned := false
	defer func() {
		if !returned { // the server recovers from a panic, but the job waits for the partial file
			s.filled <- errors.New("a request of the upload failed: the log has the reason")
		}
	}()
	broken, end := f(part)
	returned = true
	if end == nil {
		s.part <- part
		return broken
	}
	s.filled <- end
	<-s.ended
	return s.outcome()
}

// outcome returns the response to a request of an upload that has ended: nil if the image is ready.
func (s *Session) outcome() error {
	if s.err == nil {
		return nil
	}
	if known, ok := errors.AsType[*httperror.Error](s.err); ok {
		return known
	}
	status := http.StatusUnprocessableEntity
	switch {
	case IsDiscarded(s.err):
		status = http.StatusGone
	case errors.Is(s.err, disk.ErrNoSpace), errors.Is(s.err, disk.ErrTooLarge):
		status = http.StatusRequestEntityTooLarge
	}
	return httperror.New(status, "%s", oneLine(fmt.Errorf("the upload has ended: %w", s.err)))
}

// append appends the bytes of a request. cancel aborts the request.
func (s *Session) append(ctx context.Context, cancel context.CancelCauseFunc, d *delivery) error {
	return s.use(ctx, cancel, func(part *disk.Part) (broken, end error) {
		defer context.AfterFunc(s.job, func() { cancel(context.Cause(s.job)) })()
		if broken = s.checkRange(d, part.Offset()); broken != nil {
			return broken, nil
		}
		if end = s.recordSize(part); end != nil {
			return nil, end
		}
		broken, end = s.appendTo(ctx, part, d)
		s.mu.Lock()
		defer s.mu.Unlock()
		if part.Offset() > s.offset {
			s.offset, s.expires = part.Offset(), time.Now().Add(sessionTTL)
		}
		if broken == nil && end == nil && s.offset == s.size {
			end = io.EOF // the response is the result of the commit
		}
		return broken, end
	})
}

// checkRange returns an error if the delivery does not continue the upload, contradicts its length, or is too long. If it
// accepts the delivery, it stores the length of the image, because the delivery may complete it.
func (s *Session) checkRange(d *delivery, offset int64) error {
	size := s.size
	if d.total >= 0 {
		if size >= 0 && size != d.total {
			return badRequest("Upload-Length is %d, but was %d before", d.total, size)
		}
		if d.total < offset {
			return badRequest("Upload-Length is %d, but %d bytes were already received", d.total, offset)
		}
		size = d.total
	}
	more := max(d.length, 0)
	if had := offset - d.from; d.repeat && had > 0 && had <= more {
		d.from, d.skip, more = offset, had, more-had
	}
	switch {
	case d.from != offset:
		return httperror.New(http.StatusConflict, "the upload has %d bytes, but the request begins at %d", offset, d.from)
	case size < 0 && more > maxDeferred-offset:
		return httperror.New(http.StatusRequestEntityTooLarge, "an upload without Upload-Length can have at most 1 TiB: send Upload-Length first")
	case size >= 0 && more > size-offset:
		return httperror.New(http.StatusRequestEntityTooLarge, "the request has %d bytes, but only %d are missing", more, size-offset)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.size = size
	return nil
}

// recordSize stores the length of the image in the partial file when it becomes known. A client sends
// the length only once, and the daemon may restart before the last byte.
func (s *Session) recordSize(part *disk.Part) error {
	if s.size == part.Source().Size {
		return nil
	}
	s.progress.Total.Store(s.size)
	return part.SetSize(s.size)
}

// appendTo appends the bytes of a request to part. broken is an error of the request; the bytes that
// were received before it are kept. err ends the upload.
func (s *Session) appendTo(ctx context.Context, part *disk.Part, d *delivery) (broken, err error) {
	sent, counters := zeros(d.length-d.skip), []*atomic.Int64{&s.progress.Done}
	switch {
	case d.zeros:
	case d.body == nil:
		return nil, nil
	default:
		sent, counters = fetch.RateLimitReader(ctx, d.body, s.pace), append(counters, &s.progress.UpstreamBytes)
		_, err = io.CopyN(io.Discard, sent, d.skip)
	}
	body := &fetch.ErrorRecorder{R: fetch.CountReader(ctx, sent, counters...), Err: err}
	limit := int64(1<<63 - 1)
	if s.size >= 0 {
		limit = s.size - part.Offset()
	}
	// The last byte is appended only after the end of the body: the beginning of a larger file must not
	// become an image.
	_, err = part.ReadFrom(io.LimitReader(body, limit-1))
	var last [2]byte
	n := 0
	if err == nil && body.Err == nil {
		n, _ = io.ReadFull(body, last[:]) // body has the error
	}
	if body.Err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause, nil
		}
		return badRequest("the body is incomplete: the connection broke"), nil
	}
	switch {
	case err != nil:
		return nil, err
	case n == len(last):
		return httperror.New(http.StatusRequestEntityTooLarge, "the body is longer than the rest of the image: send only the missing bytes; the last one was not stored"), nil
	}
	_, err = part.ReadFrom(bytes.NewReader(last[:n]))
	return nil, err
}

// zeros returns a reader of n zeros. A partial file stores a chunk of zeros as a hole.
func zeros(n int64) io.Reader { return io.LimitReader(zeroReader{}, n) }

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// errSuperseded aborts a request because another request continues the upload.
var errSuperseded = httperror.New(http.StatusConflict, "another request continues the upload")
