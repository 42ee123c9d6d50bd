package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// checkDecision checks the decision to delete a copy against what is true in the cluster. The
// facts are those that were recorded since the withdrawal.
func (r *deletion) checkDecision(o plan.Observed) {
	m, c := r.node, r.c
	r.conf, r.phase = m.applied, "decided"
	c.countSkew(r)
	if m.applied != nil {
		c.decisions = append(c.decisions, decision{c.now, r.key.ID.Name, m.applied, r.relayed})
	}
	if _, declared := r.conf.config.Nodes[m.name]; !declared || m.appliedBroken || m.appliedEmpty {
		c.violation("S6", "%s is deleted under an invalid configuration", r.key)
	}
	if plantest.IsSuspended(r.conf.config, r.key.ID.Name, o.Now) {
		c.violation("suspend", "%s is deleted although it is suspended", r.key)
	}
	r.checkConflict(o)
	r.checkSeedReaders()
	s := c.copyAt(r.key)
	if s == nil {
		return
	}
	image, declared := r.conf.config.Images[r.key.ID.Name]
	evicted := r.work.action.Op == model.Evict
	if evicted && !(declared && isEvicted(r.conf.config, r.key.Disk)) {
		c.violation("S5", "%s is evicted without a request", r.key)
	}
	if declared && r.key.ID != image.ID && s.File == "" {
		return // a partial file of an older generation is no copy
	}
	if declared && r.key.ID != image.ID {
		r.checkKept(image, s)
	}
	if (!declared || r.key.ID != image.ID) && s.File != "" {
		r.checkNeeds(o)
	}
	accepted, requested := m.requestedCleanups[r.key]
	if !evicted && !(requested && r.began-accepted <= time.Minute) { // a request is in force for a minute
		r.checkInterval(s)
	}
	if declared && r.losesNothing(s) {
		return
	}
	if declared {
		r.checkEnough(image, s)
	} else {
		r.checkOrphan()
	}
}

// checkInterval checks the clean-up interval by true time, which no fault changes.
func (r *deletion) checkInterval(s *Copy) {
	wait := r.conf.config.Settings.CleanupWaitInterval
	if wait == 0 || r.c.history(s).excused {
		return
	}
	now := r.c.now
	if r.c.history(s).surplusAt == 0 || now-r.c.history(s).surplusAt < wait {
		r.c.violation("S4", "%s is deleted %s after it became surplus; the clean-up interval is %s", r.key, now-r.c.history(s).surplusAt, wait)
	}
	if r.c.history(s).usedAt != 0 && now-r.c.history(s).usedAt < wait {
		r.c.violation("S4", "%s is deleted %s after its last use; the clean-up interval is %s", r.key, now-r.c.history(s).usedAt, wait)
	}
}

// checkEnough checks that enough other copies of a declared image were ready: at some moment since
// the withdrawal, and also at the moments of the responses of their nodes.
func (r *deletion) checkEnough(image schema.Image, s *Copy) {
	ranked := r.c.rankedDisks(r.conf, image)
	_, enough := copyCounts(image, len(ranked))
	if len(ranked) == 0 {
		r.c.violation("S4", "%s is deleted although no disk is ranked", r.key)
		return
	}
	rule := ruleOf(r.work.action.Op)
	r.addReadyOn(r.node, r.conf.digest, r.readyDuring)
	if n := r.mostWithSameBytes(image, s, ranked, r.readyDuring); n < enough {
		r.c.violation(rule, "%s is deleted while %d other copies are ready on ranked or named disks; enough are %d", r.key, n, enough)
	}
	if n := r.mostWithSameBytes(image, s, ranked, r.counted()); n < enough && s.File != "" && !*clusterWorld {
		r.c.violation("H3", "%s is deleted although %d other copies on ranked or named disks have proven that they have their bytes; enough are %d", r.key, n, enough)
	}
	if n := r.mostWithSameBytes(image, s, ranked, r.readyAtResponse); n < enough && !*clusterWorld {
		r.c.violation(rule, "%s is deleted although %d other copies were ready on ranked or named disks at the responses; enough are %d", r.key, n, enough)
	}
}

