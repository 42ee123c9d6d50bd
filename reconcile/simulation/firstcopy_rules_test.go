package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// establishes reports whether an action gives an image bytes that nobody has declared.
func establishes(image schema.Image, a plan.Action, o plan.Observed) bool {
	return image.Checksum.IsZero() && (a.Op.IsFirstCopy() || a.Op == plan.Sync && !readsSameImage(o, a))
}

// readsSameImage reports whether a sync reads a copy of the same image.
func readsSameImage(o plan.Observed, a plan.Action) bool {
	_, there := o.Disks[a.From.Disk].Copies[a.CopyRef().ID]
	return there && a.From.ID == a.CopyRef().ID
}

// checkFirstCopyStart holds the beginning of a first copy against what is known by then.
func (m *node) checkFirstCopyStart(w *runningJob, d plan.Desired, o plan.Observed) {
	c, a := m.c, w.action
	if w.image.Source.Clone != nil && (a.Op == plan.Clone || w.establishes) {
		m.checkCloneStart(w, o)
	}
	if why := o.CannotPrepare[w.key.ID]; a.Op == plan.Export && why != "" {
		c.violation("first", "%s is exported: %s", w.key, why)
	}
	if !w.establishes {
		return
	}
	c.reviveHolders(w, m)
	recovery := d.Config.Settings.RecoveryWaitInterval
	for name, p := range o.Peers {
		if !p.Queried || p.Problem != "" && p.UnreachableFor < recovery {
			c.violation("first", "%s of %s begins, and %s may have a copy: it is silent for %s", a.Op, w.key, name, p.UnreachableFor)
		}
	}
	w.recentDigests = map[string]bool{}
	for ref, seen := range o.Disks {
		failed, there := seen.Copies[w.key.ID]
		s := c.copyAt(plan.CopyRef{Disk: ref, ID: w.key.ID})
		heard := ref.Node == m.name || o.Peers[ref.Node].Responds()
		if !there || !heard || failed.State != disk.Failed || failed.SHA512.IsZero() || s == nil || s.Failure == "" {
			continue
		}
		sober := m.clockOffset == 0 && c.nodes[ref.Node].clockOffset == 0 && c.history(s).failedAtTrueTime // else nobody can tell when it failed
		if !sober || c.now-c.history(s).failedAt < recovery-10*time.Second {
			w.recentDigests[s.Recorded] = w.recentDigests[s.Recorded] || sober
		}
	}
}

// reviveHolders lets the nodes that have a copy be heard again just when another first copy
// is begun.
func (c *cluster) reviveHolders(w *runningJob, m *node) {
	if c.healed || !c.oneIn(2) {
		return
	}
	for _, key := range c.readyCopies(m.applied.config, w.image) {
		other := c.nodes[key.Disk.Node]
		if other == m {
			continue
		}
		c.after(c.between(0, 30*time.Second), func() {
			c.link(m.name, other.name).down, c.link(other.name, m.name).down = false, false
			other.start()
			c.countReturn(other)
		})
	}
}

// requestSourceCleanup lets somebody ask to clean up the source of a clone just when it is read.
func (c *cluster) requestSourceCleanup(w *runningJob, m *node) {
	if c.healed || w.action.LocalSource == (plan.CopyRef{}) || !c.oneIn(2) {
		return
	}
	c.after(c.between(0, 20*time.Second), func() {
		if m.up {
			m.requestCleanup(w.action.LocalSource)
		}
	})
}

// checkCloneStart holds the source of a clone against what its node knows.
func (m *node) checkCloneStart(w *runningJob, o plan.Observed) {
	m.c.requestSourceCleanup(w, m)
	source, declared := m.applied.config.Images[w.image.Source.Clone.BackingImage]
	if from := w.action.LocalSource; w.action.Op == plan.Clone && (m.leaving(from) || m.suspects(from)) {
		m.c.violation("clone", "%s is cloned from %s, which is leaving or suspected", w.key, from)
	}
	if !declared || !source.Checksum.IsZero() {
		return
	}
	sums := map[disk.Digest]bool{}
	for ref, seen := range o.Disks {
		v, ready := seen.Ready(source.ID)
		if ready && !v.Leaving && !m.suspects(plan.CopyRef{Disk: ref, ID: source.ID}) && (ref.Node == m.name || o.Peers[ref.Node].Responds()) {
			sums[v.SHA512] = true
		}
	}
	if len(sums) > 1 {
		m.c.violation("clone", "%s is cloned, and the copies of its source differ", w.key)
	}
}

