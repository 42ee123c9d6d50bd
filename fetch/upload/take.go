package upload

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// take does what a request wants, and answers it. An error is one that ends the
// upload; the request is then answered by the end.
func (s *Session) take(ctx context.Context, part *disk.Part, progress *fetch.Progress, d *delivery) error {
	switch {
	case d.end:
		return &fetch.Error{Class: fetch.Source, Err: ErrTerminated}
	case d.look:
		d.done <- nil
		return nil
	}
	if err := s.fits(d, part.Offset()); err != nil {
		d.done <- err
		return nil
	}
	if err := s.measure(part); err != nil {
		return err
	}
	s.taking(d)
	defer s.taking(nil)
	defer context.AfterFunc(ctx, func() { d.cancel(context.Cause(ctx)) })()
	broken, err := s.append(part, progress, d)
	if err != nil {
		return err
	}
	if s.whole(part) && broken == nil {
		return nil // the commit decides what to answer
	}
	s.grown(part, time.Now())
	d.done <- broken
	return nil
}

// fits says why what a request brings cannot come next. Only of one that can the
// length is believed: it may say that the image is whole.
func (s *Session) fits(d *delivery, offset int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	size := s.size
	if d.total >= 0 {
		if size >= 0 && size != d.total {
			return refuse(http.StatusBadRequest, "Upload-Length is %d, and was %d before", d.total, size)
		}
		if d.total < offset {
			return refuse(http.StatusBadRequest, "Upload-Length is %d, and %d bytes are here already", d.total, offset)
		}
		size = d.total
	}
	switch more := max(d.length, d.zeros); {
	case d.from != offset:
		return refuse(http.StatusConflict, "the upload is at %d bytes, and these are for %d", offset, d.from)
	case size >= 0 && more > size-offset:
		return refuse(http.StatusRequestEntityTooLarge, "%d bytes are more than the %d that are missing", more, size-offset)
	}
	s.size = size
	return nil
}

// measure records the length of the image once it is known: senders say it once, and the
// daemon may start again before the last byte.
func (s *Session) measure(part *disk.Part) error {
	s.mu.Lock()
	size := s.size
	s.mu.Unlock()
	if size == part.Origin().Size {
		return nil
	}
	return part.Measure(size)
}

// received takes note that one request less is waiting.
func (s *Session) received() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting--
}

// taking notes the request that is being served, so that the next one can cut it, if
// it is not there already.
func (s *Session) taking(d *delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now = d; d != nil && s.waiting > 0 {
		d.cancel(errTaken)
	}
}

func (s *Session) whole(part *disk.Part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return part.Offset() == s.size
}

// append puts what a request brings into the part. broken is what was wrong with the
// request: what came of it stays. err is what ends the upload.
func (s *Session) append(part *disk.Part, progress *fetch.Progress, d *delivery) (broken, err error) {
	if d.zeros > 0 {
		return appendZeros(d.ctx, part, progress, d.zeros)
	}
	if d.body == nil {
		return nil, nil
	}
	body := &tapped{r: fetch.Pace(d.ctx, d.body, s.pace), progress: progress}
	limit := int64(1<<63 - 1)
	s.mu.Lock()
	if s.size >= 0 {
		limit = s.size - part.Offset()
	}
	s.mu.Unlock()
	_, err = part.ReadFrom(io.LimitReader(body, limit))
	if body.err != nil {
		if cause := context.Cause(d.ctx); cause != nil {
			return cause, nil
		}
		return refuse(http.StatusBadRequest, "the body broke off"), nil
	}
	if err != nil {
		return nil, err
	}
	if s.whole(part) {
		var one [1]byte
		if n, _ := io.ReadFull(d.body, one[:]); n > 0 {
			return nil, &fetch.Error{Class: fetch.Source, Err: errors.New("more bytes came than were announced")}
		}
	}
	return nil, nil
}

// tapped counts what is read, and keeps what its reader says was wrong.
type tapped struct {
	r        io.Reader
	err      error
	progress *fetch.Progress
}

func (t *tapped) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	t.progress.Done.Add(int64(n))
	t.progress.Moved.Add(int64(n))
	if err != nil && !errors.Is(err, io.EOF) {
		t.err = err
	}
	return n, err
}

// appendZeros makes a hole, but for what of it shares a chunk with other bytes.
func appendZeros(ctx context.Context, part *disk.Part, progress *fetch.Progress, n int64) (broken, err error) {
	for n > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx), nil
		}
		step := min(n, disk.ChunkSize-part.Offset()%disk.ChunkSize)
		if step == disk.ChunkSize {
			err = part.PutZeros(step)
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

// errTaken cuts a request whose upload another one goes on with.
var errTaken = refuse(http.StatusConflict, "another request goes on with the upload")
