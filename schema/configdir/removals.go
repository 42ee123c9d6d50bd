package configdir

import (
	"maps"
	"time"
)

// RemovalDelay is the minimum time for which an image must be missing from the
// configuration, in at least two reads, before its removal is confirmed.
const RemovalDelay = 5 * time.Second

// RemovalConfirmer confirms that images were removed from the configuration: two reads at
// least RemovalDelay apart, and all reads in between, did not declare them. The caller
// passes only fully valid configurations. After an invalid configuration, the caller assigns
// the zero RemovalConfirmer, which has confirmed nothing. A RemovalConfirmer is not safe for
// concurrent use.
type RemovalConfirmer struct {
	firstEnded   time.Time            // the end of the first read
	lastBegan    time.Time            // the beginning of the last read
	declared     map[string]bool      // in the last read
	missingSince map[string]time.Time // by name of an image that was declared before: the end of the first read without it
}

// Observe records the names that were declared in a read from began to ended. The time between two
// reads counts from the end of the first to the beginning of the second. A read of a directory
// that did not change counts like any other. Observe keeps the map; the caller must not change it.
// Observe reports whether this read confirmed a removal, possibly of an image that no read declared.
func (r *RemovalConfirmer) Observe(began, ended time.Time, declared map[string]bool) (confirmed bool) {
	if r.lastBegan.IsZero() {
		r.firstEnded, r.missingSince = ended, map[string]time.Time{}
	} else {
		confirmed = r.lastBegan.Sub(r.firstEnded) < RemovalDelay && began.Sub(r.firstEnded) >= RemovalDelay
	}
	for name := range r.declared {
		if !declared[name] {
			r.missingSince[name] = ended
		}
	}
	for name, since := range r.missingSince {
		// From now on, Confirmed treats the image like an image that was never declared.
		if declared[name] || began.Sub(since) >= RemovalDelay {
			delete(r.missingSince, name)
			confirmed = confirmed || !declared[name]
		}
	}
	r.lastBegan, r.declared = began, declared
	return confirmed
}

// Confirmed reports whether it is confirmed that no image with that name is declared.
func (r *RemovalConfirmer) Confirmed(name string) bool {
	if r.declared[name] {
		return false
	}
	since, ok := r.missingSince[name]
	if !ok {
		since = r.firstEnded
	}
	return !r.lastBegan.IsZero() && r.lastBegan.Sub(since) >= RemovalDelay
}

// Clone returns a copy that later calls of Observe do not change. The clone of nil is nil.
func (r *RemovalConfirmer) Clone() *RemovalConfirmer {
	if r == nil {
		return nil
	}
	c := *r
	c.missingSince = maps.Clone(r.missingSince)
	return &c
}
