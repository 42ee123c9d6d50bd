package simulation

import (
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/configdir"
)

// checkDecision holds the decision against the world.
func (r *deletion) checkDecision(o plan.Observed) {
	m, c := r.node, r.c
	r.conf, r.phase = m.applied, "decided"
	c.countSkew(r)
	if m.applied != nil {
		c.decisions = append(c.decisions, decision{c.now, r.key.ID.Name, m.applied})
	}
	if _, declared := r.conf.config.Nodes[m.name]; !declared || m.appliedBroken {
		c.violation("S6", "%s goes while the configuration is broken", r.key)
	}
	if plantest.IsSuspended(r.conf.config, r.key.ID.Name, o.Now) {
		c.violation("suspend", "%s goes, and it is suspended", r.key)
	}
	r.checkConflict(o)
	s := c.copyAt(r.key)
	if s == nil {
		return
	}
	image, declared := r.conf.config.Images[r.key.ID.Name]
	evicted := r.work.action.Op == plan.Evict
	if evicted && !(declared && isEvicted(r.conf.config, r.key.Disk)) {
		c.violation("S5", "%s is evicted, which nobody asked for", r.key)
	}
	if declared && r.key.ID != image.ID && s.File == "" {
		return // a part of an older generation: no image has less by it
	}
	if !evicted && !m.requestedCleanups[r.key] {
		r.checkInterval(s)
	}
	if declared {
		r.checkEnough(image, s)
	} else {
		r.checkOrphan()
	}
}

// checkInterval holds a clean-up against the clock that nobody sets.
func (r *deletion) checkInterval(s *Copy) {
	wait := r.conf.config.Settings.CleanupWaitInterval
	if wait == 0 || r.c.history(s).excused {
		return
	}
	now := r.c.now
	if r.c.history(s).surplusAt == 0 || now-r.c.history(s).surplusAt < wait {
		r.c.violation("S4", "%s goes %s after it was first unwanted; the interval is %s", r.key, now-r.c.history(s).surplusAt, wait)
	}
	if r.c.history(s).usedAt != 0 && now-r.c.history(s).usedAt < wait {
		r.c.violation("S4", "%s goes %s after it was used; the interval is %s", r.key, now-r.c.history(s).usedAt, wait)
	}
}

// checkEnough holds the removal of a copy of a declared image against the copies that stood
// at any moment since the withdrawal, and against those that stood when their nodes
// answered.
func (r *deletion) checkEnough(image schema.Image, s *Copy) {
	ranked := r.c.rankedDisks(r.conf, image)
	_, enough := copyCounts(image, len(ranked))
	if len(ranked) == 0 {
		r.c.violation("S4", "%s goes, and no disk is ranked", r.key)
		return
	}
	rule := ruleOf(r.work.action.Op)
	r.addReadyOn(r.node, r.conf.digest, r.readyDuring)
	if n := r.mostWithSameBytes(image, s, ranked, r.readyDuring); n < enough {
		r.c.violation(rule, "%s goes, and %d copies stand where they should be; enough are %d", r.key, n, enough)
	}
	if n := r.mostWithSameBytes(image, s, ranked, r.readyAtResponse); n < enough && !*clusterWorld {
		r.c.violation(rule, "%s goes, and %d copies stood where they should be when it was answered; enough are %d", r.key, n, enough)
	}
}

// mostWithSameBytes is how many of the copies that stand count, if they have the same bytes.
func (r *deletion) mostWithSameBytes(image schema.Image, s *Copy, ranked []schema.DiskRef, stand map[readyCopy]bool) int {
	of := map[string]int{}
	for one := range stand {
		ref := one.key.Disk
		named := slices.Contains(image.Disks, ref) && !isEvicted(r.conf.config, ref)
		right := one.key.ID == image.ID && one.key != r.key && one.config == r.conf.digest && r.hasRightBytes(image, s, one.letter)
		if right && (named || slices.Contains(ranked, ref)) {
			of[one.letter]++
		}
	}
	n := 0
	for _, copies := range of {
		n = max(n, copies)
	}
	return n
}

