package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const (
	convergeLimit  = 3 * time.Hour
	convergeRounds = 600 // of one node, at most, until it has nothing to do
)

// converge lets the cluster go on until no node has anything left to do, and holds
// what is there then against what is declared.
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
		if c.now-began < convergeLimit/2 && c.resolveConflicts(&decided) { // what was under way when the faults ended
			c.declare(decided)
		}
		if why := c.pendingWork(); why != "" || c.latest().number != head {
			quiet, head = -1, c.latest().number
			if c.now-began > convergeLimit {
				c.violation("rest", "it does not come to rest: %s", why)
				return
			}
		}
	}
	for name, m := range c.nodes {
		if n := m.rounds - rounds[name]; n > convergeRounds {
			c.violation("rest", "%s needed %d rounds", name, n)
		}
	}
	c.checkConverged(began)
}

// pendingWork says who has something left to do, or waits for time to pass.
func (c *cluster) pendingWork() string {
	for _, name := range c.names {
		m := c.nodes[name]
		if len(m.jobs) > 0 {
			return name + " has work under way"
		}
		for _, a := range m.plan.Actions {
			if !a.Idle() || !a.Until.IsZero() {
				return name + ": " + string(a.Op) + " " + a.CopyRef().String() + ": " + a.Text
			}
		}
	}
	return ""
}

// checkConverged compares the world with what is declared.
func (c *cluster) checkConverged(began time.Duration) {
	head := c.latest()
	always := c.overPruneLimit() || head.config.Settings.ConcurrentReplenishPerNodeLimit == 0
	lacks, any := map[string]bool{}, false
	for _, name := range slices.Sorted(maps.Keys(head.config.Images)) {
		lacks[name] = c.checkImage(head.config.Images[name])
		any = any || lacks[name]
	}
	for _, name := range c.names {
		for _, a := range c.nodes[name].plan.Actions {
			_, declared := head.config.Images[a.Image]
			if lacking := always || lacks[a.Image] || !declared && any; a.Op == plan.Blocked && !lacking {
				c.violation("rest", "%s is blocked on what the world has: %s: %s", name, a.CopyRef(), a.Text)
			}
		}
	}
	c.checkLeftovers()
	c.checkUpstreamReads(began)
}

// checkImage looks at one image, and reports whether the world lacks something that
// it needs.
func (c *cluster) checkImage(image schema.Image) (lacks bool) {
	head := c.latest()
	ranked := c.rankedDisks(head, image)
	copies, _ := copyCounts(image, len(ranked))
	can, have := 0, 0
	for _, ref := range ranked {
		node := head.config.Nodes[ref.Node]
		s := c.copyAt(plan.CopyRef{Disk: ref, ID: image.ID})
		sound := s.Ready() && (image.Checksum.IsZero() || c.digest(s.Recorded) == image.Checksum)
		if sound {
			have++
		}
		if sound || node.AllowScheduling && node.Disks[ref.Disk].AllowScheduling {
			can++
		}
	}
	if head.config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		first := 1 // is still to be made, unless there is one anywhere
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
		c.violation("rest", "%s has %d copies where they should be, of %d that can be", image.ID, have, want)
	}
	named := slices.ContainsFunc(image.Disks, func(ref schema.DiskRef) bool { return !slices.Contains(ranked, ref) })
	return can < copies || len(ranked) == 0 || named
}

