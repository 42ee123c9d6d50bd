package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// establishes reports whether an action can establish the digest of an image without a checksum.
func establishes(image schema.Image, a plan.Action, o plan.Observed) bool {
	return image.Checksum.IsZero() && (a.Op.IsFirstCopy() || a.Op == model.Sync && !readsSameImage(o, a))
}

// readsSameImage reports whether a sync reads a copy of the same image.
func readsSameImage(o plan.Observed, a plan.Action) bool {
	_, there := o.Disks[a.From.Disk].Copies[a.CopyRef().ID]
	return there && a.From.ID == a.CopyRef().ID
}

// checkFirstCopyStart checks the start of a first copy against what its node observed.
func (m *node) checkFirstCopyStart(w *runningJob, d plan.Desired, o plan.Observed) {
	c, a := m.c, w.action
	if w.image.Source.Clone != nil && (a.Op == model.Clone || w.establishes) {
		m.checkCloneStart(w, o)
	}
	if why := o.CannotPrepare[w.key.ID]; a.Op == model.Export && why != "" {
		c.violation("first", "%s is exported: %s", w.key, why)
	}
	if !w.establishes {
		return
	}
	c.reviveHolders(w, m)
	recovery := d.Config.Settings.RecoveryWaitInterval
	for name, p := range o.Peers {
		if !p.Queried || p.Problem != "" && p.UnreachableFor(o.Now) < recovery {
			c.violation("first", "%s of %s starts, and node %s may have a copy: it is unreachable for %s", a.Op, w.key, name, p.UnreachableFor(o.Now))
		}
	}
	w.recentDigests = map[string]bool{}
	for ref, seen := range o.Disks {
		failed, there := seen.Copies[w.key.ID]
		s := c.copyAt(ident.CopyRef{Disk: ref, ID: w.key.ID})
		responds := ref.Node == m.name || o.Peers[ref.Node].Responds()
		if !there || !responds || failed.State != model.Failed || failed.SHA512.IsZero() || s == nil || s.Failure == "" {
			continue
		}
		clocksRight := m.clockOffset == 0 && c.nodes[ref.Node].clockOffset == 0 && c.history(s).failedAtTrueTime // otherwise the recorded time of the failure may be wrong
		if !clocksRight || c.now-c.history(s).failedAt < recovery-10*time.Second {
			w.recentDigests[s.Recorded] = w.recentDigests[s.Recorded] || clocksRight
		}
	}
}

// checkEnd checks why a round ends a job that creates a copy: what only delays the start of a job ends none (R5).
func (m *node) checkEnd(job *runningJob) {
	delays := []model.Code{plan.CodePeerUnqueried, plan.CodePeerUnreachable, plan.CodeDiskUnavailable, plan.CodeDiskUnpublished}
	for _, a := range m.plan.Actions {
		if a.CopyRef() == job.key && slices.Contains(delays, a.Code) && job.action.Op.CreatesCopy() && m.plan.Ends[job.key] == a.Text {
			m.c.violation("first", "%s of %s ends: %s", job.action.Op, job.key, a.Text)
		}
	}
}

// reviveHolders makes the nodes with a ready copy reachable again soon after another node has started
// a first copy.
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

// requestSourceCleanup requests the deletion of the source of a clone while the job reads it.
func (c *cluster) requestSourceCleanup(w *runningJob, m *node) {
	if c.healed || w.action.LocalSource == (ident.CopyRef{}) || !c.oneIn(2) {
		return
	}
	c.after(c.between(0, 20*time.Second), func() {
		if m.up {
			m.requestCleanup(w.action.LocalSource)
		}
	})
}

// checkCloneStart checks the source of a clone against what its node observed.
func (m *node) checkCloneStart(w *runningJob, o plan.Observed) {
	m.c.requestSourceCleanup(w, m)
	source, declared := m.applied.config.Images[w.image.Source.Clone.BackingImage]
	if from := w.action.LocalSource; w.action.Op == model.Clone && (m.leaving(from) || m.suspects(from)) {
		m.c.violation("clone", "%s is cloned from %s, which is leaving or suspect", w.key, from)
	}
	if !declared || !source.Checksum.IsZero() {
		return
	}
	digests := map[ident.Digest]bool{}
	for ref, seen := range o.Disks {
		v, ready := seen.Ready(source.ID)
		if ready && !v.Leaving && !m.suspects(ident.CopyRef{Disk: ref, ID: source.ID}) && (ref.Node == m.name || o.Peers[ref.Node].Responds()) {
			digests[v.SHA512] = true
		}
	}
	if len(digests) > 1 {
		m.c.violation("clone", "%s is cloned although the copies of its source have different digests", w.key)
	}
}

