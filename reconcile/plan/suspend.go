package plan

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// What is suspended stays as it is. The plan is made as ever, and then held: what is
// under way goes on as far as it would anyway, but for deletions, which are taken back.
// Copies count and are served, uses and what is unwanted are noted, and what only a
// person can settle is told. So nothing that is decided about other images, or by other
// nodes, rests on anything that a suspension changed.

// SuspensionOf is the one that holds an image now, nil for none. Of two the one that
// lasts longer holds.
func (d Desired) SuspensionOf(image schema.Image, now time.Time) *schema.Suspension {
	all, own := d.Config.Settings.Suspend, image.Suspend
	switch {
	case !own.Holds(now) && !all.Holds(now):
		return nil
	case !own.Holds(now):
		return all
	case !all.Holds(now):
		return own
	case own.Until.IsZero() || !all.Until.IsZero() && own.Until.After(all.Until):
		return own
	}
	return all
}

// applySuspension lets nothing begin of what is planned under a suspension.
func (s *index) applySuspension(by *schema.Suspension, actions []Action) []Action {
	if by == nil {
		return actions
	}
	for i, a := range actions {
		goesOn := !a.Idle() && !a.Op.Deletes() && s.observed.Running[a.CopyRef()]
		if !goesOn && a.Op != Blocked {
			actions[i] = a.suspendedBy(by)
		}
	}
	return actions
}

// suspendedBy is what becomes of an action under a suspension. One that has no end keeps from
// being done what only its lifting lets be done.
func (a Action) suspendedBy(by *schema.Suspension) Action {
	h := NewAction(Wait, a.CopyRef(), suspendedText(by)+"; "+a.Reason, 0)
	h.Next, h.Blocked = a.Next, a.Blocked || by.Until.IsZero()
	if !a.Idle() {
		h.Next = a.Op
		h.Reason = fmt.Sprintf("%s; held back: %s (%s)", suspendedText(by), a.Op, a.Reason)
		h.LocalSource = a.LocalSource // which has to stay until it is done
	}
	switch {
	case by.Until.IsZero() && !a.Idle():
		h.Op = Blocked
	case by.Until.After(a.Until):
		h.Until = by.Until
	case !by.Until.IsZero():
		h.Until = a.Until
	}
	return h
}

func suspendedText(by *schema.Suspension) string {
	if by.By == "" {
		return "suspended: " + by.Reason
	}
	return fmt.Sprintf("suspended by %s: %s", by.By, by.Reason)
}

// neededBySuspended names a suspended image that has no ready copy yet and can be made of this
// one, "" for none. Without the suspension it would have been made before this one goes.
func (s *index) neededBySuspended(key CopyRef) string {
	c := s.copyAt(key)
	if c.SHA512.IsZero() {
		return ""
	}
	for _, image := range s.suspendedImages() {
		if image.ID != key.ID && c.HasDigest(image.Checksum) && !s.anyReady(image) {
			return image.ID.Name
		}
	}
	return ""
}

// suspendedImages are the images with a declared checksum that are suspended.
func (s *index) suspendedImages() []schema.Image {
	if s.suspended == nil {
		s.suspended = []schema.Image{}
		for _, image := range s.desired.Config.Images {
			if !image.Checksum.IsZero() && s.desired.SuspensionOf(image, s.observed.Now) != nil {
				s.suspended = append(s.suspended, image)
			}
		}
		slices.SortFunc(s.suspended, func(a, b schema.Image) int { return CompareIDs(a.ID, b.ID) })
	}
	return s.suspended
}

func (s *index) anyReady(image schema.Image) bool {
	return slices.ContainsFunc(s.copiesNamed(image.ID.Name), func(key CopyRef) bool {
		_, ready := s.observed.Disks[key.Disk].Ready(key.ID)
		return ready && key.ID == image.ID && s.isCurrent(key.Disk) && !s.copyAt(key).Leaving && mismatchReason(image, s.copyAt(key)) == ""
	})
}

// Suspension is one as status and plan show it.
type Suspension struct {
	// Image is what is suspended, in a list; "" is everything.
	Image  string    `json:"image,omitempty"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	Until  time.Time `json:"until,omitzero"` // zero: until somebody lifts it
	Over   bool      `json:"over,omitempty"` // it has ended by itself, and is still declared
}

// NewSuspension returns nil for none.
func NewSuspension(s *schema.Suspension, now time.Time) *Suspension {
	if s == nil {
		return nil
	}
	return &Suspension{Reason: s.Reason, By: s.By, Until: s.Until, Over: !s.Holds(now)}
}

// Suspensions are those that hold now, that of everything first.
func (d Desired) Suspensions(now time.Time) []Suspension {
	var all []Suspension
	if by := d.Config.Settings.Suspend; by.Holds(now) {
		all = append(all, *NewSuspension(by, now))
	}
	for _, name := range slices.Sorted(maps.Keys(d.Config.Images)) {
		if by := d.Config.Images[name].Suspend; by.Holds(now) {
			one := *NewSuspension(by, now)
			one.Image = name
			all = append(all, one)
		}
	}
	return all
}
