package configdir

import (
	"errors"
	"fmt"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// The time from the last write until Apply is at most the sum of coalesceFor of Watch,
// readGap, StableFor, and the duration of the reads.
const (
	// StableFor is the minimum time between two reads with equal content before the content is applied.
	StableFor      = 250 * time.Millisecond
	readGap        = 50 * time.Millisecond // minimum time between reads
	slowReadGap    = time.Second           // minimum time between reads of content that is never stable, and while git writes
	maxUnstable    = 5 * time.Second       // content that changes for longer is a fault
	gitLockTimeout = 30 * time.Second      // after this time without changes, index.lock is a left-over
)

var errEmpty = errors.New("the config directory has no configuration files: check the directory")

// Debouncer decides when the content of a config directory may be applied: never
// while it may be incomplete. It reads neither the clock nor files: the caller passes it
// the result of each read, and it returns a Decision.
//
//   - Content that git writes is applied when git has finished, or has changed nothing
//     for half a minute.
//   - Content is applied after it was stable for StableFor, also content that arrived with the swap of a symlink.
//     Content that is never stable is a fault and is never applied: the old content may be out of date, but it is
//     complete.
//   - A directory that is missing, empty or unreadable for a moment is a fault. It is never
//     content.
//
// The zero Debouncer has applied nothing. Assigning the zero value makes the next content
// new again. It is not safe for concurrent use.
type Debouncer struct {
	applied ident.Digest

	observed      fingerprint
	observedSince time.Time // the first of the consecutive reads with that fingerprint
	lastRead      time.Time

	unstableSince time.Time // the first read after which no content was stable
	lockedSince   time.Time // the first of the consecutive reads during which git held its lock
	staleLock     bool      // the lock was left behind by a git process that was killed
}

// fingerprint is the result of a read as a value that can be compared.
type fingerprint struct {
	content ident.Digest
	fault   string
}

// Decision is what to do after a read.
type Decision struct {
	// Apply is true when the snapshot of the last read is new and may be applied. The
	// Debouncer then counts it as applied.
	Apply bool

	// RetryAfter is the time after which to read again at the latest, even without a
	// notification. 0: with the next notification or periodic read.
	RetryAfter time.Duration

	// Fault is why there is no content to apply. The applied content stays in force.
	Fault error
}

// Observe records the result of Read, which was called at the time began and returned at
// the time ended. Both times matter: the content was stable only from the end of one read
// to the beginning of another.
func (d *Debouncer) Observe(began, ended time.Time, s Snapshot, err error) Decision {
	if err == nil && len(s.Files) == 0 {
		err = errEmpty
	}
	d.lastRead = ended
	d.record(ended, s, err)
	isNew := d.observed.content != d.applied
	switch {
	case d.waitsForGit(ended, s.Busy):
		d.unstableSince = time.Time{} // git may take as long as it needs
		return Decision{RetryAfter: slowReadGap}
	case err == nil && !isNew:
		return d.stable(false)
	case began.Sub(d.observedSince) < StableFor:
		return d.wait(ended)
	case err != nil:
		d.stable(false)
		return Decision{Fault: err}
	}
	return d.stable(isNew)
}

// DelayAfterEvent returns how long the caller waits after a notification at the time now before it
// reads. Because of the delay, many changes cause few reads.
func (d *Debouncer) DelayAfterEvent(now time.Time) time.Duration {
	return max(0, d.lastRead.Add(d.minGap(now)).Sub(now))
}

func (d *Debouncer) record(now time.Time, s Snapshot, err error) {
	var f fingerprint
	if err != nil {
		f.fault = err.Error()
	} else {
		f.content = s.Digest()
	}
	if f == d.observed {
		return
	}
	d.observed, d.observedSince = f, now
	if d.unstableSince.IsZero() {
		d.unstableSince = now
	}
}

func (d *Debouncer) waitsForGit(now time.Time, busy bool) bool {
	if !busy {
		d.lockedSince, d.staleLock = time.Time{}, false
		return false
	}
	if d.lockedSince.IsZero() {
		d.lockedSince = now
	}
	last := d.lockedSince
	if d.observedSince.After(last) {
		last = d.observedSince // the content changed, so git is still running
	}
	d.staleLock = d.staleLock || now.Sub(last) >= gitLockTimeout
	return !d.staleLock
}

// wait is the decision on content that has not been stable for long enough.
func (d *Debouncer) wait(now time.Time) Decision {
	if d.unstableSince.IsZero() {
		d.unstableSince = now // git has only just finished
	}
	if now.Sub(d.unstableSince) < maxUnstable {
		return Decision{RetryAfter: max(readGap, d.observedSince.Add(StableFor).Sub(now))}
	}
	return Decision{RetryAfter: slowReadGap, Fault: fmt.Errorf("the config directory has been changing for %v", now.Sub(d.unstableSince).Round(time.Second))}
}

func (d *Debouncer) stable(isNew bool) Decision {
	d.unstableSince = time.Time{}
	if isNew {
		d.applied = d.observed.content
	}
	return Decision{Apply: isNew}
}

func (d *Debouncer) minGap(now time.Time) time.Duration {
	if !d.unstableSince.IsZero() && now.Sub(d.unstableSince) >= maxUnstable {
		return slowReadGap
	}
	return readGap
}
