package reconcile

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// From the last write to the taking go by, at worst: what Watch collects
// events for, lookGap, stillFor, and the looks themselves.
const (
	stillFor   = 250 * time.Millisecond // looks this far apart must agree
	lookGap    = 50 * time.Millisecond  // least time between looks
	slowGap    = time.Second            // the same when change does not stop; and how often git is looked after
	patience   = 5 * time.Second        // change without rest for this long is a fault
	waitForGit = 30 * time.Second       // an index.lock with no change for so long is a left-over
)

var errEmpty = errors.New("the config directory holds no configuration files")

// Settler decides when the content of a config directory may be taken: never
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
type Settler struct {
	taken      disk.Digest
	generation string // at the last look

	seen  sight
	since time.Time // the first look of an unbroken row that saw it
	last  time.Time // the last look

	restless time.Time       // the first look since which nothing was still
	before   schema.Snapshot // at the last look, while restless
	changing string          // the first path that differed then
	git      time.Time       // the first look of an unbroken row that saw git at work
	leftOver bool            // what they saw of git is what a dead one left
}

// sight is what a look saw, as a value to compare.
type sight struct {
	content disk.Digest
	fault   string
}

// Verdict is what to do after a look.
type Verdict struct {
	// Take says that the snapshot just looked at is new and may be taken. The
	// Settler regards it as taken.
	Take bool

	// Again is when to look again at the latest, even if nothing pokes. 0:
	// with the next poke or periodic look.
	Again time.Duration

	// Fault is why there is nothing to take. What was taken before stands.
	Fault error
}

// Look takes note of what schema.ReadDir returned, which was called at the
// time began and returned at the time now. Both matter: two looks that agree
// are only as far apart as the end of one and the beginning of the other.
func (s *Settler) Look(began, now time.Time, snap schema.Snapshot, err error) Verdict {
	if err == nil && len(snap.Files) == 0 {
		err = errEmpty
	}
	swapped := err == nil && snap.Whole && snap.Generation != s.generation
	s.generation, s.last = snap.Generation, now
	s.see(now, snap, err)
	fresh := s.seen.content != s.taken
	switch {
	case s.waitsForGit(now, snap.Busy):
		s.restless = time.Time{} // git may take as long as it does
		return Verdict{Again: slowGap}
	case err == nil && (swapped || !fresh):
		return s.settle(fresh)
	case began.Sub(s.since) < stillFor || errors.Is(err, schema.ErrChanging):
		return s.wait(now)
	case err != nil:
		s.settle(false)
		return Verdict{Fault: err}
	}
	return s.settle(fresh)
}

// Poked returns how long after a poke at the time now to look, so that a
// storm of changes does not become a storm of looks.
func (s *Settler) Poked(now time.Time) time.Duration {
	return max(0, s.last.Add(s.gap(now)).Sub(now))
}

func (s *Settler) see(now time.Time, snap schema.Snapshot, err error) {
	var seen sight
	if err != nil {
		seen.fault = err.Error()
	} else {
		seen.content = snap.Digest()
	}
	if seen == s.seen && !errors.Is(err, schema.ErrChanging) {
		return
	}
	s.seen, s.since = seen, now
	if s.restless.IsZero() {
		s.restless = now
	} else if err == nil {
		s.changing = firstChange(s.before, snap)
	}
	s.before = snap
}

func (s *Settler) waitsForGit(now time.Time, busy bool) bool {
	if !busy {
		s.git, s.leftOver = time.Time{}, false
		return false
	}
	if s.git.IsZero() {
		s.git = now
	}
	last := s.git
	if s.since.After(last) {
		last = s.since // it is at work: something changed
	}
	s.leftOver = s.leftOver || now.Sub(last) >= waitForGit
	return !s.leftOver
}

// wait is the verdict on what has not been still for long enough.
func (s *Settler) wait(now time.Time) Verdict {
	if s.restless.IsZero() {
		s.restless = now // git has only just ended
	}
	if now.Sub(s.restless) < patience {
		return Verdict{Again: max(lookGap, s.since.Add(stillFor).Sub(now))}
	}
	fault := fmt.Errorf("the config directory has not been still for %v", now.Sub(s.restless).Round(time.Second))
	if s.changing != "" {
		fault = fmt.Errorf("%w: %s keeps changing", fault, s.changing)
	}
	return Verdict{Again: slowGap, Fault: fault}
}

func (s *Settler) settle(fresh bool) Verdict {
	s.restless, s.before, s.changing = time.Time{}, schema.Snapshot{}, ""
	if fresh {
		s.taken = s.seen.content
	}
	return Verdict{Take: fresh}
}

func (s *Settler) gap(now time.Time) time.Duration {
	if !s.restless.IsZero() && now.Sub(s.restless) >= patience {
		return slowGap
	}
	return lookGap
}

// firstChange returns the first path that only one of two snapshots has, or
// that they have with different contents, "" if they are equal.
func firstChange(a, b schema.Snapshot) string {
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