// disksForNewCopy are the disks that take a new copy of an image.
func (c *cluster) disksForNewCopy(image schema.Image, ranked []schema.DiskRef) []schema.DiskRef {
	config := c.latest().config
	refs := slices.Clone(ranked)
	for _, ref := range image.Disks {
		if !isEvicted(config, ref) && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return slices.DeleteFunc(refs, func(ref schema.DiskRef) bool {
		node := config.Nodes[ref.Node]
		return !node.AllowScheduling || !node.Disks[ref.Disk].AllowScheduling
	})
}

// checkReported holds what is told of an image that cannot be made: somebody has to say so, and
// nobody may wait for what somebody brought.
func (c *cluster) checkReported(image schema.Image, can int) {
	if c.uploaded[image.ID.Name] && image.Source.Upload != nil && can > 0 {
		c.violation("rest", "%s could not be uploaded", image.ID)
	}
	for _, name := range c.names {
		for _, a := range c.nodes[name].plan.Actions {
			if a.CopyRef().ID == image.ID {
				return
			}
		}
	}
	c.violation("rest", "%s cannot be made, and nobody says so", image.ID)
}

// isReadyAnywhere reports whether there is a good copy on any disk that is in its place.
func (c *cluster) isReadyAnywhere(id disk.ID) bool {
	return slices.ContainsFunc(c.diskRefs(), func(ref schema.DiskRef) bool { return c.copyAt(plan.CopyRef{Disk: ref, ID: id}).Ready() })
}

// overPruneLimit reports whether so many images left that they are held.
func (c *cluster) overPruneLimit() bool {
	config := c.latest().config
	gone, confirmed := map[string]bool{}, true
	for _, d := range c.disks {
		for id, s := range d.Copies {
			if _, declared := config.Images[id.Name]; !declared && s.Owned {
				gone[id.Name] = true
				confirmed = confirmed && slices.Contains(config.Settings.PruneConfirmed, id)
			}
		}
	}
	return config.Settings.PruneLimit.Exceeded(len(config.Images), len(gone)) && !confirmed
}

// checkLeftovers looks for copies that should be gone.
func (c *cluster) checkLeftovers() {
	config := c.latest().config
	held := c.overPruneLimit()
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
			case s.PartialSource == disk.PartFromUpload && s.File == "" && image.ID == id && filled && slices.Contains(ranked, ref) && slices.Contains(c.disksForNewCopy(image, ranked), ref):
				c.violation("rest", "a part of an upload is left on %s", plan.CopyRef{Disk: ref, ID: id})
			case !s.Owned || s.Users > 0:
			case !declared && !held && !c.isUsedAnywhere(id.Name) && c.allDisksPresent():
				c.violation("rest", "%s is left on %s", id, ref)
			case image.ID != id && enough && len(ranked) > 0 && !image.AllDisks:
				c.violation("rest", "%s, an older generation, is left on %s", id, ref)
			}
		}
	}
}

func (c *cluster) isUsedAnywhere(name string) bool {
	for _, d := range c.disks {
		for id, s := range d.Copies {
			if id.Name == name && s.Users > 0 {
				return true
			}
		}
	}
	return false
}

// allDisksPresent reports whether every declared node has every declared disk.
func (c *cluster) allDisksPresent() bool {
	for name, node := range c.latest().config.Nodes {
		for d := range node.Disks {
			if one := c.disks[schema.DiskRef{Node: name, Disk: d}]; one == nil || !one.Attached {
				return false
			}
		}
	}
	return true
}

func (c *cluster) countReady(image schema.Image, refs []schema.DiskRef) int {
	n := 0
	for _, ref := range refs {
		if s := c.copyAt(plan.CopyRef{Disk: ref, ID: image.ID}); s.Ready() {
			n++
		}
	}
	return n
}

// checkUpstreamReads holds the reads of the origin against what was needed, when all faults
// were over, every node had heard of it, and all had the same configuration, each with
// a minute for the work that it had begun before.
func (c *cluster) checkUpstreamReads(began time.Duration) {
	began += 3 * time.Minute
	for _, m := range c.nodes {
		began = max(began, m.appliedAt+time.Minute)
	}
	begun := map[disk.ID]int{}
	for _, r := range c.reads {
		if r.at > began && !r.done {
			begun[r.id]++
		}
	}
	for id, n := range begun {
		if n > 1 {
			c.violation("rest", "the origin was read %d times for %s", n, id)
		}
	}
}

// removeImageAtEnd takes an image out of the configuration of a cluster at rest, where no interval
// and no limit keeps its copies: they go, but not at the first look without it. In the
// storm before, somebody is hardly ever so quick.
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

// checkRemovedImage holds what is still there of an image that left: what is used somewhere, what is
// not ours, and what is on a disk that is not declared.
func (c *cluster) checkRemovedImage(name string) {
	for _, ref := range c.diskRefs() {
		for _, id := range c.disks[ref].IDs() {
			s := c.disks[ref].Copies[id]
			if id.Name == name && s.Users > 0 {
				return
			}
		}
	}
	for _, ref := range c.diskRefs() {
		for _, id := range c.disks[ref].IDs() {
			_, declared := c.latest().config.Nodes[ref.Node].Disks[ref.Disk]
			if s := c.disks[ref].Copies[id]; declared && id.Name == name && s.Owned {
				c.violation("rest", "%s is there 10 minutes after it left the configuration", plan.CopyRef{Disk: ref, ID: id})
			}
		}
	}
}
