package plan

import "time"

// Failure is what is remembered of a failure until the next attempt.
type Failure struct {
	Op       Op // of the action that failed; "": of whatever is tried
	Attempts int
	Since    time.Time // of the first failure in a row
	RetryAt  time.Time // of the next attempt
	Message  string
	// Final means that only another declaration helps.
	Final bool
	// NeedsSpace is how many bytes the disk has to have free for the next attempt; it
	// comes as soon as they are there.
	NeedsSpace int64
	// Disk says that the trouble is the disk's and not the source's.
	Disk bool
	// Link says that it may be this node's way to the source, so that another node
	// may have more luck.
	Link bool
	// Unrepairable: a repair of the copy failed, so it has to be replaced.
	Unrepairable bool
	// Suspects are ready copies that were read and gave other bytes than their own,
	// as long as they have not been verified since.
	Suspects []CopyRef
}

// AppliesTo reports whether the failure says something about actions of that kind.
func (t Failure) AppliesTo(kind Op) bool { return t.Op == "" || t.Op == kind }

// Delays reports whether the failure puts off an action of that kind. What failed
// for want of space comes as soon as that is there, but only once: somebody else
// may be taking it too.
func (t Failure) Delays(kind Op, now time.Time) bool {
	switch {
	case !t.AppliesTo(kind):
		return false
	case t.Final:
		return true
	case t.NeedsSpace > 0 && t.Attempts < 2:
		return false
	}
	return t.RetryAt.After(now)
}

// OnWallClock is what is remembered as a plan takes it, at a moment that is now by the steady clock
// and wall by that on the wall, which may have been set meanwhile.
func (t Failure) OnWallClock(now, wall time.Time) Failure {
	for _, at := range []*time.Time{&t.Since, &t.RetryAt} {
		if !at.IsZero() {
			*at = wall.Add(at.Sub(now))
		}
	}
	return t
}
