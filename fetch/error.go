package fetch

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Class says what kind of trouble ended a fetch, and so who should try again
// and when: see Backoff.
type Class uint8

const (
	// Dropped: the connection broke again and again, and nothing came between.
	Dropped Class = iota + 1
	// Network: no connection, no answer, a stall, or an answer that asks to come
	// back later (5xx, 408, 425, 429).
	Network
	// Refused: the server answered that it will not (any other 4xx).
	Refused
	// Source: what the address serves is not what is declared, or no image, or
	// cannot be told from a part of one. Final until the declaration changes.
	BadSource
	// NoSpace: the disk has no room for the image.
	NoSpace
	// Config: the request itself is wrong: address, host, credentials. Final
	// until the declaration (or the folder of credentials) changes.
	BadConfig
)

var classNames = [...]string{"", "dropped", "network", "refused", "source", "no space", "config"}

// String returns the name of the class, for messages and metrics.
func (c Class) String() string { return classNames[c] }

// Error is what every method of Client returns when it fails, but for two
// cases: a cancelled context is returned as its own error, and a failure of the
// disk other than lack of space as it came from package disk.
type Error struct {
	Class      Class
	URL        string        // the address without user info, query and fragment; empty where none is at fault
	RetryAfter time.Duration // what the server asked to wait; 0: nothing
	Err        error
}

func (e *Error) Error() string {
	if e.URL == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("fetch %s: %v", e.URL, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

func failf(class Class, format string, args ...any) *Error {
	return &Error{Class: class, Err: fmt.Errorf(format, args...)}
}

// withURL names the address that e is about, unless it is named already.
func (e *Error) withURL(url string) *Error {
	if e.URL != "" {
		return e
	}
	named := *e
	named.URL = url
	return &named
}

// ClassifyDiskError gives an error of the disk its class, as an *Error. What is neither lack
// of space nor a judgement on the bytes stays as it is: the disk's own trouble.
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

// retryRank orders the classes by how soon another try may help.
var retryRank = [...]int{Dropped: 5, Network: 4, Refused: 3, BadSource: 2, BadConfig: 1, NoSpace: 0}

// allFailed makes one error of those of all addresses that were tried. Its class
// is that of the address that gives the most hope.
func allFailed(failed []*Error) error {
	if len(failed) == 1 {
		return failed[0]
	}
	best := failed[0]
	for _, e := range failed[1:] {
		if retryRank[e.Class] > retryRank[best.Class] {
			best = e
		}
	}
	return &Error{Class: best.Class, RetryAfter: best.RetryAfter, Err: addressErrors(failed)}
}

// addressErrors are the failures of several addresses, in the order of the tries.
type addressErrors []*Error

func (l addressErrors) Error() string {
	lines := make([]string, len(l))
	for i, e := range l {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "; then ")
}

func (l addressErrors) Unwrap() []error {
	errs := make([]error, len(l))
	for i, e := range l {
		errs[i] = e
	}
	return errs
}

const (
	firstWait     = time.Minute
	maxWait       = 5 * time.Minute
	maxRetryAfter = time.Hour // a server cannot put an image off for longer
)

// Backoff returns how long to wait before the next try of what failed attempt
// times in a row before (0 after the first failure), or final, when no other try
// can help until the declaration changes. rnd, from [0, 1), spreads the tries of
// a fleet: it takes up to a fifth off the wait. NoSpace has no wait of its own:
// look for the space again after the time returned.
func Backoff(class Class, attempt int, rnd float64) (wait time.Duration, final bool) {
	switch class {
	case BadSource, BadConfig:
		return 0, true
	case Refused:
		wait = maxWait
	case NoSpace:
		wait = firstWait
	default:
		wait = min(firstWait<<min(max(attempt, 0), 8), maxWait)
	}
	return wait - time.Duration(rnd*float64(wait)/5), false
}

// Backoff is Backoff of the error's class, and no less than what the server
// asked for, as long as that is at most an hour.
func (e *Error) Backoff(attempt int, rnd float64) (wait time.Duration, final bool) {
	wait, final = Backoff(e.Class, attempt, rnd)
	if final {
		return 0, true
	}
	return max(wait, min(e.RetryAfter, maxRetryAfter)), false
}

// isConnectionLost reports whether err says that a connection ended that was there.
func isConnectionLost(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNABORTED)
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}

// withoutURL returns err without what would print an address in full, and without a
// clean end of a stream in its chain: whoever reads on would take it for one.
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
