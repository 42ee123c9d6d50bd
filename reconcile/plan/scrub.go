package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// ScrubRate is how many bytes a second a scrub reads: little enough for others to
// use the disk meanwhile, enough for 5 TB a day.
const ScrubRate = 64 << 20

// scrub plans to read again the ready copy of this node that was verified the
// longest ago, if that is longer ago than it may be, and only that one: the next
// comes when it is done.
func (s *index) scrub(planned []Action) []Action {
	if s.desired.Config.Settings.ScrubInterval == 0 {
		return nil
	}
	taken := map[CopyRef]bool{}
	for _, a := range planned {
		taken[a.CopyRef()] = true
	}
	due := slices.DeleteFunc(s.dueForScrub(), func(c due) bool { return taken[c.key] })
	if len(due) == 0 {
		return nil
	}
	first := slices.MinFunc(due, due[0].compare)
	reason := "scrub: not verified since it is known"
	if !first.verified.IsZero() {
		reason = "scrub: last verified " + first.verified.UTC().Format(time.RFC3339)
	}
	a := NewAction(Verify, first.key, reason, first.size)
	a.Scrub = true
	return []Action{a}
}

type due struct {
	key      CopyRef
	verified time.Time
	size     int64
	running  bool
}

// compare puts first what is under way, then what was verified the longest ago.
func (due) compare(a, b due) int {
	switch {
	case a.running && !b.running:
		return -1
	case b.running && !a.running:
		return 1
	}
	return cmp.Or(a.verified.Compare(b.verified), cmp.Compare(a.key.String(), b.key.String()))
}

func (s *index) dueForScrub() []due {
	var all []due
	for _, image := range s.desired.Config.Images {
		suspended := s.desired.SuspensionOf(image, s.observed.Now) != nil
		for _, ref := range s.ownDisks {
			key := CopyRef{ref, image.ID}
			c := s.copyAt(key)
			age := s.observed.Now.Sub(c.VerifiedAt)
			fresh := age >= 0 && age < s.desired.Config.Settings.ScrubInterval
			if c.State != disk.Ready || fresh || suspended && !s.observed.Running[key] || s.observed.Failures[key].Delays(Verify, s.observed.Now) {
				continue
			}
			all = append(all, due{key, c.VerifiedAt, c.Size, s.observed.Running[key]})
		}
	}
	return all
}
