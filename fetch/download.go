package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// sink receives the bytes of one file in order. *disk.Part implements it. Other sinks unpack the
// bytes before they pass them to a Part, or store an index.
type sink interface {
	Source() disk.PartSource
	Offset() int64               // number of received bytes; the offset of the next request
	Begin(disk.PartSource) error // discards the received bytes
	io.ReaderFrom
}

// received is the part of a sink that records which bytes the sink has.
type received struct {
	source disk.PartSource
	offset int64
}

// Source returns the source of the received bytes.
func (r *received) Source() disk.PartSource { return r.source }

// Offset returns the number of received bytes.
func (r *received) Offset() int64 { return r.offset }

// finisher is a sink that judges the complete file. An error means that the address sent a wrong file.
type finisher interface{ finish() error }

// source is a file at one address.
type source interface {
	// get sends one request. It returns errChanged if the file is not the version that q requests.
	get(ctx context.Context, q rangeRequest) (*response, error)
}

// rangeRequest requests the bytes from offset to end. If it is partial (isPartial), the response must be of the requested
// version of the file: the file must have the length total, and match validator.
type rangeRequest struct {
	offset    int64
	end       int64  // end of the requested range; 0: the end of the file
	total     int64  // -1: unknown
	validator string // a strong ETag or a Last-Modified date; empty: the digest is compared at the end
	noDigest  bool   // the digest is not compared at the end
}

// isPartial reports whether the request is for a part of the file.
func (q rangeRequest) isPartial() bool { return q.offset > 0 || q.end > 0 }

// rangeHeader returns the value of the Range header.
func (q rangeRequest) rangeHeader() string {
	if q.end == 0 {
		return fmt.Sprintf("bytes=%d-", q.offset)
	}
	return fmt.Sprintf("bytes=%d-%d", q.offset, q.end-1)
}

// response has the bytes of a file from start to the end of the file or of the requested range.
type response struct {
	body         io.ReadCloser
	start, total int64  // total is -1 if unknown
	delimited    bool   // the transfer marks the end of the body, so truncation is detected even if total is unknown
	isHTML       bool   // the Content-Type is that of a web page
	etag         string // a strong ETag, or empty
	lastModified string // empty if it does not identify a version of the file

	from *url.URL // the address after all redirects; nil unless http or https
}

var (
	errChanged  = errors.New("the file changed at its source")
	errComplete = errors.New("all bytes were received")
)

const (
	// MaxDrops is the number of consecutive connections without progress after which the attempt
	// fails.
	MaxDrops = 5
	// minProgress is the number of bytes that count as progress of a connection.
	minProgress = 64 << 10
)

// fetchAny downloads from the first address that works into dst. After a failure it continues with
// the next address, and keeps the bytes if that address may have the same file.
func (t *transfer) fetchAny(ctx context.Context, dst sink) error {
	var failed []*Error
	for i := t.request.SkipAddresses; i < len(t.addresses); i++ {
		a := t.addresses[i]
		t.progress.AddressIndex.Store(int64(i))
		err := t.dispatch(ctx, a, func(ctx context.Context, src source) error { return t.fetchFrom(ctx, a, src, dst) })
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var e *Error
		if !errors.As(ClassifyDiskError(err), &e) || e.Class == NoSpace {
			return err
		}
		if e.Class == BadSource || t.request.Restart {
			t.restart = true
		}
		failed = append(failed, e.withURL(a.String()))
	}
	return AllFailed(failed)
}

// fetchFrom requests the missing bytes of dst from src, and retries after each broken connection
// until dst is complete.
func (t *transfer) fetchFrom(ctx context.Context, a address, src source, dst sink) error {
	err := retryDropped(ctx, dst.Offset, func() error { return t.fetchOnce(ctx, a, src, dst) })
	if errors.Is(err, errComplete) {
		return t.finish(dst)
	}
	return err
}

// retryDropped calls attempt again after each broken connection. It gives up after MaxDrops of them without progress.
func retryDropped(ctx context.Context, received func() int64, attempt func() error) error {
	for drops, high := 0, received(); ; {
		err := attempt()
		var e *Error
		if ctx.Err() != nil || !errors.As(err, &e) || e.Class != Dropped {
			return err
		}
		if drops++; received() >= high+minProgress {
			drops, high = 0, received()
		}
		if drops >= MaxDrops {
			return Errorf(Dropped, "%w, %d times in a row", e.Err, drops)
		}
	}
}

// finish returns an error if the received file is empty or if dst rejects it.
func (t *transfer) finish(dst sink) error {
	if dst.Offset() == 0 {
		return t.emptyError()
	}
	if f, ok := dst.(finisher); ok {
		return f.finish()
	}
	return nil
}

// emptyError is the error for a response without bytes. Servers send an empty file during an upload, or if
// their disk is full. It counts as a missing file, unless a digest shows that the bytes are wrong.
func (t *transfer) emptyError() error {
	class := Refused
	if t.hasDigest {
		class = BadSource
	}
	return Errorf(class, "the file is empty")
}

