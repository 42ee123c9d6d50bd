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

// sink takes the bytes of one file in their order. *disk.Part is one; others
// stand before it and unpack, or keep a small file in memory.
type sink interface {
	Source() disk.PartSource
	Offset() int64               // bytes that it holds: the next one to ask for
	Begin(disk.PartSource) error // drops them
	io.ReaderFrom
}

// source is one address that bytes can be asked of.
type source interface {
	// get asks once. It fails with errChanged when the bytes that q goes on from
	// are not a part of what the source has now.
	get(ctx context.Context, q rangeRequest) (*response, error)
}

// rangeRequest asks for the bytes from offset on. With an offset, the answer has to be
// of the same file: one of total bytes, that validator still names.
type rangeRequest struct {
	offset    int64
	end       int64  // where what is asked for ends; 0: with the file
	total     int64  // -1: not known
	validator string // a strong ETag or a Last-Modified date; empty: a digest will tell
	noDigest  bool   // no digest will tell
}

// isPartial reports whether the question is for less than the whole file.
func (q rangeRequest) isPartial() bool { return q.offset > 0 || q.end > 0 }

// rangeHeader is the value of a Range header.
func (q rangeRequest) rangeHeader() string {
	if q.end == 0 {
		return fmt.Sprintf("bytes=%d-", q.offset)
	}
	return fmt.Sprintf("bytes=%d-%d", q.offset, q.end-1)
}

// response is a file from start to its end, or to that of the question.
type response struct {
	body         io.ReadCloser
	start, total int64  // total is -1 when not known
	delimited    bool   // a cut can be told from the end even without the total
	isHTML       bool   // it is said to be a web page
	etag         string // strong ones only
	lastModified string // only where it can identify a version
}

var (
	errChanged  = errors.New("the file changed at its source")
	errComplete = errors.New("nothing is left to ask for")
)

const (
	// maxDrops is how many connections in a row may break with next to nothing
	// gained before the source is given up for now.
	maxDrops = 5
	// minProgress is how many bytes a connection has to bring to count as progress.
	minProgress = 64 << 10
)

// fetchAny fills to from the first address that can, and goes on with the next where
// one fails. The bytes that an address brought stay when the next one may have
// the same file.
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

// fetchFrom asks src for what to does not hold yet, as often as connections break and
// the whole is not there.
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

// checkNotEmpty makes sure that something came at all.
func (t *transfer) checkNotEmpty(to sink) error {
	if to.Offset() == 0 {
		return failf(BadSource, "the file is empty")
	}
	return nil
}

// fetchOnce asks once, and once more for the whole file where the part is of no use. It
// returns errComplete when to holds all of it.
func (t *transfer) fetchOnce(ctx context.Context, a address, src source, to sink) error {
	attempt, cancel := context.WithCancelCause(ctx) // which a stall ends, and ctx not
	defer cancel(nil)
	q := t.nextRequest(a, to)
	if q.offset > 0 && q.offset == q.total {
		t.progress.Joined.Store(true) // of answers to an earlier process, for all that is known
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

// nextRequest goes on where to ends, if what it holds can be told to be of the file
// that a has: by a validator that a gave itself, by a strong ETag even if another
// address gave it, or by a digest at the end where the length is the same.
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
		return failf(BadSource, "the server does not tell the length, so that a cut could not be told from the end: declare a checksum")
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

// bodyReader reads the body of an answer as it has to be read: watched for stalls, held
// to its length, and no faster than allowed.
func (t *transfer) bodyReader(ctx context.Context, cancel context.CancelCauseFunc, got *response) io.Reader {
	watch := &stallReader{Reader: got.body, window: t.client.timings().stall, cancel: cancel}
	whole := &boundedBody{Reader: watch, left: got.total - got.start, bounded: got.total >= 0,
		broken: func(left int64, err error) error { return bodyError(ctx, left, err) }}
	return RateLimitReader(ctx, whole, t.limiter)
}

// refuseWebPage refuses a web page, as portals and proxies send it in place of what was
// asked for: that passes, where a file that is no image would be final.
func refuseWebPage(body io.Reader) (io.Reader, error) {
	head := make([]byte, 512)
	n, err := io.ReadFull(body, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, err
	}
	if strings.HasPrefix(http.DetectContentType(head[:n]), "text/html") {
		return nil, failf(Refused, "the server answers with a web page in place of the file")
	}
	return io.MultiReader(bytes.NewReader(head[:n]), body), nil
}

// boundedBody reads a body, holds it to the length that was promised, and gives every
// failure of the network its class.
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
		return n, failf(BadSource, "the body is longer than the server said")
	case err == io.EOF && r.bounded && r.left > 0:
		err = io.ErrUnexpectedEOF
	case err == nil || err == io.EOF:
		return n, err
	}
	return n, r.broken(r.left, err)
}

// bodyError tells a stall and the caller's cancellation from a broken connection.
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
