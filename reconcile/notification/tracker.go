package notification

import (
	"maps"
	"slices"
	"time"
)

// Hold is how long a condition must hold before it is sent, and must not hold before its end is.
const Hold = 5 * time.Minute

// Tracker has the episodes of conditions. It is for one goroutine.
type Tracker struct {
	// Repeat is after what time an episode that goes on is sent again; 0: never, because the server gets each event once.
	Repeat time.Duration

	episodes map[Condition]*episode
}

// episode is one time during which a condition holds, with interruptions shorter than Hold. Times other than since and after are of a
// steady clock.
type episode struct {
	since   time.Time // by the wall clock, in UTC: when the condition was first observed. It identifies the episode
	after   time.Time // since of the previous episode, which other nodes may still publish; zero: none is known
	text    string
	begun   time.Time // when it was first observed; for a restored episode, when it was restored
	gone    time.Time // since when the condition does not hold; zero: it holds, or it is unknown
	changed time.Time // when the episode became active or over: the second node waits from then on
	active  bool      // it has lasted for Hold
	over    bool      // the condition has not held for Hold
	sent    time.Time // when this node last sent it; zero: never
	begin   bool      // the server has its beginning
	end     bool      // the server has its end
	own     bool      // this node has sent its beginning
	next    *episode  // the condition holds again; set only if over
}

func newEpisode(wall, now time.Time) *episode {
	return &episode{since: wall.UTC().Truncate(time.Second), begun: now}
}

// Update continues the episodes. wall and now are the same moment by the wall clock and by a steady one.
func (t *Tracker) Update(o Observation, wall, now time.Time) {
	if t.episodes == nil {
		t.episodes = map[Condition]*episode{}
	}
	for c, text := range o.on {
		e := t.episodes[c]
		if e == nil {
			e = newEpisode(wall, now)
			t.episodes[c] = e
		}
		if e.over {
			if e.next == nil {
				e.next = newEpisode(wall, now)
			}
			e = e.next
		}
		e.text, e.gone = text, time.Time{}
	}
	for c, e := range t.episodes {
		_, on := o.on[c]
		switch {
		case e.over && on:
			t.follow(c, now)
		case e.over && !o.isUnknown(c):
			e.next = nil
		case e.over:
		case !on && !e.active: // also if it is unknown: it has to be observed for Hold
			delete(t.episodes, c)
		case !on && o.isUnknown(c):
			e.gone = time.Time{}
		case !on && e.gone.IsZero():
			e.gone = now
		case !on && now.Sub(e.gone) >= Hold:
			e.over, e.changed = true, now
		case on && !e.active && now.Sub(e.begun) >= Hold:
			e.active, e.changed = true, now
		}
	}
}

// follow replaces an episode that is over by the next one once that is active. If the server gets each event once, it must have the end
// before. Until then, other nodes learn from the episode what was sent.
func (t *Tracker) follow(c Condition, now time.Time) {
	e, next := t.episodes[c], t.episodes[c].next
	if now.Sub(next.begun) < Hold || !e.end && t.Repeat == 0 {
		return
	}
	next.active, next.changed = true, now
	if e.end {
		next.after = e.since
	}
	if !next.since.After(e.since) { // the clock was set back, or that of another node is ahead
		next.since = e.since.Add(time.Second)
	}
	t.episodes[c] = next
}

// Event is the beginning or the end of an episode, to be sent.
type Event struct {
	Condition
	Since time.Time // of the episode
	Over  bool
	Text  string
}

// Turn is whether a node sends the events of a condition, and for how long it leaves them to other nodes before.
type Turn struct {
	Sends bool
	After time.Duration
}

// Due returns what this node has to send, sorted by condition. The function turn gets whether this node has sent the beginning. If each
// event is sent once, the beginning of an episode comes before its end, even if the server accepted nothing until it was over. An episode
// that is over is forgotten after keep.
func (t *Tracker) Due(now time.Time, turn func(c Condition, own bool) Turn, keep time.Duration) []Event {
	var due []Event
	for _, c := range slices.SortedFunc(maps.Keys(t.episodes), CompareConditions) {
		e := t.episodes[c]
		waited := now.Sub(e.changed)
		if e.over && waited > keep {
			delete(t.episodes, c)
			continue
		}
		again := t.Repeat > 0 && e.begin && !e.over && e.gone.IsZero() && now.Sub(e.sent) >= t.Repeat
		if !e.news() && !again {
			continue
		}
		if turn := turn(c, e.own); !turn.Sends || waited < turn.After {
			continue
		}
		if e.over && !e.begin && t.Repeat == 0 {
			due = append(due, Event{c, e.since, false, e.text})
		}
		due = append(due, Event{c, e.since, e.over, e.text})
	}
	return due
}

// news reports whether an episode has an event that the server does not have, as far as this node knows.
func (e *episode) news() bool { return e.active && !e.end && (e.over || !e.begin) }

// Sent records that the server has accepted events of this node.
func (t *Tracker) Sent(events []Event, now time.Time) {
	for _, event := range events {
		if e := t.episodes[event.Condition]; e != nil && e.since.Equal(event.Since) {
			e.own = e.own || !event.Over
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
		e.sent, e.begin, e.own = time.Time{}, false, false
	}
}