// ends holds the bytes that a first copy got against those that the image had.
func (m *node) checkFirstCopyEnd(w *runningJob, letter string) {
	c := m.c
	if !w.establishes {
		return
	}
	surely := slices.Contains(slices.Collect(maps.Values(w.recentDigests)), true)
	if _, did := w.recentDigests[letter]; surely && !did {
		c.violation("digest", "%s becomes %q, and was %v within the recovery interval", w.key, letter, w.recentDigests)
	}
	for ref, seen := range m.observed.Disks {
		v, ready := seen.Ready(w.key.ID)
		if ready && !v.Leaving && v.SHA512 != c.digest(letter) && (ref.Node == m.name || m.observed.Peers[ref.Node].Responds()) {
			c.violation("digest", "%s becomes %q beside what is ready on %s", w.key, letter, ref)
		}
	}
	if c.now-c.healedAt < 6*time.Minute || !c.healed {
		return
	}
	for _, key := range c.readyCopies(m.applied.config, w.image) {
		if other := c.copyAt(key).Recorded; other != letter {
			c.violation("digest", "%s becomes %q, and there was no fault, and %s is %q", w.key, letter, key, other)
		}
	}
}

// checkSingleFirstCopy holds the first copies that a node makes against those of others of which it has
// heard: whose disk is better goes on. Once a copy is ready, they are not the first ones, and
// with a checksum may all go on.
func (m *node) checkSingleFirstCopy() {
	for _, w := range m.sortedJobs() {
		image := m.applied.config.Images[w.key.ID.Name]
		if w.ended || w.stopped || !w.action.Op.IsFirstCopy() || image.ID != w.key.ID || !image.Checksum.IsZero() && m.knowsReady(image.ID) {
			continue
		}
		ranked := m.c.rankedDisks(m.applied, image)
		own := slices.Index(ranked, w.key.Disk)
		for name, h := range m.peers {
			if !h.polled || h.problem != "" || h.publication == nil || m.appliedBroken || h.publication.state.Config != m.applied.digest || m.observed.Peers[name].Problem != "" {
				continue
			}
			for _, one := range h.publication.state.Disks {
				other := schema.DiskRef{Node: name, Disk: one.Name}
				if at := slices.Index(ranked, other); at >= 0 && (own < 0 || at < own) && m.createsFirstCopy(one, other, w.key) {
					m.c.violation("first", "%s is made by %s, although %s makes it", w.key, w.action.Op, other)
				}
			}
		}
	}
}

// knowsReady reports whether a node planned with a ready copy of the image.
func (m *node) knowsReady(id disk.ID) bool {
	for ref, seen := range m.observed.Disks {
		if v, ready := seen.Ready(id); ready && !v.Leaving && (ref.Node == m.name || m.observed.Peers[ref.Node].Responds()) {
			return true
		}
	}
	return false
}

// createsFirstCopy reports whether a node makes the first copy, for all that was heard and used of
// that, and can go on.
func (m *node) createsFirstCopy(one peer.Disk, ref schema.DiskRef, key plan.CopyRef) bool {
	node := m.applied.config.Nodes[ref.Node]
	i := slices.IndexFunc(one.Copies, func(v peer.Copy) bool { return v.ID == key.ID })
	other := plan.CopyRef{Disk: ref, ID: key.ID}
	if i < 0 || !m.observed.Running[other] || one.Problem != "" || m.observed.Disks[ref].Problem != "" || !node.AllowScheduling || !node.Disks[ref.Disk].AllowScheduling {
		return false
	}
	for k, t := range m.observed.Failures {
		if k.Disk.Node == ref.Node && k.ID == key.ID && t.Attempts > 0 || k == key && t.Attempts > 0 {
			return false // it may have moved on
		}
	}
	v := one.Copies[i]
	return plan.Op(v.Action).IsFirstCopy() && v.State == disk.Pending && v.Failure == nil && !isEvicted(m.applied.config, ref)
}

// checkConflict holds the removal of a copy against what the others have: as long as they differ,
// nothing goes. And nothing goes that is read.
func (r *deletion) checkConflict(o plan.Observed) {
	m := r.node
	for _, w := range m.sortedJobs() {
		if w.action.LocalSource == r.key && !w.ended && !w.stopped {
			r.c.violation("clone", "%s goes, and %s reads it", r.key, w.key)
		}
	}
	image, declared := r.conf.config.Images[r.key.ID.Name]
	if !declared || !image.Checksum.IsZero() {
		return
	}
	sums := map[disk.Digest]bool{}
	for ref, seen := range o.Disks {
		if v, ready := seen.Ready(image.ID); ready && ref.Node == m.name {
			sums[v.SHA512] = true
		}
	}
	for one := range r.readyAtResponse {
		_, known := r.conf.config.Nodes[one.key.Disk.Node].Disks[one.key.Disk.Disk]
		if known && one.key.ID == image.ID {
			sums[r.c.digest(one.letter)] = true
		}
	}
	if len(sums) > 1 {
		r.c.violation("conflict", "%s goes, and the copies of %s differ", r.key, image.ID)
	}
}
