package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

const maxManifests = 16 // concurrent sends of chunk manifests; further requests wait

func (s *Server) data(w http.ResponseWriter, r *http.Request) *httperror.Error {
	c, refused := s.readyCopy(r)
	if refused != nil {
		return refused
	}
	if r.URL.Query().Has(proofParameter) {
		return s.proof(w, r, c)
	}
	ctx, free, refused := s.acquireSlot(r, c)
	if refused != nil {
		return refused
	}
	defer free()
	image, err := c.disk.Open(c.id)
	if err != nil {
		return httperror.New(http.StatusConflict, "%v", err)
	}
	defer image.Close()
	size := image.Size()
	part, status := byteRange{0, size}, http.StatusOK
	if header := r.Header.Get("Range"); header != "" {
		if part, err = parseRange(header, size); err != nil {
			return rangeError(w, size, err)
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.to-1, size))
	}
	s.sendBody(ctx, w, status, part.to-part.from, s.unlessLeaving(c, image.Unchanged), func(w io.Writer) error {
		return image.Send(w, part.from, part.to, nil)
	})
	return nil
}

func rangeError(w http.ResponseWriter, size int64, err error) *httperror.Error {
	status := http.StatusBadRequest
	if errors.Is(err, errRangeOutsideFile) {
		status = http.StatusRequestedRangeNotSatisfiable
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
	}
	return httperror.New(status, "%v", err)
}

