package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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

// maxSends is how many of its copies of one image a node sends at once.
const maxSends = 3

// turn is how long a send keeps its slot when another one is turned away. A receiver
// that takes all it is sent, but slowly, would have the slot for days.
const turn = time.Minute

// slots are the sends under way.
type slots struct {
	turn time.Duration

	mu   sync.Mutex
	held map[disk.ID][]*slot // in the order they were taken
}

type slot struct {
	since time.Time
	end   context.CancelFunc
}

func newSlots() *slots { return &slots{turn: turn, held: map[disk.ID][]*slot{}} }

// take gives a slot to a send that end can end. It returns what gives the slot back,
// or false if there is none. Then the oldest send ends if it had its turn.
func (s *slots) take(id disk.ID, end context.CancelFunc) (free func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.held[id]
	if len(held) >= maxSends {
		if time.Since(held[0].since) >= s.turn {
			held[0].end()
		}
		return nil, false
	}
	mine := &slot{since: time.Now(), end: end}
	s.held[id] = append(held, mine)
	return func() { s.free(id, mine) }, true
}

func (s *slots) free(id disk.ID, mine *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := slices.DeleteFunc(s.held[id], func(other *slot) bool { return other == mine })
	if s.held[id] = left; len(left) == 0 {
		delete(s.held, id)
	}
}

// A peer that does not take pieceSize bytes within pieceTime loses its connection,
// and with it the slot: less than 1 KiB/s, which is what counts as stalled. One that
// takes more has to get the chunk that it asked for, or it would never get any.
const (
	pieceSize = 256 << 10
	pieceTime = pieceSize >> 10 * time.Second
)

// paced writes an answer in pieces, of which each has to be taken in time. It is an
// io.ReaderFrom, so that a file may go by sendfile.
type paced struct {
	w       http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration // for a piece
	may     func() error  // asked ahead of each piece
}

// begin returns one that writes until ctx ends, also when a write is blocked then.
// The caller calls done behind the last write.
func begin(ctx context.Context, w http.ResponseWriter, limit time.Duration, may func() error) (p *paced, done func() bool) {
	p = &paced{w: w, control: http.NewResponseController(w), limit: limit}
	done = context.AfterFunc(ctx, func() { _ = p.control.SetWriteDeadline(time.Unix(1, 0)) })
	p.may = func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return may()
	}
	return p, done
}

// ahead puts the deadline off, and looks at ctx only then: what ctx did to the
// deadline is not undone.
func (p *paced) ahead() error {
	if err := p.control.SetWriteDeadline(time.Now().Add(p.limit)); err != nil {
		return err
	}
	return p.may()
}

// Write writes no more than pieceSize bytes.
func (p *paced) Write(b []byte) (int, error) {
	if err := p.ahead(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// ReadFrom is for what io.CopyN has to say. Its limit is split, and not put into
// another one, behind which net/http would not find the file.
func (p *paced) ReadFrom(r io.Reader) (int64, error) {
	whole, ok := r.(*io.LimitedReader)
	if !ok {
		return io.Copy(struct{ io.Writer }{p}, r)
	}
	var written int64
	for whole.N > 0 {
		if err := p.ahead(); err != nil {
			return written, err
		}
		piece := &io.LimitedReader{R: whole.R, N: min(pieceSize, whole.N)}
		n, err := io.Copy(p.w, piece)
		written += n
		whole.N -= n
		if err != nil || piece.N > 0 { // it ends too early
			return written, err
		}
	}
	return written, nil
}

// span is a part of a file: from, and to where it ends, which is not in it.
type span struct{ from, to int64 }

var (
	errRange      = errors.New("the range has to be bytes=FROM-TO, one of them")
	errBeyondFile = errors.New("the range is not in the file")
)

// parseSpan reads a Range header for a file of size bytes. There has to be one
// range, bytes=FROM-TO; bytes=FROM- is to the end. What ends beyond the file is
// errBeyondFile and not cut, for who asks knows the size.
func parseSpan(header string, size int64) (span, error) {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, ok2 := strings.Cut(text, "-")
	if !ok || !ok2 {
		return span{}, errRange
	}
	from, err := parseOffset(first)
	to := size
	if err == nil && last != "" {
		if to, err = parseOffset(last); err == nil {
			to++
		}
	}
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && (from >= to || to > size):
		return span{}, errBeyondFile
	case err != nil:
		return span{}, errRange
	}
	return span{from, to}, nil
}

// parseOffset reads digits and nothing else, and less than the largest int64.
func parseOffset(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err
}
