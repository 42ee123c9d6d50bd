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

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/httperror"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
)

const (
	requestTime = 10 * time.Minute // for one piece, even over a slow connection
	maxAnswer   = 1 << 20
)

// Client uploads images to one daemon.
type Client struct {
	Base          string // the address of the daemon
	Authorization string // value of the Authorization header; empty: none
	Transport     http.RoundTripper
}

// response is a response of the daemon.
type response struct {
	status int
	header http.Header
	body   []byte
}

// do sends one request. The error is an *httperror.Error if the daemon, or a proxy, refused it.
// Any other error means that the address is invalid, or that no complete response was received.
func (c *Client) do(ctx context.Context, method, path string, header map[string]string, body []byte) (response, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.Base, "/")+path, bytes.NewReader(body))
	if err != nil {
		return response{}, errors.New("the address of the daemon is invalid")
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
			err = u.Err // a *url.Error contains the whole address
		}
		return response{}, err
	}
	defer a.Body.Close()
	text, err := io.ReadAll(io.LimitReader(a.Body, maxAnswer))
	switch {
	case err != nil || a.StatusCode < http.StatusMultipleChoices:
	case a.StatusCode == http.StatusRequestEntityTooLarge && a.Header.Get("Tus-Resumable") == "":
		err = httperror.New(a.StatusCode, "a proxy, not the daemon, responds 413 to a request of at most %d MiB: set client_max_body_size to 0 if it is nginx", pieceSize>>20)
	default:
		err = httperror.Read(a.StatusCode, text)
	}
	return response{a.StatusCode, a.Header, text}, err
}

// isTemporary reports whether the same request may succeed later.
func isTemporary(e *httperror.Error) bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusLocked, http.StatusTooManyRequests, statusMismatch:
		return true
	}
	return e.Status >= http.StatusInternalServerError
}

// offset returns the number of bytes that the daemon has received.
func (a response) offset() (int64, error) {
	n, err := strconv.ParseInt(a.header.Get("Upload-Offset"), 10, 64)
	if err != nil || n < 0 {
		return 0, errors.New("the response has no Upload-Offset: is this the address of a daemon?")
	}
	return n, nil
}

// list returns the uploads that are in progress.
func (c *Client) list(ctx context.Context) ([]info, error) {
	a, err := c.do(ctx, http.MethodGet, Path, nil, nil)
	if err != nil {
		return nil, err
	}
	var all []info
	err = json.Unmarshal(a.body, &all)
	return all, err
}

// create starts an upload and returns its path.
func (c *Client) create(ctx context.Context, m metadata, length int64) (string, error) {
	header := map[string]string{"Upload-Metadata": m.header(), "Upload-Length": strconv.FormatInt(length, 10)}
	if length < 0 {
		header = map[string]string{"Upload-Metadata": m.header(), "Upload-Defer-Length": "1"}
	}
	a, err := c.do(ctx, http.MethodPost, Path, header, nil)
	if err != nil {
		return "", err
	}
	at, err := url.Parse(a.header.Get("Location"))
	if err != nil || !strings.HasPrefix(at.Path, Path+"/") {
		return "", errors.New("the response has no Location of an upload: is this the address of a daemon?")
	}
	return at.Path, nil
}

// status returns the number of bytes that the daemon has received, and whether it knows the length of
// the image. If the upload has ended, it returns an error with the reason.
func (c *Client) status(ctx context.Context, path string) (at int64, measured bool, err error) {
	a, err := c.do(ctx, http.MethodHead, path, nil, nil)
	refusal, refused := errors.AsType[*httperror.Error](err)
	switch {
	case err == nil:
		at, err = a.offset()
		return at, a.header.Get("Upload-Length") != "", err
	case !refused || isTemporary(refusal) && refusal.Status != http.StatusLocked: // an upload may stay locked for a long time; GET returns the reason
		return 0, false, err
	}
	details, err := c.do(ctx, http.MethodGet, path, nil, nil) // the response of HEAD has no body with the reason
	if err != nil {
		return 0, false, err
	}
	var i info
	if json.Unmarshal(details.body, &i) == nil && i.Error != "" {
		refusal.Message = i.Error
	}
	return 0, false, refusal
}

// patch sends one piece. If total is not negative, it also sends the length of the image. It returns
// the number of bytes that the daemon has then received.
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
	return a.offset()
}

// terminate discards an upload.
func (c *Client) terminate(ctx context.Context, path string) error {
	_, err := c.do(ctx, http.MethodDelete, path, nil, nil)
	if refusal, refused := errors.AsType[*httperror.Error](err); refused && (refusal.Status == http.StatusNotFound || refusal.Status == http.StatusGone) {
		return nil
	}
	return err
}

var retryDelay = backoff.Doubling{First: 100 * time.Millisecond, Max: 5 * time.Second}

const (
	// terminateTime is the time to discard an upload that has failed.
	terminateTime = 5 * time.Second
	// maxStall is the time without progress after which Send returns an error.
	maxStall = 10 * time.Minute
	// maxMismatches is the number of consecutive pieces that may arrive damaged.
	maxMismatches = 5
)