// acquire acquires a permit of a semaphore. It returns false if ctx ends before a permit is free.
func acquire(ctx context.Context, permits chan struct{}) bool {
	select {
	case permits <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

func release(permits chan struct{}) { <-permits }

func (s *Server) manifest(w http.ResponseWriter, r *http.Request) *httperror.Error {
	return s.sendBeside(w, r, func(c localCopy) (io.Reader, io.Closer, int64, error) {
		m, err := c.disk.Manifest(c.id)
		if err != nil {
			return nil, nil, 0, err
		}
		return m.Encoded(), m, model.ChunkFileSize(m.Size()), nil
	})
}

// index sends the index of a copy, if the copy has one.
func (s *Server) index(w http.ResponseWriter, r *http.Request) *httperror.Error {
	return s.sendBeside(w, r, func(c localCopy) (io.Reader, io.Closer, int64, error) {
		index, err := c.disk.Index(c.id)
		if err != nil {
			return nil, nil, 0, err
		}
		info, err := index.Stat()
		if err != nil {
			return nil, nil, 0, errors.Join(err, index.Close())
		}
		return index, index, info.Size(), nil
	})
}

// sendBeside sends a whole file that describes a copy. It does not check that the file is unchanged: the receiver compares
// a manifest with its digest, and compares chunks that an index finds with the manifest.
func (s *Server) sendBeside(w http.ResponseWriter, r *http.Request, open func(localCopy) (io.Reader, io.Closer, int64, error)) *httperror.Error {
	c, refused := s.readyCopy(r)
	if refused != nil {
		return refused
	}
	if !acquire(r.Context(), s.manifests) {
		return errOverloaded
	}
	defer release(s.manifests)
	file, closer, size, err := open(c)
	if errors.Is(err, fs.ErrNotExist) {
		return httperror.New(http.StatusNotFound, "%s on disk %s does not have the requested file", c.id, c.diskName)
	}
	if err != nil {
		return httperror.New(http.StatusConflict, "%v", err)
	}
	defer closer.Close()
	s.sendBody(r.Context(), w, http.StatusOK, size, s.unlessLeaving(c, func() error { return nil }), func(w io.Writer) error {
		_, err := io.CopyN(w, file, size)
		return err
	})
	return nil
}

// localCopy is a ready copy of the node.
type localCopy struct {
	disk     *disk.Disk
	diskName string
	id       ident.ID
}

var errLeaving = errors.New("the copy is leaving")

// unlessLeaving returns a function for sendBody that fails if the copy is withdrawn, and else calls check. A
// withdrawn copy must serve no bytes to anybody, not even the rest of a send: the node that deletes the copy
// requests a chunk from other nodes, as the proof that they have their own copy.
func (s *Server) unlessLeaving(c localCopy, check func() error) func() error {
	return func() error {
		if s.node.Leaving(c.diskName, c.id) {
			return errLeaving
		}
		return check()
	}
}

// readyCopy returns the copy that the request names, or the reason why it cannot be sent. No text of the
// request is used as a path: the disk is found by its declared name, and ident.CheckName and
// ident.CheckUUID limit the characters of the id.
func (s *Server) readyCopy(r *http.Request) (localCopy, *httperror.Error) {
	id := ident.ID{Name: r.PathValue("name"), UUID: r.PathValue("uuid")}
	if err := errors.Join(ident.CheckName(id.Name), ident.CheckUUID(id.UUID)); err != nil {
		return localCopy{}, httperror.New(http.StatusBadRequest, "%v", err)
	}
	diskName := r.URL.Query().Get("disk")
	d, ok := s.node.Disk(diskName)
	if !ok {
		return localCopy{}, httperror.New(http.StatusNotFound, "this node has no disk %q", diskName)
	}
	if s.node.Leaving(diskName, id) {
		return localCopy{}, httperror.New(http.StatusConflict, "%s is leaving disk %s", id, diskName)
	}
	switch c := d.Stat(id); {
	case c.State == model.Pending:
		return localCopy{}, httperror.New(http.StatusNotFound, "%s is not on disk %s", id, diskName)
	case c.State != model.Ready:
		return localCopy{}, httperror.New(http.StatusConflict, "%s on disk %s is %s", id, diskName, c.State)
	}
	return localCopy{d, diskName, id}, nil
}

// acquireSlot acquires a slot for sending an image. The send must end when ctx ends. After the send, the caller calls free.
func (s *Server) acquireSlot(r *http.Request, c localCopy) (ctx context.Context, free func(), refused *httperror.Error) {
	ctx, cancel := context.WithCancel(r.Context())
	release, ok := s.sendLimits.acquire(c.id, c.diskName, cancel)
	if !ok {
		cancel()
		return nil, nil, httperror.New(http.StatusTooManyRequests, "sending limit reached: this node sends an image at most %d times at once", maxSends)
	}
	return ctx, func() { release(); cancel() }, nil
}

// sendBody writes a response. send(w) writes its body, and check() is called before each piece. If one of
// them fails, sendBody closes the connection, so that the client detects that the body is incomplete.
func (s *Server) sendBody(ctx context.Context, w http.ResponseWriter, status int, length int64, check func() error, send func(io.Writer) error) {
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(length, 10))
	w.WriteHeader(status)
	p, done := newPacedWriter(ctx, w, s.pieceTimeout, check)
	defer done()
	if send(p) != nil {
		panic(http.ErrAbortHandler)
	}
}

// maxSends is the maximum number of concurrent sends of one image.
const maxSends = 3

// Sends returns how many peers and clients are reading a copy now. It is safe for concurrent use.
func (s *Server) Sends(diskName string, id ident.ID) int {
	l := s.sendLimits
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, one := range l.active[id] {
		if one.disk == diskName {
			n++
		}
	}
	return n
}

// minHold is the time for which a send keeps its slot even if other requests are rejected. After
// that, a receiver that reads slowly, but never stalls, loses the slot. It could otherwise use the slot
// for days.
const minHold = time.Minute

// sendLimiter limits the concurrent sends of each image to maxSends.
type sendLimiter struct {
	minHold time.Duration

	mu     sync.Mutex
	active map[ident.ID][]*slot // oldest first
}

type slot struct {
	disk   string // name of the disk of the copy that is sent
	since  time.Time
	cancel context.CancelFunc // ends the send
}

func newSendLimiter() *sendLimiter {
	return &sendLimiter{minHold: minHold, active: map[ident.ID][]*slot{}}
}

// acquire acquires a slot and returns a function that releases it, or false if no slot is free. If the
// oldest send has then had its slot for minHold, acquire ends that send, so that a later attempt succeeds.
// cancel must end the send for which the slot is acquired.
func (l *sendLimiter) acquire(id ident.ID, diskName string, cancel context.CancelFunc) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	active := l.active[id]
	if len(active) >= maxSends {
		if time.Since(active[0].since) >= l.minHold {
			active[0].cancel()
		}
		return nil, false
	}
	acquired := &slot{disk: diskName, since: time.Now(), cancel: cancel}
	l.active[id] = append(active, acquired)
	return func() { l.release(id, acquired) }, true
}

