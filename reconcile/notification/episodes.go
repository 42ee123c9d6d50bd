package notification

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Hold is for how long a condition must have held before its beginning is sent, and must have been gone before its end is sent.
const Hold = 5 * time.Minute

const (
	// keepEnded is for how long an episode that is over waits for a server that does not accept it.
	keepEnded = 7 * 24 * time.Hour
	// maxEnded is how many ended episodes wait for each condition. Beyond it, the oldest is dropped.
	maxEnded = 20
)

// episodes are the episodes of all conditions. An episode is a period in which a condition holds, with interruptions shorter than
// Hold. Only one goroutine may use episodes.
type episodes struct {
	// repeat is the interval at which an episode that goes on is sent again; 0: it is sent once, because the server keeps its events.
	repeat  time.Duration
	current map[Condition]*episode
	ended   map[Condition][]ended // by time
	young   bool                  // an episode in current is not active
}

// episode is an episode that goes on.
type episode struct {
	observed time.Time // when this node first observed it
	since    time.Time // its beginning in messages, in UTC and whole seconds: observed, or the earlier beginning of another node
	text     string
	gone     time.Time // since when the condition does not hold; zero: it holds, or it is unknown
	active   bool      // it has lasted for Hold
	sent     time.Time // when the server last accepted it from this node; zero: never
}

// ended is an episode that is over, and whose end the server has not accepted yet.
type ended struct {
	event
	begin bool // the server has its beginning
}

// event is the beginning or the end of an episode.
type event struct {
	Condition
	Since time.Time // of the episode
	Ended time.Time // since when the condition does not hold; zero: it holds
	Text  string
}

func (e event) over() bool { return !e.Ended.IsZero() }

// update continues the episodes. sends(c) reports whether this node sends the events of the condition c.
func (t *episodes) update(o observation, now time.Time, sends func(Condition) bool) {
	if t.current == nil {
		t.current, t.ended = map[Condition]*episode{}, map[Condition][]ended{}
	}
	t.young = false
	for c, text := range o.on {
		e := t.current[c]
		if e == nil {
			e = &episode{observed: now, since: now.UTC().Truncate(time.Second)}
			t.current[c] = e
		}
		e.text, e.gone, e.active = text, time.Time{}, now.Sub(e.observed) >= Hold
		t.young = t.young || !e.active
	}
	for c, e := range t.current {
		_, on := o.on[c]
		switch {
		case on:
		case !e.active: // also if it is unknown: it has to be observed for Hold
			delete(t.current, c)
		case o.unknown:
			e.gone = time.Time{}
		case e.gone.IsZero():
			e.gone = now
		case now.Sub(e.gone) >= Hold:
			t.end(c, e, sends(c))
		}
	}
	for c, list := range t.ended {
		t.keep(c, slices.DeleteFunc(list, func(e ended) bool { return now.Sub(e.Ended) > keepEnded }))
	}
}

// end ends an episode. This node sends the end if it sent the beginning, or if it sends the events of the condition now.
func (t *episodes) end(c Condition, e *episode, sends bool) {
	delete(t.current, c)
	if sends || !e.sent.IsZero() {
		t.keep(c, append(t.ended[c], ended{event{c, e.since, e.gone, e.text}, !e.sent.IsZero()}))
	}
}

// keep sets the ended episodes of a condition. It drops the oldest ones beyond maxEnded.
func (t *episodes) keep(c Condition, list []ended) {
	if t.ended[c] = list[max(0, len(list)-maxEnded):]; len(list) == 0 {
		delete(t.ended, c)
	}
}

// adopt sets, in each episode that is not active, the earliest beginning that another node published: then its events have the same id
// from all nodes. A beginning more than Hold earlier belongs to an episode before: with it, the receiver would drop this episode.
func (t *episodes) adopt(published []model.Condition) {
	for _, p := range published {
		e := t.current[Condition{Kind(p.Kind), p.Image, ""}]
		if e != nil && !e.active && p.Since.Before(e.since) && e.observed.Sub(p.Since) < Hold {
			e.since = p.Since.UTC().Truncate(time.Second)
		}
	}
}

// published returns the episodes about the whole cluster, sorted: other nodes observe them, too.
func (t *episodes) published() []model.Condition {
	var published []model.Condition
	for _, c := range slices.SortedFunc(maps.Keys(t.current), compareConditions) {
		if c.Node == "" {
			published = append(published, model.Condition{Kind: string(c.Kind), Image: c.Image, Since: t.current[c].since})
		}
	}
	return published
}

// due returns the events that this node has to send, sorted by condition and time. The beginning of an episode comes before its
// end, even if the server accepted nothing until the end.
func (t *episodes) due(now time.Time, sends func(Condition) bool) []event {
	var due []event
	conditions := slices.Concat(slices.Collect(maps.Keys(t.ended)), slices.Collect(maps.Keys(t.current)))
	slices.SortFunc(conditions, compareConditions)
	for _, c := range slices.Compact(conditions) {
		e := t.current[c]
		if t.repeat > 0 && e != nil && e.active {
			delete(t.ended, c) // a server that knows only the present must not get an end after the beginning of the next episode
		}
		for _, over := range t.ended[c] {
			if !over.begin && t.repeat == 0 {
				due = append(due, event{c, over.Since, time.Time{}, over.Text})
			}
			due = append(due, over.event)
		}
		if e == nil || !e.active || !sends(c) {
			continue
		}
		if again := t.repeat > 0 && e.gone.IsZero() && now.Sub(e.sent) >= t.repeat; e.sent.IsZero() || again {
			due = append(due, event{c, e.since, time.Time{}, e.text})
		}
	}
	return due
}

// accepted records that the server has accepted events of this node.
func (t *episodes) accepted(events []event, now time.Time) {
	for _, e := range events {
		list := t.ended[e.Condition]
		i := slices.IndexFunc(list, func(over ended) bool { return over.Since.Equal(e.Since) })
		switch {
		case i >= 0 && e.over():
			t.keep(e.Condition, slices.Delete(list, i, i+1))
		case i >= 0:
			list[i].begin = true
		case !e.over():
			t.current[e.Condition].sent = now
		}
	}
}

// forget prepares for a new server: the episodes that go on were not sent to it. Ended episodes are dropped.
func (t *episodes) forget() {
	clear(t.ended)
	for _, e := range t.current {
		e.sent = time.Time{}
	}
}
