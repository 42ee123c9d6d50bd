package fetch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/backoff"
)

// Class is the class of a failure. It determines the time of the next attempt: see Backoff.
type Class uint8

const (
	// Dropped: the connection broke several times in a row without progress.
	Dropped Class = iota + 1
	// Network: no connection, no response, a stall, or a temporary error of the server (5xx, 408,
	// 425, 429).
	Network
	// Refused: the server rejected the request with any other 4xx status, or has no usable file now.
	Refused
	// BadSource: the file differs from the declaration, is damaged, is not an image, may be truncated, or has
	// no valid signature. It is final until the declaration or the file on the server changes. Because the file
	// may have changed, package job tries a download or a restore again, rarely.
	BadSource
	// NoSpace: the disk has no space for the image.
	NoSpace
	// BadConfig: the request itself is invalid: its address, host or credentials. Another attempt
	// can succeed only after the declaration or the credentials folder has changed.
	BadConfig
)

var classNames = [...]string{"", "dropped", "network", "refused", "source", "no space", "config"}

// String returns the name of the class, which is used in metrics and messages.
func (c Class) String() string { return classNames[c] }

// Error is the error that every method of Client returns, with two exceptions: a canceled context
// returns its own error, and a disk failure other than lack of space returns the error of package
// disk.
type Error struct {
	Class      Class
	URL        string        // without user, password, query and fragment; empty if the error does not concern an address
	RetryAfter time.Duration // delay that the server requested; 0: none
	Err        error
}

func (e *Error) Error() string {
	if e.URL == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("fetch %s: %v", e.URL, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error of a class.
func Errorf(class Class, format string, args ...any) *Error {
	return &Error{Class: class, Err: fmt.Errorf(format, args...)}
}

// withURL returns e with the given URL, unless e already has one.
func (e *Error) withURL(url string) *Error {
	if e.URL != "" {
		return e
	}
	named := *e
	named.URL = url
	return &named
}

// ClassifyDiskError returns an *Error for lack of space and for wrong bytes. It returns other errors
// unchanged, because they are failures of the disk itself.
func ClassifyDiskError(err error) error {
	var known *Error
	var format *disk.FormatError
	var checksum *disk.ChecksumError
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, disk.ErrNoSpace):
		return &Error{Class: NoSpace, Err: err}
	case errors.As(err, &format), errors.As(err, &checksum), errors.Is(err, disk.ErrTooLarge):
		return &Error{Class: BadSource, Err: err}
	}
	return err
}

// retryRank orders the classes: an attempt after a class with a higher rank may succeed sooner.
var retryRank = [...]int{Dropped: 5, Network: 4, Refused: 3, BadSource: 2, BadConfig: 1, NoSpace: 0}

// AllFailed combines the errors of all addresses. The class of the result is the class with
// the highest retryRank.
func AllFailed(failed []*Error) *Error {
	if len(failed) == 1 {
		return failed[0]
	}
	best, all := failed[0], []any{failed[0]} // in the order of the attempts
	for _, e := range failed[1:] {
		if all = append(all, e); retryRank[e.Class] > retryRank[best.Class] {
			best = e
		}
	}
	joined := Errorf(best.Class, "%w"+strings.Repeat("; then %w", len(all)-1), all...)
	joined.RetryAfter = best.RetryAfter
	return joined
}

// maxRetryAfter is the maximum delay that a server can request.
const maxRetryAfter = time.Hour

var retryWait = backoff.Doubling{First: time.Minute, Max: 5 * time.Minute}

// Backoff returns the delay before the next attempt after attempt+1 consecutive failures. If final is true,
// every attempt has the same result until the declaration changes, the server changes the file (BadSource), or
// a person corrects the credentials (BadConfig). Package job may still try again, with delays of its own
// (NextFailure). rnd, in [0, 1), shortens the delay by up to a fifth, so that nodes do not retry at the same
// time. After NoSpace, check the free space again when the delay ends.
func Backoff(class Class, attempt int, rnd float64) (wait time.Duration, final bool) {
	switch class {
	case BadSource, BadConfig:
		return 0, true
	case Refused:
		wait = retryWait.Max
	case NoSpace:
		wait = retryWait.First
	default:
		wait = retryWait.After(attempt)
	}
	return wait - time.Duration(rnd*float64(wait)/5), false
}

// Backoff returns the delay for e's class. The delay is at least the delay that the server requested,
// up to one hour.
func (e *Error) Backoff(attempt int, rnd float64) (wait time.Duration, final bool) {
	wait, final = Backoff(e.Class, attempt, rnd)
	if final {
		return 0, true
	}
	return max(wait, min(e.RetryAfter, maxRetryAfter)), false
}

// Sleep waits for d, or returns the error of ctx when it ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// isConnectionLost reports whether an established connection was closed or reset.
func isConnectionLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

// withoutURL removes every *url.Error from err, because it contains the whole address. It replaces
// io.EOF by io.ErrUnexpectedEOF, because a caller would interpret io.EOF as the end of a complete
// stream.
func withoutURL(err error) error {
	var withURL *url.Error
	for errors.As(err, &withURL) {
		err = withURL.Err
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