// fetchOnce requests the missing bytes of dst. If the file has changed, it requests the whole file.
// It returns errComplete if dst is complete.
func (t *transfer) fetchOnce(ctx context.Context, a address, src source, dst sink) error {
	attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, but not ctx
	defer cancel(nil)
	q := t.nextRequest(a, dst)
	if q.offset > 0 && q.offset == q.total {
		t.progress.Joined.Store(true) // an earlier process may have received the bytes in several responses
		t.progress.Total.Store(q.total)
		t.progress.Resume(q.offset)
		return errComplete
	}
	got, err := src.get(attempt, q)
	if errors.Is(err, errChanged) {
		got, err = src.get(attempt, rangeRequest{total: -1})
	}
	if err != nil {
		return err
	}
	defer got.body.Close()
	body := t.bodyReader(attempt, cancel, got)
	if got.isHTML {
		if body, err = refuseWebPage(body); err != nil {
			return err
		}
	}
	t.progress.Joined.Store(got.start > 0)
	if got.start == 0 {
		if err := t.begin(a, got, dst); err != nil {
			return err
		}
	}
	t.progress.Total.Store(got.total)
	t.progress.Resume(dst.Offset())
	if _, err := dst.ReadFrom(CountReader(ctx, body, &t.progress.Done, &t.progress.UpstreamBytes)); err != nil {
		return err
	}
	return errComplete
}

// nextRequest resumes at the end of dst if one of these can prove that the bytes are from the same
// file: a validator from the same address, a strong ETag from any address, or an equal length with a
// digest that is compared at the end.
func (t *transfer) nextRequest(a address, dst sink) rangeRequest {
	whole := rangeRequest{total: -1}
	o, q := dst.Source(), rangeRequest{offset: dst.Offset(), noDigest: !t.hasDigest}
	q.total = o.Size
	switch same := o.ID == a.id(); {
	case q.offset == 0 || t.restart:
		return whole
	case o.ETag != "" && (same || !t.hasDigest):
		q.validator = o.ETag
	case o.LastModified != "" && same:
		q.validator = o.LastModified
	case !t.hasDigest || o.Size < 0 || t.request.Restart:
		return whole
	}
	return q
}

func (t *transfer) begin(a address, got *response, dst sink) error {
	if got.total < 0 && !got.delimited && !t.hasDigest {
		return Errorf(BadSource, "the server does not send the length, so a truncated file would not be detected: declare a checksum")
	}
	if max := t.request.MaxSize; t.packing == notPacked && max > 0 && got.total > max {
		return Errorf(BadSource, "%w: it has %d bytes, at most %d are allowed", disk.ErrTooLarge, got.total, max)
	}
	if got.total == 0 {
		return t.emptyError()
	}
	err := dst.Begin(disk.PartSource{ID: a.id(), ETag: got.etag, LastModified: got.lastModified, Size: got.total})
	t.restart = t.restart && err != nil
	return err
}

// bodyReader returns the body of a response with stall detection, a length check and the rate limit.
func (t *transfer) bodyReader(ctx context.Context, cancel context.CancelCauseFunc, got *response) io.Reader {
	length := int64(-1)
	if got.total >= 0 {
		length = got.total - got.start
	}
	return RateLimitReader(ctx, watchBody(ctx, cancel, got.body, length, t.client.timings().stall), t.limiter)
}

// refuseWebPage returns an error if body begins like a web page. Portals and proxies may send a web
// page instead of the file. The error is temporary, unlike the final error for a file that is not an
// image.
func refuseWebPage(body io.Reader) (io.Reader, error) {
	head := make([]byte, 512)
	n, err := io.ReadFull(body, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	if strings.HasPrefix(http.DetectContentType(head[:n]), "text/html") {
		return nil, Errorf(Refused, "the server sent a web page instead of the file")
	}
	return io.MultiReader(bytes.NewReader(head[:n]), body), nil
}

// boundedBody checks the length of a body, and classifies network errors.
type boundedBody struct {
	io.Reader
	left    int64
	bounded bool
	broken  func(left int64, err error) error
}

func (r *boundedBody) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.left -= int64(n)
	switch {
	case r.bounded && r.left < 0:
		return n, Errorf(BadSource, "the body is longer than the server announced")
	case err == io.EOF && r.bounded && r.left > 0:
		err = io.ErrUnexpectedEOF
	case err == nil || err == io.EOF:
		return n, err
	}
	return n, r.broken(r.left, err)
}

// bodyError classifies an error of a body: a stall, a canceled ctx, or a broken connection.
func bodyError(ctx context.Context, left int64, err error) error {
	var stall *stallError
	var known *Error
	switch cause := context.Cause(ctx); {
	case errors.As(err, &stall):
		return &Error{Class: Network, Err: stall}
	case errors.As(cause, &stall):
		return &Error{Class: Network, Err: stall}
	case cause != nil:
		return cause
	case errors.As(err, &known):
		return err
	case left > 0:
		return Errorf(Dropped, "connection broke %d bytes before the end: %w", left, withoutURL(err))
	}
	return Errorf(Dropped, "connection broke: %w", withoutURL(err))
}
