package reconcile

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Mark is what has to be written down beside a copy, because it cannot be derived
// later: whether it is used, when that ended, and since when nobody wants it.
type Mark struct {
	Key           Key
	InUse         bool
	LastUsed      time.Time
	UnwantedSince time.Time
	By            string // the node by whose clock these two are
}

// Marks returns the copies of this node whose marks have to change, sorted. Like
// Plan it depends on its arguments alone. Where nothing may be done, uses are noted all
// the same.
func (d Desired) Marks(o Observed) []Mark {
	s := d.scene(o)
	wanted := map[Key]bool{}
	for _, image := range d.Config.Images {
		if len(s.named[image.ID.Name]) == 0 {
			continue // there is nothing here to mark
		}
		for _, ref := range s.look(image).places.want {
			wanted[Key{ref, image.ID}] = true
		}
	}
	var marks []Mark
	for _, keys := range s.named {
		for _, key := range keys {
			c := s.copy(key)
			if m := d.mark(o, key, c, wanted[key]); c.Owned && m != recorded(key, c) {
				marks = append(marks, m)
			}
		}
	}
	slices.SortFunc(marks, func(a, b Mark) int {
		return cmp.Or(compareIDs(a.Key.ID, b.Key.ID), compareRefs(a.Key.Disk, b.Key.Disk))
	})
	return marks
}

func recorded(key Key, c Copy) Mark {
	return Mark{Key: key, InUse: c.InUseRecorded, LastUsed: c.LastUsed, UnwantedSince: c.SurplusSince, By: c.ClockNode}
}

// mark is what should be recorded of a copy. The clean-up clock starts only under
// a configuration that is wholly valid, and again when the wall clock cannot have
// been right.
func (d Desired) mark(o Observed, key Key, c Copy, wanted bool) Mark {
	m := recorded(key, c)
	m.InUse = c.Using != ""
	if c.InUseRecorded && !m.InUse || d.otherClock(c) && !m.LastUsed.IsZero() || implausible(m.LastUsed, o.Now) && !m.LastUsed.IsZero() {
		m.LastUsed = o.Now
	}
	_, declared := d.Config.Images[key.ID.Name]
	held := d.holds(key.ID.Name) != ""
	if wanted || held || o.Disks[key.Disk].ClockStepped || d.otherClock(c) || implausible(m.UnwantedSince, o.Now) {
		m.UnwantedSince = time.Time{}
	}
	unwanted := !wanted && !held && (declared || d.gone(key.ID.Name))
	if unwanted && d.May == schema.Everything && m.UnwantedSince.IsZero() {
		m.UnwantedSince = o.Now
	}
	if m != recorded(key, c) {
		m.By = d.Node
	}
	return m
}

// otherClock reports whether the times beside a copy are by the clock of another node,
// which had the disk before.
func (d Desired) otherClock(c Copy) bool { return c.ClockNode != "" && c.ClockNode != d.Node }

// remember shows a copy as it would be if m had been written.
func (d Disk) remember(m Mark) {
	if c, there := d.Copies[m.Key.ID]; there {
		c.InUseRecorded, c.LastUsed, c.SurplusSince, c.ClockNode = m.InUse, m.LastUsed, m.UnwantedSince, m.By
		d.Copies[m.Key.ID] = c
	}
}

// mark writes the marks that are due, and reports whether it wrote any. What cannot be
// written, on a full disk for one, or may not be yet, holds for this process all the
// same. A copy with a job is left to that job, which writes the same record, and is
// marked when it has ended.
func (r *Reconciler) mark(d Desired, o Observed) (changed bool) {
	for _, m := range d.Marks(o) {
		seen := o.Disks[m.Key.Disk]
		r.unmarked[m.Key] = unmarked{m, seen.UUID}
		seen.remember(m)
	}
	if d.May == schema.ObserveOnly {
		return false
	}
	behind := map[schema.DiskRef]bool{}
	for key, m := range r.unmarked {
		seen, looked := o.Disks[key.Disk]
		if _, there := seen.Copies[key.ID]; !there || seen.UUID != m.on {
			if looked && seen.Problem == "" {
				delete(r.unmarked, key)
			}
			continue
		}
		if run := r.running[key]; run != nil && !run.asks() || !r.write(m.Mark) {
			behind[key.Disk] = true
			continue
		}
		delete(r.unmarked, key)
		changed = true
	}
	for ref, seen := range o.Disks {
		if d.mine(ref) && seen.Problem == "" && !behind[ref] {
			r.clock.note(seen.UUID)
		}
	}
	return changed
}

func (r *Reconciler) write(m Mark) bool {
	err := r.disks.open[m.Key.Disk].Update(m.Key.ID, func(record *disk.Record) {
		record.InUse, record.LastUsed, record.SurplusSince, record.ClockNode = m.InUse, m.LastUsed, m.UnwantedSince, m.By
	})
	if err != nil {
		r.log.Warn("cannot note use of copy", "copy", m.Key.String(), "error", err)
	}
	return err == nil
}
