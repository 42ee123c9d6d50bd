package reconcile

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch"
)

// inUseAgain is how long after a refused deletion the users are looked at again.
const inUseAgain = time.Minute

// next says what to remember of a failure, after what was remembered before.
func (t Try) next(err error, now time.Time) Try {
	next := Try{Attempts: t.Attempts + 1, Since: t.Since, Message: err.Error()}
	if next.Since.IsZero() {
		next.Since = now
	}
	class, final, after := judge(err)
	next.Final = final
	if final {
		return next
	}
	if lack, ok := errors.AsType[*disk.NoSpaceError](err); ok {
		next.Space = lack.Need
	}
	next.Disk = class == diskTrouble
	wait := after
	if wait == 0 {
		wait, _ = fetch.Backoff(fetch.Network, t.Attempts, rand.Float64())
	}
	next.Until = now.Add(wait)
	return next
}

type trouble uint8

const (
	sourceTrouble trouble = iota
	diskTrouble
)

// judge says whose fault err is, whether anything but another declaration helps,
// and how long to wait, if the error knows.
func judge(err error) (whose trouble, final bool, after time.Duration) {
	if e, ok := errors.AsType[*fetch.Error](err); ok {
		if e.Class == fetch.Config {
			// Credentials are mended outside of the declaration.
			wait, _ := fetch.Backoff(fetch.Refused, 0, rand.Float64())
			return sourceTrouble, false, wait
		}
		wait, final := e.Backoff(0, rand.Float64())
		if e.Class == fetch.Network || e.Class == fetch.Dropped {
			wait = e.RetryAfter
		}
		return sourceTrouble, final, wait
	}
	switch {
	case isA[*disk.ChecksumError](err), isA[*disk.FormatError](err), errors.Is(err, disk.ErrTooLarge):
		return sourceTrouble, true, 0
	case isA[*disk.InUseError](err), errors.Is(err, disk.ErrChanging):
		return sourceTrouble, false, inUseAgain
	case errors.Is(err, context.DeadlineExceeded):
		return sourceTrouble, false, 0
	}
	return diskTrouble, false, 0
}

func isA[E error](err error) bool { _, ok := errors.AsType[E](err); return ok }
