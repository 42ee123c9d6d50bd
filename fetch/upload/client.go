package upload

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
)

const (
	requestTime = 10 * time.Minute // for a piece, over a slow line too
	maxAnswer   = 1 << 20
)

// Client asks one daemon.
type Client struct {
	Base          string // its address
	Authorization string // the header that it asks for; "": none
	Transport     http.RoundTripper
}

// response is what a daemon answered.
type response struct {
	status int
	header http.Header
	body   []byte
}

// do makes one request. The error is one of the way to the daemon.
func (c *Client) do(ctx context.Context, method, path string, header map[string]string, body []byte) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.Base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return response{}, errors.New("the address of the daemon is none")
	}
	if c.Authorization != "" {
		r.Header.Set("Authorization", c.Authorization)
	}
	r.Header.Set("Tus-Resumable", version)
	for key, value := range header {
		r.Header.Set(key, value)
	}
	a, err := c.Transport.RoundTrip(r)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // it would print the address
		}
		return response{}, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	return response{a.StatusCode, a.Header, text}, err
}

// err returns the error of an error response, and nil for any other.
func (a response) err() *httperror.Error {
	if a.status < http.StatusMultipleChoices {
		return nil
	}
	return httperror.Read(a.status, a.body)
}

// isTemporary reports whether the same request may succeed in a moment.
func isTemporary(e *httperror.Error) bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusLocked, http.StatusTooManyRequests, statusMismatch:
		return true
	}
	return e.Status >= http.StatusInternalServerError
}

// offset reads how far the daemon is.
func (a response) offset() (int64, error) {
	n, err := strconv.ParseInt(a.header.Get("Upload-Offset"), 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New("the answer does not say how far the upload is: is that a daemon?")
	}
	return n, nil
}

// list returns what is under way there.
func (c *Client) list(ctx context.Context) ([]info, error) {
	a, err := c.do(ctx, http.MethodGet, Path, nil, nil)
	if err != nil {
		return nil, err
	}
	if no := a.err(); no != nil {
		return nil, no
	}
	var all []info
	return all, json.Unmarshal(a.body, &all)
}

// create begins an upload and returns its path.
func (c *Client) create(ctx context.Context, m metadata, length int64) (string, error) {
	header := map[string]string{"Upload-Metadata": m.header(), "Upload-Length": strconv.FormatInt(length, 10)}
	if length < 0 {
		header = map[string]string{"Upload-Metadata": m.header(), "Upload-Defer-Length": "1"}
	}
	a, err := c.do(ctx, http.MethodPost, Path, header, nil)
	if err != nil {
		return "", err
	}
	if no := a.err(); no != nil {
		return "", no
	}
	at, err := url.Parse(a.header.Get("Location"))
	if err != nil || !strings.HasPrefix(at.Path, Path+"/") {
		return "", errors.New("the answer does not say where the upload is: is that a daemon?")
	}
	return at.Path, nil
}

// status asks how far an upload is, and whether the daemon knows where it ends, or why it
// has ended.
func (c *Client) status(ctx context.Context, path string) (at int64, measured bool, err error) {
	a, err := c.do(ctx, http.MethodHead, path, nil, nil)
	if err != nil {
		return 0, false, err
	}
	if a.status < http.StatusMultipleChoices {
		at, err = a.offset()
		return at, a.header.Get("Upload-Length") != "", err
	}
	if no := a.err(); isTemporary(no) && no.Status != http.StatusLocked { // that may last
		return 0, false, no
	}
	told, err := c.do(ctx, http.MethodGet, path, nil, nil) // a HEAD has no room for a sentence
	if err != nil {
		return 0, false, err
	}
	var i info
	switch no := told.err(); {
	case no != nil:
		return 0, false, no
	case json.Unmarshal(told.body, &i) != nil || i.Error == "":
		return 0, false, a.err()
	}
	return 0, false, &httperror.Error{Status: a.status, Message: i.Error}
}

// patch brings one piece, and returns how far the upload is then. total is said along
// with it when it is known.
func (c *Client) patch(ctx context.Context, path string, p piece, total int64) (int64, error) {
	header := map[string]string{"Content-Type": bodyType, "Upload-Offset": strconv.FormatInt(p.at, 10)}
	if p.zeros > 0 {
		header["Upload-Zeros"] = strconv.FormatInt(p.zeros, 10)
	}
	if len(p.data) > 0 {
		sum := sha256.Sum256(p.data)
		header["Upload-Checksum"] = "sha256 " + base64.StdEncoding.EncodeToString(sum[:])
	}
	if total >= 0 {
		header["Upload-Length"] = strconv.FormatInt(total, 10)
	}
	a, err := c.do(ctx, http.MethodPatch, path, header, p.data)
	if err != nil {
		return 0, err
	}
	if no := a.err(); no != nil {
		return 0, no
	}
	return a.offset()
}

// terminate ends an upload that is there.
func (c *Client) terminate(ctx context.Context, path string) error {
	a, err := c.do(ctx, http.MethodDelete, path, nil, nil)
	if err != nil {
		return err
	}
	if no := a.err(); no != nil && no.Status != http.StatusNotFound && no.Status != http.StatusGone {
		return no
	}
	return nil
}

const (
	minDelay = 100 * time.Millisecond
	maxDelay = 5 * time.Second
	// maxStall is how long nothing may go forward before it is given up.
	maxStall = 10 * time.Minute
	// maxMismatches is how often in a row a piece may arrive as another one.
	maxMismatches = 5
)

// ErrLost says that the upload is not known any more, although all of it was sent: the
// daemon may have committed it and started again before it could say so.
var ErrLost = errors.New("the daemon does not know the upload any more")

// Request is what is to be uploaded, as what.
type Request struct {
	Image   string
	Digest  disk.Digest // that the daemon is to insist on; zero: what is declared
	Content Content
	Restart bool // an upload of the image that is there is ended first
	// Warn is told of what is tried again.
	Warn func(error)
}

// Send uploads until the daemon says that the image is ready, or why it will not be. It
// goes on with an upload of the same file that is there, and after every interruption.
// When ctx ends, what was sent stays for the next time, if there can be one.
func (c *Client) Send(ctx context.Context, o Request, progress *fetch.Progress) error {
	s := sender{Client: c, Request: o, progress: progress, at: unknownOffset, total: o.Content.length(), lastProgress: time.Now()}
	progress.Total.Store(s.total)
	pause := minDelay
	for {
		before := s.maxOffset
		done, err := s.step(ctx)
		if done && err == nil {
			return nil
		}
		if s.maxOffset > before {
			pause, s.lastProgress = minDelay, time.Now()
		}
		if err == nil {
			continue
		}
		if done || ctx.Err() != nil || time.Since(s.lastProgress) > maxStall {
			return s.giveUp(ctx, err)
		}
		s.Warn(err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return s.giveUp(ctx, ctx.Err())
		}
		pause = min(2*pause, maxDelay)
	}
}

// unknownOffset is the offset of an upload that has to be asked for it.
const unknownOffset = -1

// sender is an upload as its client sees it.
type sender struct {
	*Client
	Request
	progress *fetch.Progress

	path         string // of the upload; "": it is not begun
	at           int64  // how far the daemon is
	total        int64  // bytes of the image; -1: not known yet
	responded    bool   // it has answered
	maxOffset    int64  // how far it has been
	lastSent     bool   // the last byte has been sent
	lastProgress time.Time
	mismatches   int // mismatches in a row
	ahead        chan readResult
}

// readResult is a piece that was read while the one before it was sent.
type readResult struct {
	wanted int64 // where it begins
	piece
	err error
}

// step makes one request. done says that nothing more can be done: it is uploaded, or
// will not be. Another error is one that may be over in a moment.
func (s *sender) step(ctx context.Context) (done bool, err error) {
	switch {
	case s.path == "":
		if err = s.start(ctx); err == nil {
			s.lastProgress = time.Now()
		}
	case s.at == unknownOffset:
		var measured bool
		s.at, measured, err = s.status(ctx, s.path)
		if err != nil {
			s.at = unknownOffset
		} else if s.lastSent && s.at == s.total && measured { // else it waits for more
			return true, nil
		}
		s.maxOffset = max(s.maxOffset, s.at)
	default:
		return s.sendNext(ctx)
	}
	return s.classify(err)
}

