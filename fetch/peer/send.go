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
	d, id, ok := s.readyCopy(w, r)
	if !ok {
		return
	}
	ctx, end, ok := s.acquireSlot(w, r, id)
	if !ok {
		return
	}
	defer end()
	image, err := d.Open(id)
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	defer image.Close()
	size := image.Size()
	part, status := byteRange{0, size}, http.StatusOK
	if header := r.Header.Get("Range"); header != "" {
		if part, err = parseRange(header, size); err != nil {
			writeRangeError(w, size, err)
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.to-1, size))
	}
	s.sendBody(ctx, w, status, part.to-part.from, image.Unchanged, func(w io.Writer) error {
		return image.Send(w, part.from, part.to, nil)
	})
}

func writeRangeError(w http.ResponseWriter, size int64, err error) {
	status := http.StatusBadRequest
	if errors.Is(err, errRangeOutsideFile) {
		status = http.StatusRequestedRangeNotSatisfiable
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	}
	writeError(w, status, err.Error())
}

func (s *Server) manifest(w http.ResponseWriter, r *http.Request) {
	d, id, ok := s.readyCopy(w, r)
	if !ok {
		return
	}
	select {
	case s.manifests <- struct{}{}:
		defer func() { <-s.manifests }()
	case <-r.Context().Done():
		writeError(w, http.StatusServiceUnavailable, "too many ask at once")
		return
	}
	m, err := d.Manifest(id)
	if err != nil {
		writeError(w, http.StatusConflict, err.Error())
		return
	}
	defer m.Close()
	sums := m.Hashes()
	lasting := func() error { return nil }
	s.sendBody(r.Context(), w, http.StatusOK, sums.Size(), lasting, func(w io.Writer) error {
		_, err := io.CopyN(w, sums, sums.Size())
		return err
	})
}

// readyCopy returns the disk and the image that are asked for, if the copy is ready to
// be sent; else it answers why not. The name of the disk comes from the configuration
// and the image's is checked: no path of a request gets as far as a file.
func (s *Server) readyCopy(w http.ResponseWriter, r *http.Request) (d *disk.Disk, id disk.ID, ok bool) {
	id = disk.ID{Name: r.PathValue("name"), UUID: r.PathValue("uuid")}
	if err := errors.Join(disk.CheckName(id.Name), disk.CheckUUID(id.UUID)); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return nil, id, false
	}
	on := r.URL.Query().Get("disk")
	if d, ok = s.node.Disk(on); !ok {
		writeError(w, http.StatusNotFound, fmt.Sprintf("there is no disk %q here", on))
		return nil, id, false
	}
	if s.node.Leaving(on, id) {
		writeError(w, http.StatusConflict, fmt.Sprintf("%s is leaving disk %s", id, on))
		return nil, id, false
	}
	switch c := d.Stat(id); {
	case c.State == disk.Pending:
		writeError(w, http.StatusNotFound, fmt.Sprintf("%s is not on disk %s", id, on))
		return nil, id, false
	case c.State != disk.Ready:
		writeError(w, http.StatusConflict, fmt.Sprintf("%s on disk %s is %s", id, on, c.State))
		return nil, id, false
	}
	return d, id, true
}

// acquireSlot takes a slot for sending an image, or answers that there is none. The sending
// has to end with ctx, and end has to be called behind it.
func (s *Server) acquireSlot(w http.ResponseWriter, r *http.Request, id disk.ID) (ctx context.Context, end func(), ok bool) {
	ctx, cancel := context.WithCancel(r.Context())
	free, ok := s.sendLimits.acquire(id, cancel)
	if !ok {
		cancel()
		w.Header().Set("Retry-After", "1")
		writeError(w, http.StatusTooManyRequests, "sending limit")
		return nil, nil, false
	}
	return ctx, func() { free(); cancel() }, true
}

// sendBody answers with the bytes that send writes, as long as may says so. When it fails
// the connection is broken, so that nobody takes what was sent for the whole.
func (s *Server) sendBody(ctx context.Context, w http.ResponseWriter, status int, length int64, may func() error, send func(io.Writer) error) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(status)
	p, done := newPacedWriter(ctx, w, s.pieceTimeout, may)
	defer done()
	if send(p) != nil {
		panic(http.ErrAbortHandler)
	}
}

// maxSends is how many of its copies of one image a node sends at once.
const maxSends = 3

