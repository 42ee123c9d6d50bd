package fetch

import "time"

const (
	firstWait    = time.Minute
	longestWait  = 5 * time.Minute
	longestAsked = time.Hour // a server cannot put an image off for longer
)

// Backoff returns how long to wait before the next try of what failed attempt
// times in a row before (0 after the first failure), or final, when no other try
// can help until the declaration changes. rnd, from [0, 1), spreads the tries of
// a fleet: it takes up to a fifth off the wait. NoSpace has no wait of its own:
// look for the space again after the time returned.
func Backoff(class Class, attempt int, rnd float64) (wait time.Duration, final bool) {
	switch class {
	case Source, Config:
		return 0, true
	case Refused:
		wait = longestWait
	case NoSpace:
		wait = firstWait
	default:
		wait = min(firstWait<<min(max(attempt, 0), 8), longestWait)
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
	return max(wait, min(e.RetryAfter, longestAsked)), false
}
