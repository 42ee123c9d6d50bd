package reconcile

import (
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/schema"
)

// What is suspended stays as it is. The plan is made as ever, and then held: what is
// under way goes on as far as it would anyway, but for deletions, which are taken back.
// Copies count and are served, uses and what is unwanted are noted, and what only a
// person can settle is told. So nothing that is decided about other images, or by other
// nodes, rests on anything that a suspension changed.

// suspension is the one that holds an image now, nil for none. Of two the one that
// lasts longer holds.
func (d Desired) suspension(image schema.Image, now time.Time) *schema.Suspension {
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

// hold lets nothing begin of what is planned under a suspension.
func (s *scene) hold(by *schema.Suspension, actions []Action) []Action {
	if by == nil {
		return actions
	}
	for i, a := range actions {
		goesOn := !a.Idle() && !a.Kind.drops() && s.o.Running[a.Key()]
		if !goesOn && a.Kind != Blocked {
			actions[i] = a.held(by)
		}
	}
	return actions
}

// held is what becomes of an action under a suspension. One that has no end keeps from
// being done what only its lifting lets be done.
func (a Action) held(by *schema.Suspension) Action {
	h := newAction(Wait, a.Key(), suspended(by)+"; "+a.Reason, 0)
	h.Then, h.Held = a.Then, a.Held || by.Until.IsZero()
	if !a.Idle() {
		h.Then = a.Kind
		h.Reason = fmt.Sprintf("%s; held back: %s (%s)", suspended(by), a.Kind, a.Reason)
		h.from = a.from // which has to stay until it is done
	}
	switch {
	case by.Until.IsZero() && !a.Idle():
		h.Kind = Blocked
	case by.Until.After(a.Until):
		h.Until = by.Until
	case !by.Until.IsZero():
		h.Until = a.Until
	}
	return h
}

func suspended(by *schema.Suspension) string {
	if by.By == "" {
		return "suspended: " + by.Reason
	}
	return fmt.Sprintf("suspended by %s: %s", by.By, by.Reason)
}

// awaited names a suspended image that has no ready copy yet and can be made of this
// one, "" for none. Without the suspension it would have been made before this one goes.
func (s *scene) awaited(key Key) string {
	c := s.copy(key)
	if c.SHA512.IsZero() {
		return ""
	}
	for _, image := range s.heldImages() {
		if image.ID != key.ID && c.HasDigest(image.Checksum) && !s.anyReady(image) {
			return image.ID.Name
		}
	}
	return ""
}

// heldImages are the images with a declared checksum that are suspended.
func (s *scene) heldImages() []schema.Image {
	if s.held == nil {
		s.held = []schema.Image{}
		for _, image := range s.Config.Images {
			if !image.Checksum.IsZero() && s.suspension(image, s.o.Now) != nil {
				s.held = append(s.held, image)
			}
		}
		slices.SortFunc(s.held, func(a, b schema.Image) int { return compareIDs(a.ID, b.ID) })
	}
	return s.held
}

func (s *scene) anyReady(image schema.Image) bool {
	return slices.ContainsFunc(s.all(image.ID.Name), func(key Key) bool {
		_, ready := s.o.Disks[key.Disk].ready(key.ID)
		return ready && key.ID == image.ID && s.answers(key.Disk) && !s.copy(key).Leaving && notDeclared(image, s.copy(key)) == ""
	})
}
