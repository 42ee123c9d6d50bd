package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const (
	convergeLimit  = 3 * time.Hour
	convergeRounds = 600 // maximum for one node
)

// converge runs the cluster until no node has pending work, and then compares the disks with the
// declaration. It fails if this takes too long or too many rounds.
func (c *cluster) converge() {
	began, head := c.now, c.latest().number
	rounds := map[string]int{}
	for name, m := range c.nodes {
		rounds[name] = m.rounds
	}
	for quiet := 0; quiet < 3; quiet++ {
		c.runUntil(c.now + 4*time.Minute)
		if len(c.violations) > 0 {
			return
		}
		decided := c.editedConfig(func(*schema.Config) {})
		if c.now-began < convergeLimit/2 && c.resolveConflicts(&decided) { // a conflict of jobs that ran when the faults ended
			c.declare(decided)
		}
		if why := c.pendingWork(); why != "" || c.latest().number != head {
			quiet, head = -1, c.latest().number
			if c.now-began > convergeLimit {
				c.violation("converge", "the cluster does not converge: %s", why)
				return
			}
		}
	}
	for name, m := range c.nodes {
		if n := m.rounds - rounds[name]; n > convergeRounds {
			c.violation("converge", "%s needed %d rounds to converge", name, n)
		}
	}
	c.checkConverged(began)
}

// pendingWork returns the first job, action or wait with a deadline that it finds. It returns "" if
// no node has any.
func (c *cluster) pendingWork() string {
	for _, name := range c.names {
		m := c.nodes[name]
		if len(m.jobs) > 0 {
			return name + " has a running job"
		}
		for _, a := range m.plan.Actions {
			if !a.Idle() || !a.Until.IsZero() {
				return name + ": " + string(a.Op) + " " + a.CopyRef().String() + ": " + a.Text
			}
		}
	}
	return ""
}

// checkConverged compares the disks with the declaration.
func (c *cluster) checkConverged(began time.Duration) {
	head := c.latest()
	always := !c.allDisksPresent() || c.overPruneLimit() || head.config.Settings.ConcurrentReplenishPerNodeLimit == 0
	lacks, any := map[string]bool{}, false
	for _, name := range slices.Sorted(maps.Keys(head.config.Images)) {
		lacks[name] = c.checkImage(head.config.Images[name])
		any = any || lacks[name]
	}
	for _, name := range c.names {
		for _, a := range c.nodes[name].plan.Actions {
			_, declared := head.config.Images[a.Image]
			if lacking := always || lacks[a.Image] || !declared && any; a.Op == model.Blocked && !lacking {
				c.violation("converge", "%s is blocked although nothing is missing: %s: %s", name, a.CopyRef(), a.Text)
			}
		}
	}
	c.checkLeftovers()
	c.checkUpstreamReads(began)
}

// checkImage checks the copies of one image. It reports whether the cluster lacks something that the
// image needs, so that a plan may be blocked.
func (c *cluster) checkImage(image schema.Image) (lacks bool) {
	head := c.latest()
	ranked := c.rankedDisks(head, image)
	copies, _ := copyCounts(image, len(ranked))
	can, have := 0, 0
	for _, ref := range ranked {
		node := head.config.Nodes[ref.Node]
		s := c.copyAt(ident.CopyRef{Disk: ref, ID: image.ID})
		sound := s.Ready() && (image.Checksum.IsZero() || c.digest(s.Recorded) == image.Checksum)
		if sound {
			have++
		}
		if sound || node.AllowScheduling && node.Disks[ref.Disk].AllowScheduling {
			can++
		}
	}
	if head.config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		first := 1 // the replenish limit does not apply to the first copy
		if c.isReadyAnywhere(image.ID) {
			first = 0
		}
		can = min(can, max(have, first))
	}
	if !c.obtainable(head.config, image, c.disksForNewCopy(image, ranked)) {
		c.checkReported(image, can)
		return true
	}
	if want := min(copies, can); have < want {
		c.violation("converge", "%s has %d copies on ranked disks; %d are possible", image.ID, have, want)
	}
	c.checkNeedsMet(image)
	named := slices.ContainsFunc(image.Disks, func(ref ident.DiskRef) bool { return !slices.Contains(ranked, ref) })
	return can < copies || len(ranked) == 0 || named
}