// start finds the upload to go on with, or creates one.
func (s *sender) start(ctx context.Context) error {
	m := s.metadata()
	if err := s.findExisting(ctx, m); err != nil || s.path != "" {
		return err
	}
	s.Restart = false
	path, err := s.create(ctx, m, s.Content.length())
	if no, refused := errors.AsType[*httperror.Error](err); refused && no.Status == http.StatusConflict {
		// A daemon that has just begun may have found what is left of it meanwhile.
		if found := s.findExisting(ctx, m); found != nil || s.path != "" {
			return found
		}
	}
	if err != nil {
		return err
	}
	s.path, s.at = path, 0
	return nil
}

// findExisting looks whether the daemon has the upload, and refuses to disturb another one of
// the image.
func (s *sender) findExisting(ctx context.Context, m metadata) error {
	all, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		path := Path + "/" + i.ID
		switch {
		case i.Image != s.Image:
		case s.Restart:
			if err := s.terminate(ctx, path); err != nil {
				return err
			}
		case i.Fingerprint == m.Fingerprint && i.Length == s.Content.length():
			s.path = path
			return nil
		default:
			return httperror.New(http.StatusConflict, "an upload of %s is under way, of another file or by somebody else: %d bytes are there%s; --restart ends it and begins anew", s.Image, i.Offset, ofLength(i.Length))
		}
	}
	return nil
}

func ofLength(n int64) string {
	if n < 0 {
		return ""
	}
	return fmt.Sprintf(" of %d", n)
}

// sendNext sends the next piece.
func (s *sender) sendNext(ctx context.Context) (done bool, err error) {
	p, err := s.nextPiece(ctx, s.at)
	if err == io.EOF { // of a pipe whose end nobody knew
		p, s.total = piece{at: s.at}, s.at
		err = checkLength(s.total)
	}
	last := p.end() == s.total
	if err == nil && last {
		err = s.Content.check()
	}
	if err != nil {
		return true, err
	}
	if s.lastSent = s.lastSent || last; !last {
		s.readAhead(p.end())
	}
	at, err := s.patch(ctx, s.path, p, s.total)
	if err != nil {
		s.at = unknownOffset
		return s.classify(err)
	}
	s.progress.UpstreamBytes.Add(int64(len(p.data)))
	s.progress.Done.Store(at)
	s.at, s.maxOffset, s.mismatches = at, max(s.maxOffset, at), 0
	return last && at == p.end(), nil
}

// nextPiece returns the piece at an offset, which may have been read already. A pipe may bring
// nothing for ever.
func (s *sender) nextPiece(ctx context.Context, at int64) (piece, error) {
	for {
		if s.ahead == nil {
			s.readAhead(at)
		}
		select {
		case read := <-s.ahead:
			s.ahead = nil
			if read.wanted == at {
				return read.piece, read.err
			}
		case <-ctx.Done():
			return piece{}, ctx.Err()
		}
	}
}

func (s *sender) readAhead(at int64) {
	s.ahead = make(chan readResult, 1)
	go func(to chan<- readResult) {
		p, err := s.Content.piece(at)
		to <- readResult{at, p, err}
	}(s.ahead)
}

// classify says whether an error is the end.
func (s *sender) classify(err error) (done bool, _ error) {
	no, refused := errors.AsType[*httperror.Error](err)
	s.responded = s.responded || refused || err == nil
	switch {
	case !refused: // nil, or one of the network
		return !s.responded, err
	case no.Status == statusMismatch:
		s.mismatches++
		return s.mismatches > maxMismatches, err
	case no.Status == http.StatusNotFound && s.path != "" && s.lastSent:
		return true, ErrLost
	case no.Status == http.StatusConflict && s.path != "":
		return false, err // the daemon knows how far it is
	}
	return !isTemporary(no), err
}

// giveUp ends an upload that nobody can go on with.
func (s *sender) giveUp(ctx context.Context, err error) error {
	_, refused := errors.AsType[*httperror.Error](err)
	_, again := s.Content.(*File)
	if s.path == "" || refused || again && s.Content.check() == nil {
		return err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), maxDelay)
	defer cancel()
	if gone := s.terminate(end, s.path); gone != nil {
		return fmt.Errorf("%w; what was sent is dropped in %v", err, sessionTTL)
	}
	return err
}
