package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Usage is what has to be written down beside a copy, because it cannot be derived
// later: whether it is used, when that ended, and since when nobody wants it.
type Usage struct {
	Copy         CopyRef
	InUse        bool
	LastUsed     time.Time
	SurplusSince time.Time
	By           string // the node by whose clock these two are
	// Declaration identifies the document that declares the image, or declared it last.
	Declaration disk.Declaration
}

// UsageUpdates returns the copies of this node whose marks have to change, sorted. Like
// Plan it depends on its arguments alone. Where nothing may be done, uses are noted all
// the same.
func (d Desired) UsageUpdates(o Observed) []Usage {
	s := d.NewIndex(o)
	wanted := map[CopyRef]bool{}
	for _, image := range d.Config.Images {
		if len(s.ownByName[image.ID.Name]) == 0 {
			continue // there is nothing here to mark
		}
		for _, ref := range s.NewImagePlanner(image).Placement.Targets {
			wanted[CopyRef{ref, image.ID}] = true
		}
	}
	var marks []Usage
	for _, keys := range s.ownByName {
		for _, key := range keys {
			c := s.copyAt(key)
			if m := d.newUsage(o, key, c, wanted[key]); c.Owned && m != recordedUsage(key, c) {
				marks = append(marks, m)
			}
		}
	}
	slices.SortFunc(marks, func(a, b Usage) int {
		return cmp.Or(CompareIDs(a.Copy.ID, b.Copy.ID), CompareDisks(a.Copy.Disk, b.Copy.Disk))
	})
	return marks
}

func recordedUsage(key CopyRef, c Copy) Usage {
	return Usage{Copy: key, InUse: c.InUseRecorded, LastUsed: c.LastUsed, SurplusSince: c.SurplusSince, By: c.ClockNode, Declaration: c.Declaration}
}

// newUsage is what should be recorded of a copy. The clean-up clock starts only under
// a configuration that is wholly valid, and again when the wall clock cannot have
// been right.
func (d Desired) newUsage(o Observed, key CopyRef, c Copy, wanted bool) Usage {
	m := recordedUsage(key, c)
	m.InUse = c.UsedBy != ""
	if c.InUseRecorded && !m.InUse || d.otherClock(c) && !m.LastUsed.IsZero() || implausible(m.LastUsed, o.Now) && !m.LastUsed.IsZero() {
		m.LastUsed = o.Now
	}
	image, declared := d.Config.Images[key.ID.Name]
	_, undecided := d.Undecided.MayDeclare(key.ID.Name, c.Declaration)
	held := d.invalidReason(key.ID.Name) != "" || undecided && !declared
	if wanted || held || o.Disks[key.Disk].ClockStepped || d.otherClock(c) || implausible(m.SurplusSince, o.Now) {
		m.SurplusSince = time.Time{}
	}
	unwanted := !wanted && !held && (declared || d.IsRemoved(key.ID.Name))
	if unwanted && d.Allowed == schema.Everything && m.SurplusSince.IsZero() {
		m.SurplusSince = o.Now
	}
	if m != recordedUsage(key, c) {
		m.By = d.Node
	}
	if image.Declaration.File != "" {
		m.Declaration = image.Declaration
	}
	return m
}

// otherClock reports whether the times beside a copy are by the clock of another node,
// which had the disk before.
func (d Desired) otherClock(c Copy) bool { return c.ClockNode != "" && c.ClockNode != d.Node }

// ApplyUsage shows a copy as it would be if m had been written.
func (d Disk) ApplyUsage(m Usage) {
	if c, there := d.Copies[m.Copy.ID]; there {
		c.InUseRecorded, c.LastUsed, c.SurplusSince, c.ClockNode = m.InUse, m.LastUsed, m.SurplusSince, m.By
		c.Declaration = m.Declaration
		d.Copies[m.Copy.ID] = c
	}
}
