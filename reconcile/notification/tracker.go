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
	begin   bool      // the server has its beginning
	end     bool      // the server has its end
	next    *episode  // the condition holds again; set only if over
}

// Update continues the episodes. wall and now are the same moment by the wall clock and by a steady one.
func (t *Tracker) Update(o Observation, wall, now time.Time) {
	if t.episodes == nil {
		t.episodes = map[Condition]*episode{}
	}
	for c, text := range o.on {
		e := t.episodes[c]
		switch {
		case e == nil:
			e = &episode{since: wall.UTC().Truncate(time.Second), begun: now}
			t.episodes[c] = e
		case e.over && e.next == nil:
			e.next = &episode{since: wall.UTC().Truncate(time.Second), begun: now}
		}
		if e.over {
			// For some time, the end may still have to be sent, and other nodes ask whether it was.
			if e = e.next; now.Sub(t.episodes[c].changed) >= Hold {
				t.episodes[c] = e
			}
		}
		e.text, e.gone = text, time.Time{}
	}
	for c, e := range t.episodes {
		_, on := o.on[c]
		switch {
		case e.over && !on && !o.isUnknown(c):
			e.next = nil
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
// when no node sends it any more.
func (t *Tracker) Due(now time.Time, rank func(Condition) int, second, repeat time.Duration) []Event {
	var due []Event
	for _, c := range slices.SortedFunc(maps.Keys(t.episodes), compareConditions) {
		e := t.episodes[c]
		waited := now.Sub(e.changed)
		if e.over && waited > 2*second+time.Hour {
			delete(t.episodes, c)
			continue
		}
		again := repeat > 0 && e.begin && !e.over && e.gone.IsZero() && now.Sub(e.sent) >= repeat
		if !e.news() && !again {
			continue
		}
		if place := rank(c); place == 0 || place == 1 && waited >= second {
			due = append(due, Event{c, e.since, e.over, e.text})
		}
	}
	return due
}

// News returns the conditions with an event that the server does not have, as far as this node knows, sorted.
func (t *Tracker) News() []Condition {
	var news []Condition
	for c, e := range t.episodes {
		if e.news() {
			news = append(news, c)
		}
	}
	slices.SortFunc(news, compareConditions)
	return news
}

// news reports whether an episode has an event that the server does not have.
func (e *episode) news() bool { return e.active && !e.end && (e.over || !e.begin) }

// Sent records that the server has accepted events of this node.
func (t *Tracker) Sent(events []Event, now time.Time) {
	for _, event := range events {
		if e := t.episodes[event.Condition]; e != nil && e.since.Equal(event.Since) {
			e.sent, e.begin, e.end = now, true, event.Over
		}
	}
}

// Forget makes the episodes that go on new to a server that got none of them. The other ones are dropped.
func (t *Tracker) Forget() {
	for c, e := range t.episodes {
		if e.over {
			delete(t.episodes, c)
		}
		e.sent, e.begin = time.Time{}, false
	}
}

// Saved is an active episode, as it is recorded and as other nodes learn of it.
type Saved struct {
	Kind  Kind      `json:"kind"`
	Image string    `json:"image,omitempty"`
	Since time.Time `json:"since"`
	Begin bool      `json:"begin,omitempty"` // the server has its beginning
	Over  bool      `json:"over,omitempty"`
	End   bool      `json:"end,omitempty"` // the server has its end
}

const (
	// maxSaved limits a record, so that it stays below the size of a small file of a disk: the configuration may declare more images.
	maxSaved = 5000
	// maxTold limits what a node tells another one: about 3 MiB.
	maxTold = 20_000
)

// Record returns the active episodes, sorted. It has at most maxSaved.
func (t *Tracker) Record() []Saved {
	return t.saved(maxSaved, func(e *episode) bool { return e.active })
}

// Told returns the episodes of which the server has the beginning or the end, sorted. It has at most maxTold.
func (t *Tracker) Told() []Saved {
	return t.saved(maxTold, func(e *episode) bool { return e.begin || e.end })
}

func (t *Tracker) saved(limit int, include func(*episode) bool) []Saved {
	saved := []Saved{}
	for _, c := range slices.SortedFunc(maps.Keys(t.episodes), compareConditions) {
		if e := t.episodes[c]; include(e) && len(saved) < limit {
			saved = append(saved, Saved{c.Kind, c.Image, e.since, e.begin, e.over, e.end})
		}
	}
	return saved
}

// check returns the condition and the beginning of an episode that another program wrote; false if no episode can have them.
func (s Saved) check() (c Condition, since time.Time, ok bool) {
	_, known := kinds[s.Kind]
	since = s.Since.UTC() // its year may be one that JSON does not have
	named := s.Image == "" || disk.CheckName(s.Image) == nil
	return Condition{s.Kind, s.Image}, since, known && named && !since.IsZero() && since.Year() >= 0 && since.Year() <= 9999
}

// Restore adds the episodes of a record to those that are not known yet. An episode whose condition ceased to hold while nobody
// looked ends like any other one. What no record can have is ignored: a disk may come from anybody.
func (t *Tracker) Restore(saved []Saved, now time.Time) {
	if t.episodes == nil {
		t.episodes = map[Condition]*episode{}
	}
	for _, s := range saved[:min(len(saved), maxSaved)] {
		c, since, ok := s.check()
		if !ok {
			continue
		}
		if e := t.episodes[c]; e == nil || !e.active {
			t.episodes[c] = &episode{
				since: since, text: "not observed since the start of the daemon", begun: now, changed: now,
				active: true, over: s.Over, begin: s.Begin, end: s.Over && s.End,
			}
		}
	}
}

// Learn adopts what another node told (Told) about episodes that this node has, too. This node then also adopts when such an
// episode began, so that it has one identity on all nodes. What no node can tell is ignored.
func (t *Tracker) Learn(told []Saved) {
	for _, s := range told[:min(len(told), maxTold)] {
		c, since, ok := s.check()
		e := t.episodes[c]
		switch {
		case !ok || e == nil || !e.active || e.end:
		case s.Over:
			e.end = s.End && e.over && e.since.Equal(since)
		case s.Begin && !e.begin:
			e.since, e.begin = since, true
		}
	}
}
