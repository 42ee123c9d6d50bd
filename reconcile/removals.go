package reconcile

import (
	"maps"
	"time"
)

// removalRow is how long an image must have been gone from the
// configuration, at two looks at least, before its removal is acted on.
const removalRow = 5 * time.Second

// Removals confirms that images have left the configuration: two looks at
// least removalRow apart did not have them, and none in between had. It is
// to be told of wholly valid configurations only; after any other, assign
// the zero Removals, which has confirmed nothing. It is not safe for
// concurrent use.
type Removals struct {
	first, last time.Time            // the end of the first look, and the beginning of the last one
	declared    map[string]bool      // at the last look
	left        map[string]time.Time // the first look without it, of those that had been declared
}

// Look takes note of the names that were declared at a look from began to ended. Two
// looks are only as far apart as the end of one and the beginning of the other. A look
// at a directory that did not change counts like any other. The map is kept
// and must not be changed.
func (r *Removals) Look(began, ended time.Time, declared map[string]bool) {
	if r.last.IsZero() {
		r.first, r.left = ended, map[string]time.Time{}
	}
	for name := range r.declared {
		if !declared[name] {
			r.left[name] = ended
		}
	}
	for name, since := range r.left {
		if declared[name] || began.Sub(since) >= removalRow {
			delete(r.left, name) // back, or gone for as long as any
		}
	}
	r.last, r.declared = began, declared
}

// Gone reports whether it is confirmed that no image of that name is declared.
func (r *Removals) Gone(name string) bool {
	if r.declared[name] {
		return false
	}
	since, ok := r.left[name]
	if !ok {
		since = r.first
	}
	return !r.last.IsZero() && r.last.Sub(since) >= removalRow
}

// now returns what is confirmed at this moment, which does not change any more. That
// of nil is nil.
func (r *Removals) now() *Removals {
	if r == nil {
		return nil
	}
	then := *r
	then.left = maps.Clone(r.left)
	return &then
}
