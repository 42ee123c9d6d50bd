package notification

import (
	"bytes"
	"encoding/json"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Saved is an active episode, as it is recorded and as other nodes learn of it.
type Saved struct {
	Kind  Kind      `json:"kind"`
	Image string    `json:"image,omitempty"`
	Since time.Time `json:"since"`
	After time.Time `json:"after,omitzero"`  // since of the previous episode, if the server has its end
	Begin bool      `json:"begin,omitempty"` // the server has its beginning
	Over  bool      `json:"over,omitempty"`
	End   bool      `json:"end,omitempty"` // the server has its end
	Own   bool      `json:"own,omitempty"` // this node sent its beginning
}

const (
	// maxSaved limits a record, so that it stays below the size of a small file of a disk: the configuration may declare more images.
	maxSaved = 5000
	// maxPublished limits what a node publishes for the others: about 3 MiB.
	maxPublished = 20_000
	// maxAhead is by how much the clocks of two nodes may differ.
	maxAhead = 24 * time.Hour
)

// SavedList is a list of episodes that may come from anybody. It is decoded up to a limit, because a small document may have many.
type SavedList []Saved

// UnmarshalJSON implements json.Unmarshaler.
func (l *SavedList) UnmarshalJSON(data []byte) error {
	*l = nil
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('[') {
		return err // null, or no list
	}
	for d.More() && len(*l) < maxPublished {
		var s Saved
		if err := d.Decode(&s); err != nil {
			return err
		}
		*l = append(*l, s)
	}
	return nil
}

// Record returns the active episodes: those that go on first. It has at most maxSaved.
func (t *Tracker) Record() SavedList {
	return t.saved(maxSaved, func(e *episode) bool { return e.active })
}

// Published returns what other nodes may need: the episodes whose beginning the server has, or whose previous episode has ended there.
// Those that go on come first. It has at most maxPublished.
func (t *Tracker) Published() SavedList {
	return t.saved(maxPublished, func(e *episode) bool { return e.begin || !e.after.IsZero() })
}

func (t *Tracker) saved(limit int, include func(*episode) bool) SavedList {
	saved := SavedList{}
	for c, e := range t.episodes {
		if include(e) {
			saved = append(saved, Saved{c.Kind, c.Image, e.since, e.after, e.begin, e.over, e.end, e.own})
		}
	}
	slices.SortFunc(saved, func(a, b Saved) int {
		switch {
		case a.End == b.End:
			return CompareConditions(a.condition(), b.condition())
		case b.End:
			return -1
		}
		return 1
	})
	return saved[:min(len(saved), limit)]
}

func (s Saved) condition() Condition { return Condition{s.Kind, s.Image} }

// check reports whether an episode that another program wrote is possible, and returns it with its times in UTC: JSON does not have
// each year.
func (s Saved) check(latest time.Time) (Saved, bool) {
	_, known := kinds[s.Kind]
	s.Since, s.After = s.Since.UTC(), s.After.UTC()
	named := s.Image == "" || ident.CheckName(s.Image) == nil
	return s, known && named && s.After.Year() > 0 && s.After.Before(s.Since) && !s.Since.After(latest)
}

// Restore adds the episodes of a record to those that are not known yet. Records of several disks may differ, because a disk was
// read-only or not there: the latest episode counts, and what any of them knows about it. An episode whose condition ceased to hold
// while nobody looked ends like any other one. What no record can have is ignored: a disk may come from anybody.
func (t *Tracker) Restore(saved SavedList, wall, now time.Time) {
	if t.episodes == nil {
		t.episodes = map[Condition]*episode{}
	}
	for _, s := range saved[:min(len(saved), maxSaved)] {
		s, ok := s.check(wall.Add(maxAhead))
		if !ok {
			continue
		}
		e := t.episodes[s.condition()]
		switch {
		case e == nil || !e.active || s.Since.After(e.since):
			t.episodes[s.condition()] = s.episode(s.Own, now)
		case s.Since.Equal(e.since):
			e.begin, e.over, e.end = e.begin || s.Begin, e.over || s.Over, e.end || s.Over && s.End
		}
	}
}

func (s Saved) episode(own bool, now time.Time) *episode {
	return &episode{
		since: s.Since, after: s.After, text: "not observed since the start of the daemon", begun: now, changed: now,
		active: true, over: s.Over, begin: s.Begin, end: s.Over && s.End, own: own,
	}
}

// Join adopts what another node published (Published). It is for a node that has just started, or was alone: it may have missed
// beginnings and ends. Only what is about declared images counts, so that no node can make up many.
func (t *Tracker) Join(published SavedList, declared func(image string) bool, wall, now time.Time) {
	for _, s := range published {
		s, ok := s.check(wall.Add(maxAhead))
		if !ok || s.Image != "" && !declared(s.Image) {
			continue
		}
		switch e := t.episodes[s.condition()]; {
		case e == nil || !e.active:
			t.episodes[s.condition()] = s.episode(false, now)
		case !s.Since.After(e.after) || e.end: // it is about an episode before
		case s.Over && s.End && !e.over && !s.Since.Before(e.since):
			e.since, e.begin, e.over, e.end = s.Since, true, true, true
		default:
			t.learn(e, s, now)
		}
	}
}

// Questions returns the conditions with an event that the server does not have, as far as this node knows, sorted.
func (t *Tracker) Questions() []Condition {
	var asked []Condition
	for c, e := range t.episodes {
		if e.news() {
			asked = append(asked, c)
		}
	}
	slices.SortFunc(asked, CompareConditions)
	return asked
}

// Learn adopts what another node published (Published) about conditions about which it was asked. This node then also adopts when such an
// episode began, so that it has one identity on all nodes. What no node can publish is ignored.
func (t *Tracker) Learn(asked []Condition, published SavedList, wall, now time.Time) {
	about := map[Condition]Saved{}
	for _, s := range published {
		if s, ok := s.check(wall.Add(maxAhead)); ok {
			about[s.condition()] = s
		}
	}
	for _, c := range asked {
		e, s := t.episodes[c], about[c]
		if e != nil && e.active && !e.end && s.Since.After(e.after) { // otherwise it is about an episode before
			t.learn(e, s, now)
		}
	}
}

// learn adopts what another node published about an episode. Of two episodes, the later one counts: the other node has observed the end of
// the earlier one.
func (t *Tracker) learn(e *episode, s Saved, now time.Time) {
	switch {
	case !s.After.Before(e.since):
		e.begin, e.over, e.end = true, true, true
	case !s.Begin: // nothing was sent
	case s.Over && !e.over:
		if !s.End && !e.begin && s.Since.Before(e.since) { // the end of an earlier episode is not sent yet, and comes first
			before := s.episode(false, now)
			before.next = e
			t.episodes[s.condition()] = before
		}
	case s.Over == e.over:
		if !e.begin || s.Since.After(e.since) {
			e.since, e.begin = s.Since, true
		}
		e.end = s.Over && s.End && s.Since.Equal(e.since)
	case !e.begin:
		e.since, e.begin = s.Since, true
	}
}
