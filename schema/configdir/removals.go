package configdir

import (
	"maps"
	"time"
)

// RemovalDelay is how long an image must have been gone from the
// configuration, at two looks at least, before its removal is acted on.
const RemovalDelay = 5 * time.Second

// RemovalConfirmer confirms that images have left the configuration: two looks at
// least removalRow apart did not have them, and none in between had. It is
// to be told of wholly valid configurations only; after any other, assign
// the zero Removals, which has confirmed nothing. It is not safe for
// concurrent use.
type RemovalConfirmer struct {
	firstEnded, lastBegan time.Time            // the end of the first look, and the beginning of the last one
	declared              map[string]bool      // at the last look
	missingSince          map[string]time.Time // the first look without it, of those that had been declared
}

// Observe takes note of the names that were declared at a look from began to ended. Two
// looks are only as far apart as the end of one and the beginning of the other. A look
// at a directory that did not change counts like any other. The map is kept
// and must not be changed.
func (r *RemovalConfirmer) Observe(began, ended time.Time, declared map[string]bool) {
	if r.lastBegan.IsZero() {
		r.firstEnded, r.missingSince = ended, map[string]time.Time{}
	}
	for name := range r.declared {
		if !declared[name] {
			r.missingSince[name] = ended
		}
	}
	for name, since := range r.missingSince {
		if declared[name] || began.Sub(since) >= RemovalDelay {
			delete(r.missingSince, name) // back, or gone for as long as any
		}
	}
	r.lastBegan, r.declared = began, declared
}

// Confirmed reports whether it is confirmed that no image of that name is declared.
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

// Clone returns what is confirmed at this moment, which does not change any more. That
// of nil is nil.
func (r *RemovalConfirmer) Clone() *RemovalConfirmer {
	if r == nil {
		return nil
	}
	then := *r
	then.missingSince = maps.Clone(r.missingSince)
	return &then
}
