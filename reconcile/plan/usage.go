package plan

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Usage is what is recorded beside a copy because it cannot be derived later: whether it is in
// use, when it was last used, since when it is surplus, and when another generation replaced it.
type Usage struct {
	Copy         ident.CopyRef
	InUse        bool
	LastUsed     time.Time
	SurplusSince time.Time
	ReplacedAt   time.Time
	By           string // the node whose clock gave the times
	// Declaration identifies the document that declares the image, or declared it last.
	Declaration model.Declaration
}

// UsageUpdates returns the copies of this node whose recorded usage must change, sorted. It is
// a pure function like Plan. Use is recorded in observe-only mode, too.
func (ix *Round) UsageUpdates() []Usage {
	stays := map[ident.CopyRef]bool{} // not surplus
	for _, image := range ix.Desired.Config.Images {
		if len(ix.ownCopies(image.ID.Name)) == 0 {
			continue // no copy here
		}
		p := newImagePlanner(ix, image)
		for _, ref := range p.placement.targets {
			stays[ident.CopyRef{Disk: ref, ID: image.ID}] = true
		}
		maps.Copy(stays, keptGenerations(p.state))
	}
	var updates []Usage
	for name := range ix.byName {
		for _, ref := range ix.ownCopies(name) {
			c := ix.copyAt(ref)
			if u := newUsage(ix, ref, stays[ref]); c.Owned && c.SameAs == (ident.DiskRef{}) && u != recordedUsage(ref, c) {
				updates = append(updates, u)
			}
		}
	}
	slices.SortFunc(updates, func(a, b Usage) int {
		return cmp.Or(ident.ID.Compare(a.Copy.ID, b.Copy.ID), ident.DiskRef.Compare(a.Copy.Disk, b.Copy.Disk))
	})
	return updates
}

func recordedUsage(ref ident.CopyRef, c model.Copy) Usage {
	return Usage{Copy: ref, InUse: c.InUseRecorded, LastUsed: c.LastUsed, SurplusSince: c.SurplusSince, ReplacedAt: c.ReplacedAt, By: c.ClockNode, Declaration: c.Declaration}
}

// newUsage returns what should be recorded of a copy; stays: its disk is a desired disk, or
// keepGenerations keeps it. The time since when a copy is surplus starts only under a valid
// configuration, and restarts after the wall clock was wrong (S4).
func newUsage(ix *Round, ref ident.CopyRef, stays bool) Usage {
	d, o, c := ix.Desired, ix.Observed, ix.copyAt(ref)
	u := recordedUsage(ref, c)
	u.InUse = ix.inUse(ref) != ""
	if c.InUseRecorded && !u.InUse || d.otherClock(c) && !u.LastUsed.IsZero() || implausible(u.LastUsed, o.Now) && !u.LastUsed.IsZero() {
		u.LastUsed = o.Now
	}
	image, declared := d.Config.Images[ref.ID.Name]
	_, maybe := d.Undecided.MayDeclare(ref.ID.Name, c.Declaration)
	undecided := !d.invalidReason(ref.ID.Name).IsZero() || maybe && !declared
	if image.Declaration.File != "" {
		u.Declaration = image.Declaration
	}
	if stays || undecided || o.Disks[ref.Disk].ClockStepped || d.otherClock(c) || implausible(u.SurplusSince, o.Now) {
		u.SurplusSince = time.Time{}
	}
	surplus := !stays && !undecided && (declared || d.IsRemoved(ref.ID.Name))
	if surplus && d.Allowed == schema.Everything && u.SurplusSince.IsZero() {
		u.SurplusSince = o.Now
	}
	switch {
	case undecided || !declared:
	case image.ID == ref.ID:
		u.ReplacedAt = time.Time{}
	default:
		u.ReplacedAt = replacedAt(c, o.Now)
	}
	if u != recordedUsage(ref, c) {
		u.By = d.Node
	}
	return u
}

// otherClock reports whether the recorded times of a copy come from the clock of another node,
// which had the disk before.
func (d Desired) otherClock(c model.Copy) bool { return c.ClockNode != "" && c.ClockNode != d.Node }

// ApplyUsage changes the observed copy as if u had been written to its record.
func (o Observed) ApplyUsage(u Usage) {
	if c, exists := o.Disks[u.Copy.Disk].Copies[u.Copy.ID]; exists {
		c.InUseRecorded, c.LastUsed, c.SurplusSince, c.ReplacedAt, c.ClockNode = u.InUse, u.LastUsed, u.SurplusSince, u.ReplacedAt, u.By
		c.Declaration = u.Declaration
		o.Disks[u.Copy.Disk].Copies[u.Copy.ID] = c
	}
}

// intervalEnd returns when the clean-up interval of a copy ends. It starts with the last use or
// when the copy became surplus, whichever is later. It restarts now when a recorded time is
// missing or implausible, or by another clock (S4); UsageUpdates records that.
func (ix *Round) intervalEnd(ref ident.CopyRef) time.Time {
	d, o, c, stepped := ix.Desired, ix.Observed, ix.copyAt(ref), ix.Observed.Disks[ref.Disk].ClockStepped
	since := c.SurplusSince
	switch {
	case since.IsZero(), stepped, d.otherClock(c), implausible(since, o.Now),
		c.InUseRecorded && ix.inUse(ref) == "", // the use has just ended
		!c.LastUsed.IsZero() && implausible(c.LastUsed, o.Now):
		since = o.Now
	case c.LastUsed.After(since):
		since = c.LastUsed
	}
	return since.Add(d.Config.Settings.CleanupWaitInterval)
}

// earliestTime is before any time that this program can have recorded.
var earliestTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func implausible(recorded, now time.Time) bool {
	return recorded.After(now) || recorded.Before(earliestTime)
}
