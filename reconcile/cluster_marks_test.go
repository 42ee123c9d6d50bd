package reconcile

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// write writes the marks, as Reconciler.mark does, and reports whether it wrote any.
func (m *member) write(d plan.Desired, o plan.Observed) (changed bool) {
	for _, mark := range d.UsageUpdates(o) {
		m.c.tell(m.name, "marks %s: in use %v, last used %s, unwanted since %s", mark.Copy, mark.InUse, mark.LastUsed, mark.SurplusSince)
		seen := o.Disks[mark.Copy.Disk]
		m.unmarked[mark.Copy] = usageOnDisk{mark, seen.UUID}
		seen.ApplyUsage(mark)
	}
	if d.Allowed == schema.ObserveOnly {
		return false
	}
	behind := map[schema.DiskRef]bool{}
	for key, mark := range m.unmarked {
		seen, looked := o.Disks[key.Disk]
		_, there := seen.Copies[key.ID]
		s, w := m.c.slotOn(mark.diskUUID, key), m.jobs[key]
		switch {
		case !there || seen.UUID != mark.diskUUID:
			if looked && seen.Problem == "" {
				delete(m.unmarked, key)
			}
		case s == nil || w != nil && !m.asking(w): // nil: it went since it was looked at
			behind[key.Disk] = true
		default:
			s.excused = s.excused && s.mark.SurplusSince.Equal(mark.SurplusSince)
			s.mark = mark.Usage
			delete(m.unmarked, key)
			changed = true
		}
	}
	for ref, seen := range o.Disks {
		if d.Owns(ref) && seen.Problem == "" && !behind[ref] {
			m.clocks.record(seen.UUID)
		}
	}
	return changed
}

// note keeps what is true of each copy by a clock that nobody sets, when the manager
// had looked at it.
func (m *member) note(d plan.Desired, o plan.Observed, at time.Duration) {
	for name := range m.own {
		ref := schema.DiskRef{Node: m.name, Disk: name}
		for id, seen := range o.Disks[ref].Copies {
			s := m.c.slotOf(o.Disks[ref].UUID, id) // the disk may have gone meanwhile
			if s == nil {
				continue
			}
			if seen.UsedBy != "" {
				s.used = at
			}
			switch image, declared := d.Config.Images[id.Name]; {
			case d.Allowed == schema.ObserveOnly:
			case declared && image.ID == id && seen.State == disk.Ready && !(o.Failures[plan.CopyRef{Disk: ref, ID: id}].Fault == plan.FaultDisk) && m.c.mustWant(m.conf, image, ref):
				s.wanted, s.unwanted = at, 0
			case d.Allowed == schema.Everything && s.unwanted == 0:
				s.unwanted = at
			}
		}
	}
}

// asking reports whether a job is about a withdrawn copy and does nothing to it yet.
func (m *member) asking(w *work) bool { return w != nil && w.action.Op.Deletes() && !w.sure }

// excuse takes note of the copies of which a manager that died knew more than it could
// write down: what it would have written is lost, and nobody can know that.
func (m *member) excuse() {
	for _, d := range m.c.drives {
		outdated := m.clocks.outdated(d.uuid) || m.wall != m.clock
		for _, s := range d.slots {
			s.excused = s.excused || s.mark.By == m.name && outdated
		}
	}
	for key, mark := range m.unmarked {
		if s := m.c.slotOf(mark.diskUUID, key.ID); s != nil && !m.asking(m.jobs[key]) {
			s.excused = true
		}
	}
}
