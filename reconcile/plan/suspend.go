package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Suspension of an image or of everything: no job starts, and no copy is deleted. Running jobs continue, except
// deletions, and verifications of copies on other nodes (running.go). The plan is made first and suspended afterwards.
// Copies count and are served, and their use is recorded as usual. So a suspension changes no decision about other
// images, and none of another node.

// SuspensionOf returns the suspension of an image in effect at the time now; nil: there is
// none. If two are in effect, it returns the suspension that ends later.
func (d Desired) SuspensionOf(image schema.Image, now time.Time) *schema.Suspension {
	all, own := d.Config.Settings.Suspend, image.Suspend
	switch {
	case !own.Active(now) && !all.Active(now):
		return nil
	case !own.Active(now):
		return all
	case !all.Active(now):
		return own
	case own.Until.IsZero() || !all.Until.IsZero() && own.Until.After(all.Until):
		return own
	}
	return all
}

// suspend replaces every action, except blocked ones, with its suspended form. The argument by is the suspension in effect; nil:
// there is none.
func suspend(actions []Action, by *schema.Suspension) []Action {
	if by == nil {
		return actions
	}
	for i, a := range actions {
		if a.Op != model.Blocked {
			actions[i] = a.suspendedBy(by)
		}
	}
	return actions
}

// suspendedBy returns the wait that replaces an action. If the suspension has no end, an action that is not idle becomes blocked.
func (a Action) suspendedBy(by *schema.Suspension) Action {
	s := NewAction(model.Wait, a.CopyRef(), because(CodeSuspended, "%s; %s", suspendedText(by), a.Text), 0)
	s.Next, s.Stuck, s.Cause = a.Next, a.Stuck || by.Until.IsZero(), a.Code
	if !a.Idle() {
		s.Next = a.Op
		s.Text = fmt.Sprintf("%s; then: %s (%s)", suspendedText(by), a.Op, a.Text)
		s.LocalSource = a.LocalSource // keepSources keeps this copy until the suspended action is done
	}
	switch {
	case by.Until.IsZero() && !a.Idle():
		s.Op = model.Blocked
	case by.Until.After(a.Until):
		s.Until = by.Until
	case !by.Until.IsZero():
		s.Until = a.Until
	}
	return s
}

func suspendedText(by *schema.Suspension) string {
	if by.By == "" {
		return "suspended: " + by.Reason
	}
	return fmt.Sprintf("suspended by %s: %s", by.By, by.Reason)
}

// neededBySuspended returns the name of a suspended image with a declared checksum that has no ready copy and can be
// copied from ref; "": there is none. Without the suspension, it would be copied before ref is deleted.
func (r *Round) neededBySuspended(ref ident.CopyRef) (image string) {
	if r.suspended == nil {
		r.suspended = []schema.Image{}
		for _, image := range r.Desired.Config.Images {
			if !image.Checksum.IsZero() && r.Desired.SuspensionOf(image, r.Observed.Now) != nil {
				r.suspended = append(r.suspended, image)
			}
		}
		slices.SortFunc(r.suspended, func(a, b schema.Image) int { return ident.ID.Compare(a.ID, b.ID) })
	}
	c := r.copyAt(ref)
	for _, image := range r.suspended {
		if image.ID == ref.ID || c.SHA512.IsZero() || !c.HasDigest(image.Checksum) {
			continue
		}
		if !slices.ContainsFunc(newImageState(r, image).ready, func(ref ident.CopyRef) bool { return !r.copyAt(ref).Leaving }) {
			return image.ID.Name
		}
	}
	return ""
}

// Suspension is a suspension as plan and status show it.
type Suspension struct {
	// Image is the name of the suspended image in a list. "" means everything.
	Image  string    `json:"image,omitempty"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero: until it is removed
	Over   bool      `json:"over,omitempty"` // it has ended and is still declared
}

// NewSuspension converts a declared suspension. It returns nil for nil.
func NewSuspension(s *schema.Suspension, now time.Time) *Suspension {
	if s == nil {
		return nil
	}
	return &Suspension{Reason: s.Reason, By: s.By, Until: s.Until, Over: !s.Active(now)}
}

// activeSuspensions returns the suspensions in effect: first the suspension of the
// settings, then the images by name.
func activeSuspensions(c schema.Config, now time.Time) []Suspension {
	var all []Suspension
	if by := c.Settings.Suspend; by.Active(now) {
		all = append(all, *NewSuspension(by, now))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Images)) {
		if by := c.Images[name].Suspend; by.Active(now) {
			one := *NewSuspension(by, now)
			one.Image = name
			all = append(all, one)
		}
	}
	return all
}