// ErrLost means that the daemon does not know the upload, although it received all bytes: it may have
// committed the image and restarted before it could respond.
var ErrLost = errors.New("the daemon does not know the upload any more")

// Request is an image to upload.
type Request struct {
	Image   string
	Digest  ident.Digest // the digest that the daemon must verify; zero: the declared one
	Content Content
	Restart bool // discard an existing upload of the image first
	// Warn is called for temporary errors.
	Warn func(error)
}

// Send uploads the content and returns when the image is ready or the upload fails permanently. It
// resumes an existing upload of the same file, and resumes after interruptions. If ctx ends and the
// content can be read again, the daemon keeps the upload and the next Send resumes it.
func (c *Client) Send(ctx context.Context, o Request, progress *fetch.Progress) error {
	s := sender{Client: c, Request: o, progress: progress, at: unknownOffset, total: o.Content.length(), lastProgress: time.Now()}
	progress.Total.Store(s.total)
	failures := 0
	for {
		before := s.maxOffset
		done, err := s.step(ctx)
		if done && err == nil {
			return nil
		}
		if s.maxOffset > before {
			failures, s.lastProgress = 0, time.Now()
		}
		if err == nil {
			continue
		}
		if done || ctx.Err() != nil || time.Since(s.lastProgress) > maxStall {
			return s.giveUp(ctx, err)
		}
		s.Warn(err)
		select {
		case <-time.After(retryDelay.After(failures)):
		case <-ctx.Done():
			return s.giveUp(ctx, ctx.Err())
		}
		failures++
	}
}

// unknownOffset means that the daemon must be queried for the offset.
const unknownOffset = -1

// sender is the state of one Send.
type sender struct {
	*Client
	Request
	progress *fetch.Progress

	path         string // of the upload; empty: not started
	at           int64  // number of bytes that the daemon has received
	total        int64  // size of the image in bytes; -1: unknown
	responded    bool   // the daemon has responded
	maxOffset    int64  // the largest offset that the daemon has returned
	lastSent     bool   // the last byte was sent
	lastProgress time.Time
	mismatches   int // consecutive damaged pieces
	ahead        chan readResult
}

// readResult is a piece that was read while the previous piece was sent.
type readResult struct {
	wanted int64 // the offset of the piece
	piece
	err error
}

// step sends one request. If done is true, the upload has ended: err is nil if the image is ready. If
// done is false, err is temporary.
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
		} else if s.lastSent && s.at == s.total && measured { // otherwise the daemon waits for more bytes
			return true, nil
		}
		if s.maxOffset = max(s.maxOffset, s.at); err == nil {
			s.progress.Resume(s.at)
		}
	default:
		return s.sendNext(ctx)
	}
	return s.classify(err)
}

// start finds the upload to resume, or creates one.
func (s *sender) start(ctx context.Context) error {
	m := s.metadata()
	if err := s.findExisting(ctx, m); err != nil || s.path != "" {
		return err
	}
	s.Restart = false
	path, err := s.create(ctx, m, s.Content.length())
	if no, refused := errors.AsType[*httperror.Error](err); refused && no.Status == http.StatusConflict {
		// A daemon that has just started may have found the interrupted upload in the meantime.
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

// findExisting finds the upload of this content in the daemon. It returns an error if another upload
// of the image is in progress.
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
			return httperror.New(http.StatusConflict, "another upload of %s is in progress (%d bytes%s); use --restart to discard it and start again", s.Image, i.Offset, ofLength(i.Length))
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
	if err == io.EOF { // the end of a pipe whose length was unknown
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

// nextPiece returns the piece at an offset, which may already have been read. A read from a pipe may
// block indefinitely, so nextPiece also returns when ctx ends.
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

// classify reports in done whether an error is final.
func (s *sender) classify(err error) (done bool, _ error) {
	refusal, refused := errors.AsType[*httperror.Error](err)
	s.responded = s.responded || refused || err == nil
	switch {
	case !refused: // nil, or an error of the network
		return !s.responded, err
	case refusal.Status == statusMismatch:
		s.mismatches++
		return s.mismatches > maxMismatches, err
	case refusal.Status == http.StatusNotFound && s.path != "" && s.lastSent:
		return true, ErrLost
	case refusal.Status == http.StatusConflict && s.path != "":
		return false, err // the daemon has another offset: query it
	}
	return !isTemporary(refusal), err
}

// giveUp returns err. It discards an upload that cannot be resumed, or that was refused before it had any bytes.
func (s *sender) giveUp(ctx context.Context, err error) error {
	_, refused := errors.AsType[*httperror.Error](err)
	_, again := s.Content.(*File)
	if s.path == "" || refused && s.maxOffset > 0 || !refused && again && s.Content.check() == nil {
		return err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), terminateTime)
	defer cancel()
	if terminateErr := s.terminate(end, s.path); terminateErr != nil && !refused {
		return fmt.Errorf("%w; the daemon discards the received bytes after %v", err, sessionTTL)
	}
	return err
}
