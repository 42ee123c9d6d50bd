package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
)

// ScrubRate is how many bytes per second a scrub reads: 64 MiB, which leaves the disk to others
// and still reads 5 TB a day.
const ScrubRate = 64 << 20

// planScrub returns the verification of the ready copy on this node whose last verification is the
// longest ago, if it is older than scrubInterval. It returns one copy at a time.
func planScrub(ix *index, planned []Action) []Action {
	if ix.desired.Config.Settings.ScrubInterval == 0 {
		return nil
	}
	busy := map[CopyRef]bool{}
	for _, a := range planned {
		busy[a.CopyRef()] = true
	}
	due := slices.DeleteFunc(dueForScrub(ix), func(s scrubCandidate) bool { return busy[s.ref] })
	if len(due) == 0 {
		return nil
	}
	next := slices.MinFunc(due, compareScrubs)
	reason := Reason{CodeScrub, "scrub: never verified since it was adopted"}
	if !next.verified.IsZero() {
		reason = because(CodeScrub, "scrub: last verified %s", next.verified.UTC().Format(time.RFC3339))
	}
	a := NewAction(Verify, next.ref, reason, next.size)
	a.Scrub = true
	return []Action{a}
}

type scrubCandidate struct {
	ref      CopyRef
	verified time.Time
	size     int64
	running  bool
}

// compareScrubs orders running verifications first, then by the last verification.
func compareScrubs(a, b scrubCandidate) int {
	switch {
	case a.running && !b.running:
		return -1
	case b.running && !a.running:
		return 1
	}
	return cmp.Or(a.verified.Compare(b.verified), cmp.Compare(a.ref.String(), b.ref.String()))
}

func dueForScrub(ix *index) []scrubCandidate {
	var all []scrubCandidate
	now := ix.observed.Now
	for _, image := range ix.desired.Config.Images {
		suspended := ix.desired.SuspensionOf(image, now) != nil
		for _, on := range ix.ownDisks {
			if ix.observed.Disks[on].ReadOnly {
				continue // the scrub would begin again and again, because its time cannot be recorded
			}
			ref := CopyRef{on, image.ID}
			c, running := ix.copyAt(ref), ix.observed.Running[ref]
			age := now.Sub(c.VerifiedAt)
			recent := age >= 0 && age < ix.desired.Config.Settings.ScrubInterval
			if c.State != disk.Ready || recent || suspended && !running || ix.observed.Failures[ref].delays(Verify, now) {
				continue
			}
			all = append(all, scrubCandidate{ref, c.VerifiedAt, c.Size, running})
		}
	}
	return all
}