// checkFirstCopyEnd checks the content of a new first copy against the digests that the image had
// within the recovery interval, and against the ready copies.
func (m *node) checkFirstCopyEnd(w *runningJob, content string) {
	c := m.c
	if !w.establishes {
		return
	}
	certain := slices.Contains(slices.Collect(maps.Values(w.recentDigests)), true)
	if _, had := w.recentDigests[content]; certain && !had {
		c.violation("digest", "%s gets the content %q, and had %v within the recovery interval", w.key, content, w.recentDigests)
	}
	ends := m.allowed() != schema.ObserveOnly && m.applied.config.Images[w.key.ID.Name].ID == w.key.ID // if another copy exists: R5
	for ref, seen := range m.observed.Disks {
		v, ready := seen.Ready(w.key.ID)
		if ends && ready && !v.Leaving && v.SHA512 != c.digest(content) && (ref.Node == m.name || m.observed.Peers[ref.Node].Responds()) {
			c.violation("digest", "%s gets the content %q although another one is ready on %s", w.key, content, ref)
		}
	}
	if c.now-c.healedAt < 6*time.Minute || !c.healed {
		return
	}
	for _, key := range c.readyCopies(m.applied.config, w.image) {
		if c.skewed[key.Disk.Node] {
			continue // it may not know its disks, and so not publish them
		}
		if other := c.copyAt(key).Recorded; other != content {
			c.violation("digest", "%s gets the content %q without any fault, and %s has %q", w.key, content, key, other)
		}
	}
}

// checkSingleFirstCopy checks that of two nodes that create the first copy of an image and know of each
// other, the one with the lower rank stops. An image with a checksum and a ready copy is exempt: then
// both jobs may continue.
func (m *node) checkSingleFirstCopy() {
	for _, w := range m.sortedJobs() {
		if _, declared := m.applied.config.Nodes[m.name]; !declared { // it only observes: its jobs go on, and no other node knows of it
			return
		}
		image := m.applied.config.Images[w.key.ID.Name]
		if w.ended || w.stopped || !w.action.Op.IsFirstCopy() || image.ID != w.key.ID || !image.Checksum.IsZero() && m.knowsReady(image.ID) {
			continue
		}
		ranked := m.c.rankedDisks(m.applied, image)
		own := slices.Index(ranked, w.key.Disk)
		for name, h := range m.peers {
			if !h.polled || h.problem != "" || h.publication == nil || m.appliedBroken || h.publication.state.ConfigDigest != m.applied.digest || m.observed.Peers[name].Problem != "" {
				continue
			}
			for on, one := range h.publication.state.Disks {
				other := ident.DiskRef{Node: name, Disk: on}
				if at := slices.Index(ranked, other); at >= 0 && (own < 0 || at < own) && m.createsFirstCopy(one, other, w.key) {
					m.c.violation("first", "%s is created by %s although %s creates the first copy", w.key, w.action.Op, other)
				}
			}
		}
	}
}

// knowsReady reports whether the last plan of a node was based on a ready copy of the image.
func (m *node) knowsReady(id ident.ID) bool {
	for ref, seen := range m.observed.Disks {
		if v, ready := seen.Ready(id); ready && !v.Leaving && (ref.Node == m.name || m.observed.Peers[ref.Node].Responds()) {
			return true
		}
	}
	return false
}

// createsFirstCopy reports whether another disk creates the first copy, according to the published
// state that this node has planned with, and nothing prevents that disk from creating it.
func (m *node) createsFirstCopy(one model.Disk, ref ident.DiskRef, key ident.CopyRef) bool {
	node := m.applied.config.Nodes[ref.Node]
	v, exists := one.Copies[key.ID]
	other := ident.CopyRef{Disk: ref, ID: key.ID}
	if !exists || !m.observed.Running[other] || one.Problem != "" || !node.AllowScheduling || !node.Disks[ref.Disk].AllowScheduling {
		return false
	}
	if seen := m.observed.Disks[ref]; seen.Problem != "" || seen.ReadOnly {
		return false
	}
	for k, t := range m.observed.Failures {
		if k.Disk.Node == ref.Node && k.ID == key.ID && t.Attempts > 0 || k == key && t.Attempts > 0 {
			return false // the task may have moved to another disk
		}
	}
	return v.Job.IsFirstCopy() && v.State == model.Pending && v.Failure == nil && !isEvicted(m.applied.config, ref)
}

// checkConflict checks that no copy is deleted while the copies of its image have different digests,
// or while a job reads it.
func (r *deletion) checkConflict(o plan.Observed) {
	m := r.node
	for _, w := range m.sortedJobs() {
		if w.action.LocalSource == r.key && !w.ended && !w.stopped {
			r.c.violation("clone", "%s is deleted while %s reads it", r.key, w.key)
		}
	}
	image, declared := r.conf.config.Images[r.key.ID.Name]
	if !declared || !image.Checksum.IsZero() {
		return
	}
	digests := map[ident.Digest]bool{}
	for ref, seen := range o.Disks {
		if v, ready := seen.Ready(image.ID); ready && ref.Node == m.name {
			digests[v.SHA512] = true
		}
	}
	for one := range r.readyAtResponse {
		_, known := r.conf.config.Nodes[one.key.Disk.Node].Disks[one.key.Disk.Disk]
		if known && one.key.ID == image.ID {
			digests[r.c.digest(one.content)] = true
		}
	}
	if len(digests) > 1 {
		r.c.violation("conflict", "%s is deleted although the copies of %s have different digests", r.key, image.ID)
	}
}
