package assemble

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// Health is what is known about the providers of transfers, by their names. After a failure, a provider has a backoff: First,
// and twice as long after each further failure in a row, up to Max. A Health is for one transfer at a time.
type Health struct {
	First, Max time.Duration
	// Useful is how many bytes a connection must deliver before it breaks, to show that the provider works and needs no backoff.
	Useful int64
	// Tries is the number of failures in a row after which a provider is not used any more; 0: it is always tried again. There
	// is one try only, except after a broken connection, and for a server that is known to limit the requests at a time.
	Tries int

	records map[string]*record
}

// record is the health of one provider.
type record struct {
	err      error     // the last failure; nil: none
	retryAt  time.Time // the provider is not used before this time
	failures int       // in a row
	degraded bool      // the provider sends, but slowly, or only until the connection breaks
	busy     bool      // the last response was a Busy
	invalid  bool      // the provider has sent wrong bytes
	ended    bool      // the provider is not used any more
	requests int       // how many at a time the provider serves, because it rejected more; 0: not known
	// pace is the recent time for disk.ChunkSize bytes; 0: not known. It is a mean in which each segment has half the weight
	// of the following segment.
	pace time.Duration
}

// Busy is the error of a provider that serves others, and wants to be asked again later.
type Busy interface {
	error
	RetryAfter() time.Duration
}

func (h *Health) of(name string) *record {
	if h.records == nil {
		h.records = map[string]*record{}
	}
	if h.records[name] == nil {
		h.records[name] = new(record)
	}
	return h.records[name]
}

// Available reports whether a provider may be used now.
func (h *Health) Available(name string) bool { return h.of(name).available() }

// SentWrongBytes reports whether a provider has sent wrong bytes.
func (h *Health) SentWrongBytes(name string) bool { return h.of(name).invalid }

// Ended reports whether a provider is not used any more.
func (h *Health) Ended(name string) bool { return h.of(name).ended }

// Note records why a provider is of no use now. The provider stays available.
func (h *Health) Note(name string, err error) { h.of(name).err = err }

// Fail records a failure outside an assembly. invalid means that the provider sent wrong bytes.
func (h *Health) Fail(name string, err error, invalid bool) {
	r := h.of(name)
	r.invalid = r.invalid || invalid
	h.fail(r, err, 0)
}

func (r *record) available() bool { return !r.ended && !time.Now().Before(r.retryAt) }

var (
	// errSlow ends a request because another provider was asked for the same segment later, and delivered it first.
	errSlow = errors.New("much slower than the other sources")
	// errNotNeeded ends a second request whose segment the first request delivered, and a request that must yield to another.
	errNotNeeded = errors.New("another request was faster")
)

// fail records the failure of a request that delivered some bytes.
func (h *Health) fail(r *record, err error, delivered int64) {
	if busy, ok := errors.AsType[Busy](err); ok {
		r.err, r.busy, r.degraded, r.retryAt = err, true, false, time.Now().Add(busy.RetryAfter())
		return
	}
	slow, dropped, useful := errors.Is(err, errSlow), isDropped(err), delivered >= h.Useful && delivered > 0
	r.err, r.busy, r.degraded = err, false, slow || dropped && delivered > 0
	if useful && !r.invalid && !slow {
		r.failures = 0
	}
	backoff := min(h.First<<min(r.failures, 8), h.Max)
	if r.failures++; dropped && useful {
		backoff = 0
	}
	r.retryAt = time.Now().Add(backoff)
	r.ended = h.Tries > 0 && (r.failures >= h.Tries || !dropped && (r.requests == 0 || !isOverload(err)))
}

// isOverload reports whether a server may accept the same request later, when it serves fewer other requests.
func isOverload(err error) bool {
	failed, ok := errors.AsType[*fetch.Error](err)
	return ok && failed.RetryAfter == 0 && (failed.Class == fetch.Network || failed.Class == fetch.Dropped)
}

// isDropped reports whether a connection broke.
func isDropped(err error) bool {
	failed, ok := errors.AsType[*fetch.Error](err)
	return ok && failed.Class == fetch.Dropped ||
		!ok && (errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE))
}

// succeed records that a request delivered all its bytes.
func (r *record) succeed() {
	if !r.invalid {
		r.failures = 0
	}
}

// measure records the time that bytes took.
func (r *record) measure(took time.Duration, length int64) {
	took = max(1, time.Duration(float64(took)*disk.ChunkSize/float64(length)))
	r.pace = (cmp.Or(r.pace, took) + took) / 2
}

// UntilRetry returns the time until the next provider becomes available, but at most a second, because new providers may
// appear at any time.
func (h *Health) UntilRetry() time.Duration {
	wait := time.Second
	for _, r := range h.records {
		if left := time.Until(r.retryAt); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// NoProvider returns the error of a transfer that gives up after some time. It has the last failure of each provider.
func (h *Health) NoProvider(after time.Duration) error {
	var failures []string
	for _, name := range slices.Sorted(maps.Keys(h.records)) {
		if r := h.records[name]; r.err != nil {
			failures = append(failures, fmt.Sprintf("%s: %v", name, r.err))
		}
	}
	reason := cmp.Or(strings.Join(failures, "; "), "no other node has a ready copy")
	return &fetch.Error{Class: fetch.Network, Err: fmt.Errorf("no usable source for %v: %s", after, reason)}
}