// counted returns the copies on which the deletion may count: those that have proven that they have their bytes.
func (r *deletion) counted() map[readyCopy]bool {
	copies := map[readyCopy]bool{}
	for one := range r.readyDuring {
		if r.proven[one.key] {
			copies[one] = true
		}
	}
	return copies
}

// mostWithSameBytes returns the size of the largest group of copies with equal bytes. Only copies with
// the right bytes count, on ranked or named disks of nodes with the same configuration. The copy to
// delete does not count.
func (r *deletion) mostWithSameBytes(image schema.Image, s *Copy, ranked []ident.DiskRef, copies map[readyCopy]bool) int {
	of := map[string]int{}
	for one := range copies {
		ref := one.key.Disk
		named := slices.Contains(image.Disks, ref) && !isEvicted(r.conf.config, ref)
		right := one.key.ID == image.ID && one.key != r.key && one.config == r.conf.digest && r.hasRightBytes(image, s, one.content)
		if right && (named || slices.Contains(ranked, ref)) {
			of[one.content]++
		}
	}
	n := 0
	for _, count := range of {
		n = max(n, count)
	}
	return n
}

func ruleOf(kind model.Op) string {
	if kind == model.Evict {
		return "S5"
	}
	return "S4"
}

func (r *deletion) hasRightBytes(image schema.Image, s *Copy, content string) bool {
	switch {
	case !image.Checksum.IsZero():
		return r.c.digest(content) == image.Checksum
	case r.key.ID == image.ID && s.File != "" && s.Failure == "" && !s.Changed:
		return content == s.Recorded
	}
	return true
}

// heardKept reports whether a node has published that an image is in use or needed, and the node of the deletion has not heard of
// the end yet, for example after a partition: the prune limit does not count the image as long.
func (r *deletion) heardKept(id ident.ID) bool {
	for _, peer := range r.node.peers {
		if peer.publication == nil || r.c.now-peer.received > 2*time.Minute {
			continue
		}
		for _, d := range peer.publication.state.Disks {
			for other, published := range d.Copies {
				if other == id && published.Need != nil || other.Name == id.Name && published.UsedBy != "" {
					return true
				}
			}
		}
	}
	return false
}

// checkOrphan checks the deletion of a copy of an image that is no longer declared.
func (r *deletion) checkOrphan() {
	c, config := r.c, r.conf.config
	gone := map[string]bool{}
	confirmed := true
	for _, name := range slices.Sorted(maps.Keys(config.Nodes)) {
		if name != r.node.name && !(r.reachable[name] && (r.responded[name] || *clusterWorld)) {
			c.violation("S3", "%s is deleted, and node %s did not respond about its use", r.key, name)
		}
		for d := range config.Nodes[name].Disks {
			one := c.disks[ident.DiskRef{Node: name, Disk: d}]
			if one == nil || !one.Attached {
				continue
			}
			for id, s := range one.Copies {
				if id.Name == r.key.ID.Name && c.users(ident.CopyRef{Disk: ident.DiskRef{Node: name, Disk: d}, ID: id}) > 0 && c.history(s).usedFrom < r.began {
					c.violation("S6", "%s is deleted, and a copy of it is in use on %s/%s", r.key, name, d)
				}
				if _, declared := config.Images[id.Name]; !declared && s.Owned && s.hasBytes() && c.history(s).ownedAt < r.began && !r.unlimited[id] && !r.heardKept(id) && c.liar == nil {
					gone[id.Name] = true
					confirmed = confirmed && slices.Contains(config.Settings.PruneConfirmed, id)
				}
			}
		}
	}
	if own := c.disks[r.key.Disk].Copies[r.key.ID]; own != nil && own.hasBytes() && config.Settings.PruneLimit.Exceeded(len(config.Images), len(gone)) && !confirmed {
		c.violation("S6", "%s is deleted with %d orphans of %d images; the prune limit is %s", r.key, len(gone), len(gone)+len(config.Images), config.Settings.PruneLimit)
	}
	if since := c.now - r.node.removedAt[r.key.ID.Name]; since < configdir.RemovalDelay {
		c.violation("S6", "%s is deleted %s after its image was removed from the configuration", r.key, since)
	}
}

