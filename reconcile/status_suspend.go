package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// Suspension is one as status and plan show it.
type Suspension struct {
	// Image is what is suspended, in a list; "" is everything.
	Image  string    `json:"image,omitempty"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero: until somebody lifts it
	Over   bool      `json:"over,omitempty"` // it has ended by itself, and is still declared
}

// tellSuspension returns nil for none.
func tellSuspension(s *schema.Suspension, now time.Time) *Suspension {
	if s == nil {
		return nil
	}
	return &Suspension{Reason: s.Reason, By: s.By, Until: s.Until, Over: !s.Holds(now)}
}

// suspensions are those that hold now, that of everything first.
func (d Desired) suspensions(now time.Time) []Suspension {
	var all []Suspension
	if by := d.Config.Settings.Suspend; by.Holds(now) {
		all = append(all, *tellSuspension(by, now))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Config.Images)) {
		if by := d.Config.Images[name].Suspend; by.Holds(now) {
			one := *tellSuspension(by, now)
			one.Image = name
			all = append(all, one)
		}
	}
	return all
}
