package simulation

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/system"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// copyHistory is what happened to a copy, by the true time. No manager knows it.
type copyHistory struct {
	ownedAt  time.Duration // when the folder became an owned one
	failedAt time.Duration // when the copy became failed
	// failedAtTrueTime: at failedAt the wall clock of the node was right.
	failedAtTrueTime bool
	usedAt           time.Duration // when a round last observed that the copy is in use
	usedFrom         time.Duration // when the present use began
	// surplusAt is the first moment at which no round had to desire the copy any more, under a
	// valid configuration; zero while the copy is desired.
	surplusAt time.Duration
	desiredAt time.Duration // when a round desired the copy again
	// excused: the end of a process lost what it knew about the usage of the copy.
	excused bool
	// client uploads the partial file; nil if it is from another source.
	client *uploader
}

// stay notes that the copy is desired.
func (h *copyHistory) stay(now time.Duration) {
	if h.surplusAt != 0 {
		h.surplusAt, h.desiredAt = 0, now
	}
}

// history returns the history of a copy.
func (c *cluster) history(s *Copy) *copyHistory {
	if c.histories[s] == nil {
		c.histories[s] = &copyHistory{}
	}
	return c.histories[s]
}

// own makes a folder an owned one.
func (c *cluster) own(s *Copy) {
	if !s.Owned {
		s.Own()
		c.history(s).ownedAt = c.now
	}
}

// setClient empties the partial file of a copy. From now on a client uploads it; nil: none does.
func (c *cluster) setClient(s *Copy, client *uploader) {
	c.history(s).client, s.Partial, s.PartialSource = client, 0, ""
	if client != nil {
		s.PartialSource = model.PartFromUpload
	}
}

// listing is a disk with its copies as a round listed them.
type listing struct {
	ref  ident.DiskRef
	disk *Disk
	system.Contents
}

// noteListing notes for each listed copy, by the true time, when it was in use and since when it is
// surplus. A round records usage after its first listing only.
func (m *node) noteListing() {
	if !m.observing {
		return
	}
	listed := m.listed
	m.listed = nil
	for _, job := range m.jobs {
		if job.query != nil && job.query.ended && !job.confirmed {
			job.deletion.recordListing(m, m.appliedDigest())
		}
	}
	if m.observations++; m.observations > 1 {
		return
	}
	for _, one := range listed {
		for _, c := range one.Copies {
			s, key := one.disk.Copies[c.ID], ident.CopyRef{Disk: one.ref, ID: c.ID}
			if _, used := one.Users.InUse(c.ID); used {
				m.c.history(s).usedAt = m.c.now
			}
			image, declared := m.applied.config.Images[c.ID.Name]
			declared = declared && c.ID.Name != m.invalidImage
			failing := m.failedJobs[key] || m.observed.Failures[key].Fault == model.FaultDisk
			switch {
			case m.allowed() == schema.ObserveOnly:
			case declared && image.ID == c.ID && c.State == model.Ready && !failing && m.c.isAlwaysDesired(m.applied, image, one.ref):
				m.c.history(s).stay(m.c.now)
			case declared && image.ID != c.ID && m.isCertainlyKept(image, key, s):
				m.c.history(s).stay(m.c.now)
			case m.allowed() == schema.Everything && m.c.history(s).surplusAt == 0:
				m.c.history(s).surplusAt = m.c.now
			}
		}
	}
}

// unwrittenKey identifies a copy on a disk, wherever the disk is attached.
type unwrittenKey struct {
	uuid string
	id   ident.ID
}

// noteUnwritten notes the copies whose usage a round could not record, and the disks on which all
// recorded times are right.
func (m *node) noteUnwritten() {
	for name := range m.ownDisks {
		ref := ident.DiskRef{Node: m.name, Disk: name}
		seen, d := m.observed.Disks[ref], m.c.disks[ref]
		if seen.Problem != "" || d == nil || d.UUID != seen.UUID {
			continue
		}
		behind := m.desired.Allowed == schema.ObserveOnly
		for id, c := range seen.Copies {
			s := d.Copies[id]
			pending := s != nil && (s.Usage.InUseRecorded != c.InUseRecorded || !s.Usage.LastUsed.Equal(c.LastUsed) || !s.Usage.SurplusSince.Equal(c.SurplusSince) || !s.Usage.ReplacedAt.Equal(c.ReplacedAt) || s.Usage.ClockNode != c.ClockNode)
			if behind = behind || pending; pending {
				m.unwritten[unwrittenKey{d.UUID, id}] = true
			} else {
				delete(m.unwritten, unwrittenKey{d.UUID, id})
			}
		}
		if !behind {
			m.recorded[d.UUID] = m.clockSteps
		}
	}
}

// excuseCopies notes the copies whose usage the ended process could not record. It is lost, and the
// next process cannot know that.
func (m *node) excuseCopies() {
	for ref, d := range m.c.disks {
		outdated := m.recorded[d.UUID] < m.clockSteps || m.clockOffset != m.observedOffset
		for id, s := range d.Copies {
			h := m.c.history(s)
			since := max(h.usedAt, h.desiredAt)
			unrecorded := ref.Node == m.name && m.observing && since > 0 && since >= m.roundBegan // the round had no time for it
			h.excused = h.excused || s.Usage.ClockNode == m.name && outdated || unrecorded || m.unwritten[unwrittenKey{d.UUID, id}]
		}
	}
}
