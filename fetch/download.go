package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// sink receives the bytes of one file in order. *disk.Part is one. Others unpack the bytes
// before a Part receives them, or keep a small file in memory.
type sink interface {
	Source() disk.PartSource
	Offset() int64               // the number of bytes received: the next one to request
	Begin(disk.PartSource) error // discards the bytes
	io.ReaderFrom
}

// source is a file at one address.
type source interface {
	// get sends one request. It fails with errChanged if the file is not the version that q
	// continues.
	get(ctx context.Context, q rangeRequest) (*response, error)
}

// rangeRequest requests the bytes from offset on. With an offset, the response must be of
// the same version of the file: total bytes long, and matching validator.
type rangeRequest struct {
	offset    int64
	end       int64  // the end of the requested bytes; 0: the end of the file
	total     int64  // -1: unknown
	validator string // a strong ETag or a Last-Modified date; empty: a digest is compared at the end
	noDigest  bool   // no digest is compared at the end
}

// isPartial reports whether the request is for less than the whole file.
func (q rangeRequest) isPartial() bool { return q.offset > 0 || q.end > 0 }

// rangeHeader returns the value of the Range header.
func (q rangeRequest) rangeHeader() string {
	if q.end == 0 {
		return fmt.Sprintf("bytes=%d-", q.offset)
	}
	return fmt.Sprintf("bytes=%d-%d", q.offset, q.end-1)
}

// response is the bytes of a file from start to its end, or to the end of the request.
type response struct {
	body         io.ReadCloser
	start, total int64  // total is -1 if unknown
	delimited    bool   // a truncated body differs from a complete one, even without the total
	isHTML       bool   // the Content-Type is that of a web page
	etag         string // a strong one, or empty
	lastModified string // empty unless it identifies a version of the file
}

var (
	errChanged  = errors.New("the file changed at its source")
	errComplete = errors.New("all bytes are here")
)

const (
	// maxDrops is how many connections in a row may break without progress before the attempt
	// fails.
	maxDrops = 5
	// minProgress is how many bytes a connection must transfer to count as progress.
	minProgress = 64 << 10
)

// fetchAny fills to from the first address that works, and continues with the next address
// after a failure. The bytes from a failed address stay if the next address may have the
// same file.
func (t *transfer) fetchAny(ctx context.Context, to sink) error {
	var failed []*Error
	for i := t.request.SkipAddresses; i < len(t.addresses); i++ {
		a := t.addresses[i]
		t.progress.AddressIndex.Store(int64(i))
		err := t.dispatch(ctx, a, func(ctx context.Context, src source) error { return t.fetchFrom(ctx, a, src, to) })
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
	return allFailed(failed)
}

// fetchFrom requests the bytes from src that to lacks, again after each broken connection,
// until to has all of them.
func (t *transfer) fetchFrom(ctx context.Context, a address, src source, to sink) error {
	drops, high := 0, to.Offset()
	for {
		err := t.fetchOnce(ctx, a, src, to)
		if errors.Is(err, errComplete) {
			return t.checkNotEmpty(to)
		}
		var e *Error
		if ctx.Err() != nil || !errors.As(err, &e) || e.Class != Dropped {
			return err
		}
		if drops++; to.Offset() >= high+minProgress {
			drops, high = 0, to.Offset()
		}
		if drops >= maxDrops {
			return failf(Dropped, "%w, %d times in a row", e.Err, drops)
		}
	}
}

// checkNotEmpty returns an error if no bytes were received.
func (t *transfer) checkNotEmpty(to sink) error {
	if to.Offset() == 0 {
		return failf(BadSource, "the file is empty")
	}
	return nil
}

// fetchOnce sends one request for the rest of the file, and a second one for the whole file
// if the bytes in to are of another version. It returns errComplete when to has all bytes.
func (t *transfer) fetchOnce(ctx context.Context, a address, src source, to sink) error {
	attempt, cancel := context.WithCancelCause(ctx) // a stall cancels attempt, and not ctx
	defer cancel(nil)
	q := t.nextRequest(a, to)
	if q.offset > 0 && q.offset == q.total {
		t.progress.Joined.Store(true) // an earlier process may have received them in several responses
		t.progress.Total.Store(q.total)
		t.progress.Done.Store(q.offset)
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
		if err := t.begin(a, got, to); err != nil {
			return err
		}
	}
	t.progress.Total.Store(got.total)
	t.progress.Done.Store(to.Offset())
	if _, err := to.ReadFrom(CountReader(ctx, body, &t.progress.Done, &t.progress.UpstreamBytes)); err != nil {
		return err
	}
	return errComplete
}

// nextRequest continues at the end of to, if the bytes in to can be checked to be of the
// file at a: by a validator that a itself sent, by a strong ETag even if another address
// sent it, or by the same length and a digest that is compared at the end.
func (t *transfer) nextRequest(a address, to sink) rangeRequest {
	whole := rangeRequest{total: -1}
	o, q := to.Source(), rangeRequest{offset: to.Offset(), noDigest: !t.hasDigest}
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

func (t *transfer) begin(a address, got *response, to sink) error {
	if got.total < 0 && !got.delimited && !t.hasDigest && !t.selfDelimiting {
		return failf(BadSource, "the server does not send the length, so a truncated file would not be detected: declare a checksum")
	}
	if max := t.request.MaxSize; t.packing == notPacked && max > 0 && got.total > max {
		return failf(BadSource, "%w: it has %d bytes, at most %d are allowed", disk.ErrTooLarge, got.total, max)
	}
	if got.total == 0 {
		return failf(BadSource, "the file is empty")
	}
	err := to.Begin(disk.PartSource{ID: a.id(), ETag: got.etag, LastModified: got.lastModified, Size: got.total})
	t.restart = t.restart && err != nil
	return err
}

// bodyReader returns the body of a response with stall detection, a check of its length, and
// the rate limit.
func (t *transfer) bodyReader(ctx context.Context, cancel context.CancelCauseFunc, got *response) io.Reader {
	watch := &stallReader{Reader: got.body, window: t.client.timings().stall, cancel: cancel}
	whole := &boundedBody{Reader: watch, left: got.total - got.start, bounded: got.total >= 0,
		broken: func(left int64, err error) error { return bodyError(ctx, left, err) }}
	return RateLimitReader(ctx, whole, t.limiter)
}

// refuseWebPage fails if body begins as a web page. Portals and proxies send one instead of
// the file. The error is temporary, whereas a file that is not an image would be final.
func refuseWebPage(body io.Reader) (io.Reader, error) {
	head := make([]byte, 512)
	n, err := io.ReadFull(body, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	if strings.HasPrefix(http.DetectContentType(head[:n]), "text/html") {
		return nil, failf(Refused, "the server sent a web page instead of the file")
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
		return n, failf(BadSource, "the body is longer than the length that the server sent")
	case err == io.EOF && r.bounded && r.left > 0:
		err = io.ErrUnexpectedEOF
	case err == nil || err == io.EOF:
		return n, err
	}
	return n, r.broken(r.left, err)
}

// bodyError classifies an error of a body: a stall, a cancelled ctx, or a broken connection.
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
		return failf(Dropped, "connection broke %d bytes before the end: %w", left, withoutURL(err))
	}
	return failf(Dropped, "connection broke: %w", withoutURL(err))
}