func ruleOf(kind plan.Op) string {
	if kind == plan.Evict {
		return "S5"
	}
	return "S4"
}

func (r *deletion) hasRightBytes(image schema.Image, s *Copy, letter string) bool {
	switch {
	case !image.Checksum.IsZero():
		return r.c.digest(letter) == image.Checksum
	case r.key.ID == image.ID && s.File != "" && s.Failure == "" && !s.Changed:
		return letter == s.Recorded
	}
	return true
}

// checkOrphan holds the removal of a copy of an image that is not declared any more.
func (r *deletion) checkOrphan() {
	c, config := r.c, r.conf.config
	gone := map[string]bool{}
	confirmed := true
	for _, name := range slices.Sorted(maps.Keys(config.Nodes)) {
		if name != r.node.name && !(r.reachable[name] && (r.responded[name] || *clusterWorld)) {
			c.violation("S3", "%s goes, and %s did not say whether it is used there", r.key, name)
		}
		for d := range config.Nodes[name].Disks {
			one := c.disks[schema.DiskRef{Node: name, Disk: d}]
			if one == nil || !one.Attached {
				continue
			}
			for id, s := range one.Copies {
				if id.Name == r.key.ID.Name && s.Users > 0 && c.history(s).usedFrom < r.began {
					c.violation("S6", "%s goes, which is used on %s/%s", r.key, name, d)
				}
				if _, declared := config.Images[id.Name]; !declared && s.Owned && c.history(s).ownedAt < r.began {
					gone[id.Name] = true
					confirmed = confirmed && slices.Contains(config.Settings.PruneConfirmed, id)
				}
			}
		}
	}
	if config.Settings.PruneLimit.Exceeded(len(config.Images), len(gone)) && !confirmed {
		c.violation("S6", "%s goes; %d images of %d left, the limit is %s", r.key, len(gone), len(gone)+len(config.Images), config.Settings.PruneLimit)
	}
	if since := c.now - r.node.removedAt[r.key.ID.Name]; since < configdir.RemovalDelay {
		c.violation("S6", "%s goes %s after it left the configuration", r.key, since)
	}
}

// checkUnlink holds the deletion itself against the world. What others than we took away
// since the withdrawal counts as if it were there.
func (r *deletion) checkUnlink(s *Copy) {
	c := r.c
	if s.Users > 0 {
		c.violation("S1", "%s is deleted, and it is in use", r.key)
	}
	image, declared := r.conf.config.Images[r.key.ID.Name]
	if !declared {
		return
	}
	left := map[string]map[plan.CopyRef]bool{}
	count := func(key plan.CopyRef, letter string) {
		if key.ID != image.ID || key == r.key || !r.hasRightBytes(image, s, letter) {
			return
		}
		if left[letter] == nil {
			left[letter] = map[plan.CopyRef]bool{}
		}
		left[letter][key] = true
	}
	for ref, d := range c.disks {
		if one := d.Copies[image.ID]; d.Attached && one.Ready() {
			count(plan.CopyRef{Disk: ref, ID: image.ID}, one.Recorded)
		}
	}
	for _, l := range c.losses {
		if l.at >= r.began {
			count(l.key, l.digest)
		}
	}
	most, copies := 0, image.Copies
	for _, keys := range left {
		most = max(most, len(keys))
	}
	for _, other := range c.decisions {
		if other.name == image.ID.Name && other.at >= r.began {
			copies = min(copies, other.conf.config.Images[image.ID.Name].Copies)
		}
	}
	ready := r.key.ID == image.ID && s.File != "" && s.Owned && !s.Changed && s.Failure == ""
	switch {
	case r.key.ID != image.ID && s.File == "": // a part, of which nobody has anything
	case most == 0 && copies > 0:
		c.violation("S2", "%s is deleted, and %s is ready nowhere else", r.key, image.ID)
	case ready && !image.AllDisks && most < copies:
		c.violation("S2", "%s is deleted, and %d copies are left of %d", r.key, most, copies)
	}
}