func (l *sendLimiter) release(id ident.ID, released *slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := slices.DeleteFunc(l.active[id], func(s *slot) bool { return s == released })
	if l.active[id] = rest; len(rest) == 0 {
		delete(l.active, id)
	}
}

// A receiver that does not accept pieceSize bytes within pieceTimeout loses its connection and its
// slot. This is a rate of 1 KiB/s, below which a connection counts as stalled. A faster receiver must
// be able to receive the whole chunk that it requested: otherwise it would request the same chunk
// again and never receive it.
const (
	pieceSize    = 256 << 10
	pieceTimeout = pieceSize >> 10 * time.Second
)

// pacedWriter writes the body of a response in pieces and sets a deadline for each piece. It
// implements io.ReaderFrom, so that the kernel can copy a file to the connection (sendfile).
type pacedWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration // for one piece
	check   func() error  // called before each piece
}

// newPacedWriter returns a pacedWriter that stops when ctx ends, even while a write blocks. It calls check before each piece. After
// the last write, the caller must call done, which releases ctx.
func newPacedWriter(ctx context.Context, w http.ResponseWriter, timeout time.Duration, check func() error) (p *pacedWriter, done func() bool) {
	p = &pacedWriter{w: w, control: http.NewResponseController(w), timeout: timeout}
	done = context.AfterFunc(ctx, func() { _ = p.control.SetWriteDeadline(time.Unix(1, 0)) })
	p.check = func() error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return check()
	}
	return p, done
}

// beforePiece sets the deadline of a piece, and checks ctx after that: if ctx ended before the
// deadline was set, the new deadline has replaced the deadline that should stop the write.
func (p *pacedWriter) beforePiece() error {
	if err := p.control.SetWriteDeadline(time.Now().Add(p.timeout)); err != nil {
		return err
	}
	return p.check()
}

// Write writes one piece. Callers pass at most pieceSize bytes.
func (p *pacedWriter) Write(b []byte) (int, error) {
	if err := p.beforePiece(); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// ReadFrom implements io.ReaderFrom for io.CopyN. It splits the io.LimitedReader of io.CopyN into pieces,
// each again an io.LimitedReader: another reader would hide the file from net/http, which then could not
// use sendfile.
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
		if err != nil || piece.N > 0 { // the file is too short
			return written, err
		}
	}
	return written, nil
}

// byteRange is the bytes [from, to) of a file.
type byteRange struct{ from, to int64 }

var (
	errRangeSyntax      = errors.New("the Range header must be one range: bytes=FROM-TO")
	errRangeOutsideFile = errors.New("the range is outside the file")
)

// parseRange parses a Range header for a file of size bytes: exactly one range, bytes=FROM-TO, or
// bytes=FROM- for the rest of the file. A range that ends after the file is errRangeOutsideFile. It
// is not shortened as in RFC 9110: a peer knows the size, so a wrong range is an error of the peer.
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

// parseOffset parses decimal digits without a sign. The result is less than 1<<62, so that adding 1
// cannot overflow.
func parseOffset(s string) (int64, error) {
	n, err := strconv.ParseUint(s, 10, 62)
	return int64(n), err
}
