package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/seed-26586806/backing-image-manager/disk"
)

const maxManifests = 16 // sent at once; beyond, they queue

func (s *Server) data(w http.ResponseWriter, r *http.Request) {
	d, id, ok := s.sendable(w, r)
	if !ok {
		return
	}
	ctx, end, ok := s.begun(w, r, id)
	if !ok {
		return
	}
	defer end()
	image, err := d.Open(id)
	if err != nil {
		answerError(w, http.StatusConflict, err.Error())
		return
	}
	defer image.Close()
	size := image.Size()
	part, status := span{0, size}, http.StatusOK
	if header := r.Header.Get("Range"); header != "" {
		if part, err = parseSpan(header, size); err != nil {
			answerRange(w, size, err)
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.to-1, size))
	}
	s.pour(ctx, w, status, part.to-part.from, image.Unchanged, func(w io.Writer) error {
		return image.Send(w, part.from, part.to, nil)
	})
}

func answerRange(w http.ResponseWriter, size int64, err error) {
	status := http.StatusBadRequest
	if errors.Is(err, errBeyondFile) {
		status = http.StatusRequestedRangeNotSatisfiable
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	}
	answerError(w, status, err.Error())
}

func (s *Server) manifest(w http.ResponseWriter, r *http.Request) {
	d, id, ok := s.sendable(w, r)
	if !ok {
		return
	}
	select {
	case s.manifests <- struct{}{}:
		defer func() { <-s.manifests }()
	case <-r.Context().Done():
		answerError(w, http.StatusServiceUnavailable, "too many ask at once")
		return
	}
	m, err := d.Manifest(id)
	if err != nil {
		answerError(w, http.StatusConflict, err.Error())
		return
	}
	defer m.Close()
	sums := m.Sums()
	lasting := func() error { return nil }
	s.pour(r.Context(), w, http.StatusOK, sums.Size(), lasting, func(w io.Writer) error {
		_, err := io.CopyN(w, sums, sums.Size())
		return err
	})
}

// sendable returns the disk and the image that are asked for, if the copy is ready to
// be sent; else it answers why not. The name of the disk comes from the configuration
// and the image's is checked: no path of a request gets as far as a file.
func (s *Server) sendable(w http.ResponseWriter, r *http.Request) (d *disk.Disk, id disk.ID, ok bool) {
	id = disk.ID{Name: r.PathValue("name"), UUID: r.PathValue("uuid")}
	if err := errors.Join(disk.CheckName(id.Name), disk.CheckUUID(id.UUID)); err != nil {
		answerError(w, http.StatusBadRequest, err.Error())
		return nil, id, false
	}
	on := r.URL.Query().Get("disk")
	if d, ok = s.host.Disk(on); !ok {
		answerError(w, http.StatusNotFound, fmt.Sprintf("there is no disk %q here", on))
		return nil, id, false
	}
	if s.host.Leaving(on, id) {
		answerError(w, http.StatusConflict, fmt.Sprintf("%s is leaving disk %s", id, on))
		return nil, id, false
	}
	switch c := d.Look(id); {
	case c.State == disk.Pending:
		answerError(w, http.StatusNotFound, fmt.Sprintf("%s is not on disk %s", id, on))
		return nil, id, false
	case c.State != disk.Ready:
		answerError(w, http.StatusConflict, fmt.Sprintf("%s on disk %s is %s", id, on, c.State))
		return nil, id, false
	}
	return d, id, true
}

// begun takes a slot for sending an image, or answers that there is none. The sending
// has to end with ctx, and end has to be called behind it.
func (s *Server) begun(w http.ResponseWriter, r *http.Request, id disk.ID) (ctx context.Context, end func(), ok bool) {
	ctx, cancel := context.WithCancel(r.Context())
	free, ok := s.sends.take(id, cancel)
	if !ok {
		cancel()
		w.Header().Set("Retry-After", "1")
		answerError(w, http.StatusTooManyRequests, "sending limit")
		return nil, nil, false
	}
	return ctx, func() { free(); cancel() }, true
}

// pour answers with the bytes that send writes, as long as may says so. When it fails
// the connection is broken, so that nobody takes what was sent for the whole.
func (s *Server) pour(ctx context.Context, w http.ResponseWriter, status int, length int64, may func() error, send func(io.Writer) error) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(status)
	p, done := begin(ctx, w, s.piece, may)
	defer done()
	if send(p) != nil {
		panic(http.ErrAbortHandler)
	}
}