// disksForNewCopy returns the disks that accept a new copy of an image.
func (c *cluster) disksForNewCopy(image schema.Image, ranked []ident.DiskRef) []ident.DiskRef {
	config := c.latest().config
	refs := slices.Clone(ranked)
	for _, ref := range image.Disks {
		if !isEvicted(config, ref) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return slices.DeleteFunc(refs, func(ref ident.DiskRef) bool {
		node := config.Nodes[ref.Node]
		return !node.AllowScheduling || !node.Disks[ref.Disk].AllowScheduling
	})
}

// checkReported checks an image that cannot be created: some plan must name it, and an upload that
// was promised must have succeeded.
func (c *cluster) checkReported(image schema.Image, can int) {
	if c.uploaded[image.ID.Name] && image.Source.Upload != nil && can > 0 {
		c.violation("converge", "the upload of %s did not succeed", image.ID)
	}
	for _, name := range c.names {
		for _, a := range c.nodes[name].plan.Actions {
			if a.CopyRef().ID == image.ID {
				return
			}
		}
	}
	c.violation("converge", "%s cannot be created, and no plan names it", image.ID)
}

// isReadyAnywhere reports whether any attached disk has a ready copy.
func (c *cluster) isReadyAnywhere(id ident.ID) bool {
	return slices.ContainsFunc(c.diskRefs(), func(ref ident.DiskRef) bool { return c.copyAt(ident.CopyRef{Disk: ref, ID: id}).Ready() })
}

// overPruneLimit reports whether the prune limit blocks the deletion of orphans.
func (c *cluster) overPruneLimit() bool {
	config := c.latest().config
	gone, confirmed, kept := map[string]bool{}, true, c.keptByUse()
	for _, d := range c.disks {
		for id, s := range d.Copies {
			if _, declared := config.Images[id.Name]; !declared && s.Owned && s.hasBytes() && !kept[id] {
				gone[id.Name] = true
				confirmed = confirmed && slices.Contains(config.Settings.PruneConfirmed, id)
			}
		}
	}
	return config.Settings.PruneLimit.Exceeded(len(config.Images), len(gone)) && !confirmed
}

// checkLeftovers finds copies and partial files that must have been deleted.
func (c *cluster) checkLeftovers() {
	config := c.latest().config
	pruneBlocked := c.overPruneLimit()
	for _, ref := range c.diskRefs() {
		if _, declared := config.Nodes[ref.Node].Disks[ref.Disk]; !declared {
			continue
		}
		for _, id := range c.disks[ref].IDs() {
			s := c.disks[ref].Copies[id]
			image, declared := config.Images[id.Name]
			ranked := c.rankedDisks(c.latest(), image)
			enough := declared && c.countReady(image, ranked) >= max(1, min(image.Copies, len(ranked)))
			filled := enough || config.Settings.ConcurrentReplenishPerNodeLimit > 0
			switch {
			case s.PartialSource == model.PartFromUpload && s.File == "" && image.ID == id && filled && slices.Contains(ranked, ref) && slices.Contains(c.disksForNewCopy(image, ranked), ref):
				c.violation("converge", "a partial upload is left on %s", ident.CopyRef{Disk: ref, ID: id})
			case !s.Owned || c.users(ident.CopyRef{Disk: ref, ID: id}) > 0:
			case image.ID != id && (len(c.needing(ident.CopyRef{Disk: ref, ID: id})) > 0 || !c.allDisksPresent()):
			case !declared && !pruneBlocked && !c.isUsedAnywhere(id.Name):
				c.violation("converge", "%s is left on %s", id, ref)
			case image.ID != id && enough && len(ranked) > 0 && !image.AllDisks && !c.mayStay(image, ident.CopyRef{Disk: ref, ID: id}):
				c.violation("converge", "%s, an older generation, is left on %s", id, ref)
			}
		}
	}
}

func (c *cluster) isUsedAnywhere(name string) bool {
	for ref, d := range c.disks {
		for id := range d.Copies {
			if id.Name == name && c.users(ident.CopyRef{Disk: ref, ID: id}) > 0 {
				return true
			}
		}
	}
	return false
}

// keptByUse returns the generations that the prune limit does not count: those of images with a copy in use, and those that a
// replica on another disk needs.
func (c *cluster) keptByUse() map[ident.ID]bool {
	kept := map[ident.ID]bool{}
	for ref, d := range c.disks {
		for id := range d.Copies {
			kept[id] = kept[id] || c.isUsedAnywhere(id.Name) || len(c.needing(ident.CopyRef{Disk: ref, ID: id})) > 0
		}
	}
	return kept
}

// allDisksPresent reports whether every declared disk is attached.
func (c *cluster) allDisksPresent() bool {
	for name, node := range c.latest().config.Nodes {
		for d := range node.Disks {
			if one := c.disks[ident.DiskRef{Node: name, Disk: d}]; one == nil || !one.Attached {
				return false
			}
		}
	}
	return true
}

func (c *cluster) countReady(image schema.Image, refs []ident.DiskRef) int {
	n := 0
	for _, ref := range refs {
		if s := c.copyAt(ident.CopyRef{Disk: ref, ID: image.ID}); s.Ready() {
			n++
		}
	}
	return n
}

// checkUpstreamReads checks that each image was read from its upstream at most once since the cluster
// was without faults and all nodes had the same configuration. Jobs from before have a minute to end.
func (c *cluster) checkUpstreamReads(began time.Duration) {
	began += 3 * time.Minute
	for _, m := range c.nodes {
		began = max(began, m.appliedAt+time.Minute)
	}
	begun := map[ident.ID]int{}
	for _, r := range c.reads {
		if r.at > began && !r.done {
			begun[r.id]++
		}
	}
	for id, n := range begun {
		if n > 1 {
			c.violation("converge", "the upstream was read %d times for %s", n, id)
		}
	}
}

// removeImageAtEnd removes an image from the configuration of a converged cluster, without a clean-up
// interval and prune limit. Its copies must be deleted, but not before the removal is confirmed.
// During the faults, a deletion is hardly ever so fast that it would break this rule.
func (c *cluster) removeImageAtEnd() {
	names := slices.Sorted(maps.Keys(c.latest().config.Images))
	if len(names) == 0 {
		return
	}
	name := pick(c.rng, names...)
	c.quick = true
	c.declare(c.editedConfig(func(config *schema.Config) {
		delete(config.Images, name)
		config.Settings.CleanupWaitInterval, config.Settings.PruneLimit = 0, schema.PrunePercent(100)
	}))
	c.runUntil(c.now + 10*time.Minute)
	if len(c.violations) == 0 {
		c.checkRemovedImage(name)
	}
}

// checkRemovedImage checks that no copy of a removed image is left, except if one of its copies is in
// use or needed, and except unmanaged copies and copies on disks that are not declared.
func (c *cluster) checkRemovedImage(name string) {
	for _, ref := range c.diskRefs() {
		for _, id := range c.disks[ref].IDs() {
			if id.Name == name && c.users(ident.CopyRef{Disk: ref, ID: id}) > 0 {
				return
			}
		}
	}
	for _, ref := range c.diskRefs() {
		for _, id := range c.disks[ref].IDs() {
			_, declared := c.latest().config.Nodes[ref.Node].Disks[ref.Disk]
			if s := c.disks[ref].Copies[id]; declared && id.Name == name && s.Owned && c.allDisksPresent() && len(c.needing(ident.CopyRef{Disk: ref, ID: id})) == 0 {
				c.violation("converge", "%s exists 10 minutes after its image was removed from the configuration", ident.CopyRef{Disk: ref, ID: id})
			}
		}
	}
}