// isElsewhere reports whether the content that a compromised node has sent a chunk of is ready on a disk of
// an honest node, as the copy of any image; or whether the compromised node has made it up, which it can
// only for an image without a declared checksum.
func (r *deletion) isElsewhere(image schema.Image, s *Copy) bool {
	for one := range r.relayed {
		if isForgery(one.content) && image.Checksum.IsZero() {
			return true
		}
		for ref, d := range r.c.disks {
			for id, other := range d.Copies {
				if d.Attached && other != s && other.Ready() && other.File == one.content && (ident.CopyRef{Disk: ref, ID: id}) != r.key {
					return true
				}
			}
		}
	}
	return false
}

// checkUnlink checks the last step, which deletes the files, against the disks: a copy that shows the same folder, or
// whose medium has lost the bytes, is none (a partial file needs no proofs). A copy that a fault
// destroyed after the withdrawal counts as ready: no manager can prevent this.
func (r *deletion) checkUnlink(s *Copy) {
	c := r.c
	r.checkSeedReaders()
	if s.File != "" && c.users(r.key) > 0 { // a replica that comes after the rename cannot use a partial file
		c.violation("S1", "%s is deleted while it is in use", r.key)
	}
	image, declared := r.conf.config.Images[r.key.ID.Name]
	if !declared {
		return
	}
	left := map[string]map[ident.CopyRef]bool{}
	count := func(key ident.CopyRef, content string) {
		if key.ID != image.ID || key == r.key || !r.hasRightBytes(image, s, content) {
			return
		}
		if left[content] == nil {
			left[content] = map[ident.CopyRef]bool{}
		}
		left[content][key] = true
	}
	for ref, d := range c.disks {
		if one := d.Copies[image.ID]; d.Attached && one.Ready() && (one.File == one.Recorded || s.File == "") && one != s {
			count(ident.CopyRef{Disk: ref, ID: image.ID}, one.Recorded)
		}
	}
	for _, l := range c.losses {
		if l.at >= r.began {
			count(l.key, l.digest)
		}
	}
	honest := len(left) > 0 || r.isElsewhere(image, s)
	most, copies := 0, image.Copies
	for _, other := range c.decisions { // that of r is one of them
		if other.name == image.ID.Name && other.at >= r.began {
			copies = min(copies, other.conf.config.Images[image.ID.Name].Copies)
			for one := range other.relayed {
				count(one.key, one.content)
			}
		}
	}
	for _, keys := range left {
		most = max(most, len(keys))
	}
	ready := r.key.ID == image.ID && s.File != "" && s.Owned && !s.Changed && s.Failure == ""
	switch {
	case r.key.ID != image.ID && s.File == "": // a partial file, which nobody can use
	case r.losesNothing(s):
	case (most == 0 || !honest) && copies > 0:
		c.violation("S2", "%s is deleted, and %s is ready nowhere else", r.key, image.ID)
	case ready && !image.AllDisks && most < copies:
		c.violation("S2", "%s is deleted, and %d copies are left of %d", r.key, most, copies)
	}
}

// hasBytes reports whether the folder has, or had, more than a record.
func (c *Copy) hasBytes() bool {
	return c.File != "" || c.Partial > 0 || c.Recorded != "" || c.Users > 0 ||
		!c.VerifiedAt.IsZero() || !c.DamagedAt.IsZero() || !c.Usage.LastUsed.IsZero()
}
