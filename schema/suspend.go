package schema

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

func (d *decoder) suspension(raw *rawSuspend) *Suspension {
	if raw == nil {
		return nil
	}
	s := &Suspension{Reason: strings.TrimSpace(raw.Reason), By: strings.TrimSpace(raw.By)}
	if raw.Until != "" {
		var err error
		s.Until, err = moment(raw.Until)
		d.check(err, "suspend", "until")
	}
	return s
}

// moment reads a time, or the beginning of a day.
func moment(text string) (time.Time, error) {
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil && !t.IsZero() { // which is no end
			return t.UTC(), nil
		}
	}
	return time.Time{}, fmt.Errorf("is no time that there is: %q", text)
}

// ending is a suspension that ends by itself, and what is to be said when it has.
type ending struct {
	at   time.Time
	over Problem
}

// WarningsAt returns the warnings that there are at a time: with those of suspensions that
// have ended by themselves and are still declared.
func (r Result) WarningsAt(now time.Time) []Problem {
	all := slices.Clone(r.Warnings)
	for _, e := range r.ends {
		if !now.Before(e.at) {
			all = append(all, e.over)
		}
	}
	slices.SortStableFunc(all, Problem.compare)
	return all
}

func (a *assembly) ends() []ending {
	var ends []ending
	for _, t := range slices.Concat(a.of(settingsSection), a.of(imagesSection)) {
		if s := t.suspension(); s != nil && !s.Until.IsZero() && !a.stale(t) {
			msg := fmt.Sprintf("is over since %s: nothing is suspended by it", s.Until.Format(time.RFC3339))
			ends = append(ends, ending{s.Until, t.problem(fault{path: fieldPath{"suspend", "until"}, msg: msg, hint: "remove it, or set another time"})})
		}
	}
	return ends
}

func (t *thing) suspension() *Suspension {
	switch {
	case t.verdict.image != nil:
		return t.verdict.image.Suspend
	case t.verdict.settings != nil:
		return t.verdict.settings.Suspend
	}
	return nil
}
