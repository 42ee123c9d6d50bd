package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// inUseAgain is how long after a refused deletion the users are looked at again.
const inUseAgain = time.Minute

// mostRepairs is how many repairs in a row may fail for want of an answer before the
// copy is replaced, if it can be.
const mostRepairs = 2

// of reports whether the failure says something about actions of that kind.
func (t Try) of(kind Kind) bool { return t.Kind == "" || t.Kind == kind }

// puts reports whether the failure puts off an action of that kind. What failed
// for want of space comes as soon as that is there, but only once: somebody else
// may be taking it too.
func (t Try) puts(kind Kind, now time.Time) bool {
	switch {
	case !t.of(kind):
		return false
	case t.Final:
		return true
	case t.Space > 0 && t.Attempts < 2:
		return false
	}
	return t.Until.After(now)
}

// seen is what is remembered as a plan takes it, at a moment that is now by the steady clock
// and wall by that on the wall, which may have been set meanwhile.
func (t Try) seen(now, wall time.Time) Try {
	for _, at := range []*time.Time{&t.Since, &t.Until} {
		if !at.IsZero() {
			*at = wall.Add(at.Sub(now))
		}
	}
	return t
}

// NextFailure returns the failure to remember after a failed with err and t was remembered
// before. rnd, from [0, 1), spreads the retries of a fleet.
func NextFailure(t Try, a Action, err error, now time.Time, rnd float64) Try {
	suspects := slices.Clone(t.Suspects)
	attempts := t.Attempts
	if !t.of(a.Kind) {
		attempts = 0
	}
	class, final, after := judge(err, attempts, rnd)
	unrepairable := t.Unrepairable && a.Kind != Sync // which failed too: they take turns
	if a.Kind == Repair && (class != linkTrouble || t.Attempts >= mostRepairs) {
		unrepairable = true
	}
	if !t.of(a.Kind) {
		t = Try{}
	}
	wrong, ok := errors.AsType[*disk.ChecksumError](err)
	unreadable := errors.Is(err, disk.ErrDamaged) && (a.Kind == Sync || a.Kind == Clone)
	if ok && (a.Kind == Sync || a.Kind == Clone && wrong.Want == a.sum) || unreadable {
		final = false // another copy, or the source, may have the right bytes
		if a.from != (Key{}) {
			suspects = append(suspects, a.from)
		}
		if a.Kind == Clone || unreadable {
			class = linkTrouble // another node may have a better copy
		}
	}
	if a.Kind == Repair {
		final = false // another copy may have the chunks
	}
	if a.Kind == Export && class == sourceTrouble && !final {
		class = linkTrouble // or a better replica
	}
	next := Try{Suspects: suspects, Unrepairable: unrepairable, Kind: a.Kind, Attempts: t.Attempts + 1, Since: t.Since, Message: explain(err), Final: final}
	next.Disk, next.Link = class == diskTrouble && !final, class == linkTrouble
	if next.Since.IsZero() || next.Disk && !t.Disk || next.Link && !t.Link {
		next.Since = now
	}
	if isA[*disk.ChecksumError](err) && final && !a.recall.digest.IsZero() {
		next.Final, next.Until = false, now.Add(a.recall.until.Sub(now))
		next.Message += "; after the recovery interval other bytes will do, as no checksum is declared"
		return next
	}
	if final {
		return next
	}
	if lack, ok := errors.AsType[*disk.NoSpaceError](err); ok {
		next.Space = max(lack.Need, t.Space)
	}
	wait := after
	if wait == 0 {
		wait, _ = fetch.Backoff(fetch.Network, t.Attempts, rnd)
	}
	next.Until = now.Add(wait)
	return next
}

// explain is err for people, with what to do about it where that is known.
func explain(err error) string {
	if e, ok := errors.AsType[*disk.FormatError](err); ok && e.Hint != "" {
		return fmt.Sprintf("%v (%s)", err, e.Hint)
	}
	return err.Error()
}

type trouble uint8

const (
	sourceTrouble trouble = iota
	linkTrouble           // or the source's: from here it cannot be told
	diskTrouble
)

// judge says whose fault err is, whether anything but another declaration helps,
// and how long to wait, if the error knows, after that many attempts before.
func judge(err error, attempts int, rnd float64) (whose trouble, final bool, after time.Duration) {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		if e.Class == fetch.BadConfig {
			// Credentials are mended outside of the declaration.
			wait, _ := fetch.Backoff(fetch.Refused, 0, rnd)
			return linkTrouble, false, wait // another node may have them
		}
		wait, final := e.Backoff(attempts, rnd)
		switch {
		case e.Class == fetch.Network, e.Class == fetch.Dropped:
			return linkTrouble, final, wait
		case errors.Is(err, disk.ErrNoSpace):
			return diskTrouble, final, wait
		}
		return sourceTrouble, final, wait
	}
	switch {
	case isA[*disk.ChecksumError](err), isA[*disk.FormatError](err), errors.Is(err, disk.ErrTooLarge):
		return sourceTrouble, true, 0
	case isA[*disk.InUseError](err), errors.Is(err, disk.ErrModified):
		return sourceTrouble, false, inUseAgain
	case errors.Is(err, context.DeadlineExceeded):
		return linkTrouble, false, 0
	}
	return diskTrouble, false, 0
}

func isA[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }
