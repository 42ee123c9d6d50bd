package configdir

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// From the last write to the taking go by, at worst: what Watch collects
// events for, lookGap, stillFor, and the looks themselves.
const (
	StableFor      = 250 * time.Millisecond // looks this far apart must agree
	readGap        = 50 * time.Millisecond  // least time between looks
	slowReadGap    = time.Second            // the same when change does not stop; and how often git is looked after
	maxUnstable    = 5 * time.Second        // change without rest for this long is a fault
	gitLockTimeout = 30 * time.Second       // an index.lock with no change for so long is a left-over
)

var errEmpty = errors.New("the config directory holds no configuration files")

// Debouncer decides when the content of a config directory may be taken: never
// while it may be half of a change. It reads no clock and no files: it is
// told of each look and answers with a Verdict.
//
//   - What came with a swap is complete and is taken at once.
//   - What git writes is waited for, as long as it does not stop for half a minute.
//   - Other content is taken when it has been still for a moment. Content
//     that never is still is never taken: what we have may be old, but it
//     is not half of anything. It becomes a fault that names a file.
//   - A directory that is missing, empty or cannot be read is a fault when
//     it has been so for a moment, and never content.
//
// The zero Settler has taken nothing; assigning it makes the next content
// new again. It is not safe for concurrent use.
type Debouncer struct {
	applied    disk.Digest
	generation string // at the last look

	observed      fingerprint
	observedSince time.Time // the first look of an unbroken row that saw it
	lastRead      time.Time // the last look

	unstableSince time.Time // the first look since which nothing was still
	previous      Snapshot  // at the last look, while restless
	changingPath  string    // the first path that differed then
	gitSince      time.Time // the first look of an unbroken row that saw git at work
	staleLock     bool      // what they saw of git is what a dead one left
}

// fingerprint is what a look saw, as a value to compare.
type fingerprint struct {
	content disk.Digest
	fault   string
}

// Decision is what to do after a look.
type Decision struct {
	// Apply says that the snapshot just looked at is new and may be taken. The
	// Settler regards it as taken.
	Apply bool

	// RetryAfter is when to look again at the latest, even if nothing pokes. 0:
	// with the next poke or periodic look.
	RetryAfter time.Duration

	// Fault is why there is nothing to take. What was taken before stands.
	Fault error
}

// Observe takes note of what schema.ReadDir returned, which was called at the
// time began and returned at the time now. Both matter: two looks that agree
// are only as far apart as the end of one and the beginning of the other.
func (s *Debouncer) Observe(began, now time.Time, snap Snapshot, err error) Decision {
	if err == nil && len(snap.Files) == 0 {
		err = errEmpty
	}
	swapped := err == nil && snap.Whole && snap.Generation != s.generation
	s.generation, s.lastRead = snap.Generation, now
	s.record(now, snap, err)
	fresh := s.observed.content != s.applied
	switch {
	case s.waitsForGit(now, snap.Busy):
		s.unstableSince = time.Time{} // git may take as long as it does
		return Decision{RetryAfter: slowReadGap}
	case err == nil && (swapped || !fresh):
		return s.stable(fresh)
	case began.Sub(s.observedSince) < StableFor || errors.Is(err, ErrChanging):
		return s.wait(now)
	case err != nil:
		s.stable(false)
		return Decision{Fault: err}
	}
	return s.stable(fresh)
}

// DelayAfterEvent returns how long after a poke at the time now to look, so that a
// storm of changes does not become a storm of looks.
func (s *Debouncer) DelayAfterEvent(now time.Time) time.Duration {
	return max(0, s.lastRead.Add(s.minGap(now)).Sub(now))
}

func (s *Debouncer) record(now time.Time, snap Snapshot, err error) {
	var seen fingerprint
	if err != nil {
		seen.fault = err.Error()
	} else {
		seen.content = snap.Digest()
	}
	if seen == s.observed && !errors.Is(err, ErrChanging) {
		return
	}
	s.observed, s.observedSince = seen, now
	if s.unstableSince.IsZero() {
		s.unstableSince = now
	} else if err == nil {
		s.changingPath = firstChange(s.previous, snap)
	}
	s.previous = snap
}

func (s *Debouncer) waitsForGit(now time.Time, busy bool) bool {
	if !busy {
		s.gitSince, s.staleLock = time.Time{}, false
		return false
	}
	if s.gitSince.IsZero() {
		s.gitSince = now
	}
	last := s.gitSince
	if s.observedSince.After(last) {
		last = s.observedSince // it is at work: something changed
	}
	s.staleLock = s.staleLock || now.Sub(last) >= gitLockTimeout
	return !s.staleLock
}

// wait is the verdict on what has not been still for long enough.
func (s *Debouncer) wait(now time.Time) Decision {
	if s.unstableSince.IsZero() {
		s.unstableSince = now // git has only just ended
	}
	if now.Sub(s.unstableSince) < maxUnstable {
		return Decision{RetryAfter: max(readGap, s.observedSince.Add(StableFor).Sub(now))}
	}
	fault := fmt.Errorf("the config directory has not been still for %v", now.Sub(s.unstableSince).Round(time.Second))
	if s.changingPath != "" {
		fault = fmt.Errorf("%w: %s keeps changing", fault, s.changingPath)
	}
	return Decision{RetryAfter: slowReadGap, Fault: fault}
}

func (s *Debouncer) stable(fresh bool) Decision {
	s.unstableSince, s.previous, s.changingPath = time.Time{}, Snapshot{}, ""
	if fresh {
		s.applied = s.observed.content
	}
	return Decision{Apply: fresh}
}

func (s *Debouncer) minGap(now time.Time) time.Duration {
	if !s.unstableSince.IsZero() && now.Sub(s.unstableSince) >= maxUnstable {
		return slowReadGap
	}
	return readGap
}

// firstChange returns the first path that only one of two snapshots has, or
// that they have with different contents, "" if they are equal.
func firstChange(a, b Snapshot) string {
	both := min(len(a.Files), len(b.Files))
	for i := range both {
		f, g := a.Files[i], b.Files[i]
		same := bytes.Equal(f.Data, g.Data) && fmt.Sprint(f.Err) == fmt.Sprint(g.Err)
		if f.Path != g.Path || !same {
			return min(f.Path, g.Path)
		}
	}
	for _, f := range slices.Concat(a.Files[both:], b.Files[both:]) {
		return f.Path
	}
	return ""
}
