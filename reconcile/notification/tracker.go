package notification

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// Hold is how long a condition must hold before it is sent, and must not hold before its end is.
const Hold = 5 * time.Minute

// Tracker has the episodes of conditions. The zero value has none. It is for one goroutine.
type Tracker struct {
	episodes map[Condition]*episode
}

// episode is one time during which a condition holds, with interruptions shorter than Hold. Times other than since are of a
// steady clock.
type episode struct {
	since   time.Time // by the wall clock, in UTC: when the condition was first observed
	text    string
	begun   time.Time // when it was first observed; for a restored episode, when it was restored
	gone    time.Time // since when the condition does not hold; zero: it holds, or it is unknown
	changed time.Time // when the episode became active or over: the second node waits from then on
	active  bool      // it has lasted for Hold
	over    bool      // the condition has not held for Hold
	sent    time.Time // when this node last sent it; zero: never
	sentOn  bool      // this node has sent its beginning
}

// Update continues the episodes. wall and now are the same moment by the wall clock and by a steady one.
func (t *Tracker) Update(o Observation, wall, now time.Time) {
	if t.episodes == nil {
		t.episodes = map[Condition]*episode{}
	}
	for c, text := range o.on {
		e := t.episodes[c]
		if e == nil || e.over {
			if e != nil && now.Sub(e.changed) < Hold {
				continue // its end may still be sent; a condition that holds now is observed again
			}
			e = &episode{since: wall.UTC().Truncate(time.Second), begun: now}
			t.episodes[c] = e
		}
		e.text, e.gone = text, time.Time{}
	}
	for c, e := range t.episodes {
		_, on := o.on[c]
		switch {
		case e.over:
		case !on && o.isUnknown(c):
			e.gone = time.Time{}
		case !on && !e.active:
			delete(t.episodes, c)
		case !on && e.gone.IsZero():
			e.gone = now
		case !on && now.Sub(e.gone) >= Hold:
			e.over, e.changed = true, now
		case on && !e.active && now.Sub(e.begun) >= Hold:
			e.active, e.changed = true, now
		}
	}
}

// Event is the beginning or the end of an episode, to be sent.
type Event struct {
	Condition
	Since time.Time // of the episode
	Over  bool
	Text  string
}

// Due returns what this node has to send, sorted: rank is its rank for a condition. A node of rank 0 sends at once, and one of
// rank 1 after the delay second. An episode that goes on is sent again after repeat; 0: never. An episode that is over is forgotten
// when it was sent, or when no node sends it any more.
func (t *Tracker) Due(now time.Time, rank func(Condition) int, second, repeat time.Duration) []Event {
	var due []Event
	for _, c := range slices.SortedFunc(maps.Keys(t.episodes), compareConditions) {
		e := t.episodes[c]
		waited := now.Sub(e.changed)
		if e.over && waited > 2*second+time.Hour {
			delete(t.episodes, c) // no server accepted it, or another node has sent it
			continue
		}
		if place := rank(c); !e.active || place > 1 || place == 1 && waited < second {
			continue
		}
		again := repeat > 0 && e.gone.IsZero() && now.Sub(e.sent) >= repeat
		if e.over || !e.sentOn || again {
			due = append(due, Event{c, e.since, e.over, e.text})
		}
	}
	return due
}

// Sent records that the server has accepted events.
func (t *Tracker) Sent(events []Event, now time.Time) {
	for _, event := range events {
		switch e := t.episodes[event.Condition]; {
		case e == nil || !e.since.Equal(event.Since):
		case event.Over:
			delete(t.episodes, event.Condition)
		default:
			e.sent, e.sentOn = now, true
		}
	}
}

// Unsend makes all episodes new to a server that got none of them.
func (t *Tracker) Unsend() {
	for _, e := range t.episodes {
		e.sent, e.sentOn = time.Time{}, false
	}
}

// Saved is an active episode in a record.
type Saved struct {
	Kind  Kind      `json:"kind"`
	Image string    `json:"image,omitempty"`
	Since time.Time `json:"since"`
	Sent  bool      `json:"sent,omitempty"`
	Over  bool      `json:"over,omitempty"`
}

// maxSaved limits a record, so that it stays below the size of a small file of a disk: the configuration may declare more images.
const maxSaved = 5000

// Record returns the active episodes, sorted. It has at most maxSaved.
func (t *Tracker) Record() []Saved {
	saved := []Saved{}
	for _, c := range slices.SortedFunc(maps.Keys(t.episodes), compareConditions) {
		if e := t.episodes[c]; e.active && len(saved) < maxSaved {
			saved = append(saved, Saved{c.Kind, c.Image, e.since, e.sentOn, e.over})
		}
	}
	return saved
}

// Restore adds the episodes of a record to those that are not known yet. An episode whose condition ceased to hold while nobody
// looked ends like any other one. What no record can have is ignored: a disk may come from anybody.
func (t *Tracker) Restore(saved []Saved, now time.Time) {
	if t.episodes == nil {
		t.episodes = map[Condition]*episode{}
	}
	for _, s := range saved[:min(len(saved), maxSaved)] {
		c := Condition{s.Kind, s.Image}
		_, known := kinds[s.Kind]
		since := s.Since.UTC() // its year may be one that JSON does not have
		if valid := s.Image == "" || disk.CheckName(s.Image) == nil; !known || !valid || since.IsZero() || since.Year() < 0 || since.Year() > 9999 {
			continue
		}
		if e := t.episodes[c]; e == nil || !e.active {
			t.episodes[c] = &episode{since: since, text: "not observed since the start of the daemon", begun: now, changed: now, active: true, over: s.Over, sentOn: s.Sent}
		}
	}
}