// minHold is how long a send keeps its slot when another one is turned away. A receiver
// that takes all it is sent, but slowly, would have the slot for days.
const minHold = time.Minute

// sendLimiter are the sends under way.
type sendLimiter struct {
	minHold time.Duration

	mu     sync.Mutex
	active map[disk.ID][]*slot // in the order they were taken
}

type slot struct {
	since  time.Time
	cancel context.CancelFunc
}

func newSendLimiter() *sendLimiter {
	return &sendLimiter{minHold: minHold, active: map[disk.ID][]*slot{}}
}

// acquire gives a slot to a send that end can end. It returns what gives the slot back,
// or false if there is none. Then the oldest send ends if it had its turn.
func (s *sendLimiter) acquire(id disk.ID, end context.CancelFunc) (free func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.active[id]
	if len(held) >= maxSends {
		if time.Since(held[0].since) >= s.minHold {
			held[0].cancel()
		}
		return nil, false
	}
	mine := &slot{since: time.Now(), cancel: end}
	s.active[id] = append(held, mine)
	return func() { s.release(id, mine) }, true
}

func (s *sendLimiter) release(id disk.ID, mine *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := slices.DeleteFunc(s.active[id], func(other *slot) bool { return other == mine })
	if s.active[id] = left; len(left) == 0 {
		delete(s.active, id)
	}
}

// A peer that does not take pieceSize bytes within pieceTime loses its connection,
// and with it the slot: less than 1 KiB/s, which is what counts as stalled. One that
// takes more has to get the chunk that it asked for, or it would never get any.
const (
	pieceSize    = 256 << 10
	pieceTimeout = pieceSize >> 10 * time.Second
)

// pacedWriter writes an answer in pieces, of which each has to be taken in time. It is an
// io.ReaderFrom, so that a file may go by sendfile.
type pacedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // for a piece
	check   func() error  // asked ahead of each piece
}

// newPacedWriter returns one that writes until ctx ends, also when a write is blocked then.
// The caller calls done behind the last write.
func newPacedWriter(ctx context.Context, w http.ResponseWriter, limit time.Duration, may func() error) (p *pacedWriter, done func() bool) {
	p = &pacedWriter{w: w, control: http.NewResponseController(w), timeout: limit}
	done = context.AfterFunc(ctx, func() { _ = p.control.SetWriteDeadline(time.Unix(1, 0)) })
	p.check = func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return may()
	}
	return p, done
}

// beforePiece puts the deadline off, and looks at ctx only then: what ctx did to the
// deadline is not undone.
func (p *pacedWriter) beforePiece() error {
	if err := p.control.SetWriteDeadline(time.Now().Add(p.timeout)); err != nil {
		return err
	}
	return p.check()
}

// Write writes no more than pieceSize bytes.
func (p *pacedWriter) Write(b []byte) (int, error) {
	if err := p.beforePiece(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// ReadFrom is for what io.CopyN has to say. Its limit is split, and not put into
// another one, behind which net/http would not find the file.
func (p *pacedWriter) ReadFrom(r io.Reader) (int64, error) {
	whole, ok := r.(*io.LimitedReader)
	if !ok {
		return io.Copy(struct{ io.Writer }{p}, r)
	}
	var written int64
	for whole.N > 0 {
		if err := p.beforePiece(); err != nil {
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

// byteRange is a part of a file: from, and to where it ends, which is not in it.
type byteRange struct{ from, to int64 }

var (
	errRangeSyntax      = errors.New("the range has to be bytes=FROM-TO, one of them")
	errRangeOutsideFile = errors.New("the range is not in the file")
)

// parseRange reads a Range header for a file of size bytes. There has to be one
// range, bytes=FROM-TO; bytes=FROM- is to the end. What ends beyond the file is
// errBeyondFile and not cut, for who asks knows the size.
func parseRange(header string, size int64) (byteRange, error) {
	text, ok := strings.CutPrefix(header, "bytes=")
	first, last, ok2 := strings.Cut(text, "-")
	if !ok || !ok2 {
		return byteRange{}, errRangeSyntax
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
		return byteRange{}, errRangeOutsideFile
	case err != nil:
		return byteRange{}, errRangeSyntax
	}
	return byteRange{from, to}, nil
}

// parseOffset reads digits and nothing else, and less than the largest int64.
func parseOffset(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err
}
