package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Pairs of events that would hardly ever meet by chance. The simulation makes them meet, and counts
// how often they do.
const (
	pairWithdrawals = "withdrawal against withdrawal"
	pairAttach      = "volume attach against delete"
	pairReturn      = "takeover against return"
	pairRevert      = "revert against skew"
	pairSuspend     = "suspension against withdrawal"
	pairSeed        = "transfer against an older generation" // it reads chunks of that
	pairKept        = "older generation kept at the end"
	pairNeed        = "copy created because a replica needs it"
	pairVanished    = "replica vanishes while its copy is created"
)

var allPairs = []string{pairWithdrawals, pairAttach, pairReturn, pairRevert, pairSuspend, pairSeed, pairKept, pairNeed, pairVanished}

// countReturn counts the return of a node with a copy or a partial file of an image, while another
// node creates the first copy of this image.
func (c *cluster) countReturn(m *node) {
	for _, name := range c.names {
		other := c.nodes[name]
		if other == m || !other.up {
			continue
		}
		for key, w := range other.jobs {
			if !w.action.Op.IsFirstCopy() {
				continue
			}
			for _, ref := range c.diskRefs() {
				if s := c.copyAt(ident.CopyRef{Disk: ref, ID: key.ID}); ref.Node == m.name && s != nil && (s.Partial > 0 || s.File != "") {
					c.pairs[pairReturn]++
				}
			}
		}
	}
}

// countSkew counts a decision to delete a copy while the latest configuration is a return to an
// earlier one, and some node still applies another one.
func (c *cluster) countSkew(*deletion) {
	if !c.latest().revert {
		return
	}
	for _, m := range c.nodes {
		if m.up && m.applied != nil && m.applied.digest != c.latest().digest {
			c.pairs[pairRevert]++
			return
		}
	}
}

// injectDuringDeletion causes a fault or a change in the seconds after a withdrawal, in which the
// deletion is most sensitive.
func (c *cluster) injectDuringDeletion(r *deletion) {
	if c.racing == r.key.ID.Name && c.withdrawnByTwo(r) {
		c.racing = ""
		c.damageAllButTwo(r.key)
	}
	if c.healed {
		return
	}
	if c.suspensions.oneIn(10) {
		c.after(time.Duration(c.suspensions.IntN(2000))*time.Millisecond, func() { c.unlessHealed(func() { c.suspendEverywhere(r.key.ID.Name) }) })
	}
	if c.withdrawnByTwo(r) && c.oneIn(3) {
		c.damageAllButTwo(r.key)
		return
	}
	soon := func() time.Duration { return c.between(0, 2*time.Second) }
	switch c.IntN(13) {
	case 0, 1, 2:
		for _, name := range c.names {
			if c.oneIn(2) {
				c.after(soon(), c.nodes[name].requestRound)
			}
		}
	case 3:
		c.after(soon(), func() { c.attach(r.key) })
	case 4:
		if len(c.declarations) > 1 {
			before := c.declarations[len(c.declarations)-2].config
			c.after(soon(), func() { c.declare(before) })
		}
	case 5:
		other := c.nodes[pick(c.rng, c.names...)]
		c.after(soon(), func() { c.crashAndRestart(other) })
	case 6:
		c.after(soon(), func() { c.cutLink(r.node.name, pick(c.rng, c.names...)) })
	case 7:
		if key, ok := c.randomCopy(func(key ident.CopyRef, s *Copy) bool { return key.ID.Name == r.key.ID.Name && s.Ready() }); ok {
			c.after(soon(), func() { c.attach(key) })
		}
	case 10:
		c.after(soon(), func() { c.damageClonesOf(r.key.ID.Name) })
	case 8, 9:
		c.damageAllButTwo(r.key)
	}
}

// withdrawnByTwo reports whether another node deletes a copy of the same image at the same time.
func (c *cluster) withdrawnByTwo(r *deletion) bool {
	return slices.ContainsFunc(c.deletions, func(other *deletion) bool {
		return other.key.ID.Name == r.key.ID.Name && other.node != r.node
	})
}

// suspendEverywhere declares the suspension of an image. It arrives at all nodes at once.
func (c *cluster) suspendEverywhere(name string) {
	config := c.latest().config
	if image, declared := config.Images[name]; declared {
		config.Images = maps.Clone(config.Images)
		image.Suspend = &schema.Suspension{Reason: "at once"}
		config.Images[name] = image
	} else {
		config.Settings.Suspend = &schema.Suspension{Reason: "at once"}
	}
	d := &declaration{config: config, digest: c.configDigest(config), number: len(c.declarations)}
	c.declarations = append(c.declarations, d)
	c.logf("", "%s is suspended, configuration %d, digest %s", name, d.number, d.digest)
	for _, node := range c.names {
		c.nodes[node].receive(d)
	}
}

// damageAllButTwo damages or deletes all copies of an image except a withdrawn one and one other: one
// that another node has withdrawn at the same time, if there is one. Otherwise the node of the other
// copy plans at once, in most cases before it receives the new state of the damaged copies: so it
// may withdraw its copy too.
func (c *cluster) damageAllButTwo(withdrawn ident.CopyRef) {
	var others []ident.CopyRef
	kept := -1
	for _, ref := range c.diskRefs() {
		for _, id := range c.disks[ref].IDs() {
			if key := (ident.CopyRef{Disk: ref, ID: id}); id.Name == withdrawn.ID.Name && key != withdrawn && c.copyAt(key).Ready() {
				if ref.Node != withdrawn.Disk.Node && c.deletionOf(key) != nil {
					kept = len(others)
				}
				others = append(others, key)
			}
		}
	}
	if len(others) < 2 {
		return
	}
	if kept < 0 {
		kept = c.IntN(len(others))
	}
	for i, key := range others {
		wait := c.between(0, 50*time.Millisecond)
		if i != kept {
			c.recordLoss(key, c.copyAt(key))
			if c.oneIn(2) {
				c.copyAt(key).Changed = true
			} else {
				c.copyAt(key).File = ""
			}
			wait = c.between(0, time.Second)
		}
		c.after(wait, c.nodes[key.Disk.Node].requestRound)
	}
	c.logf("", "all copies of %s except %s and %s are damaged or deleted", withdrawn.ID.Name, withdrawn, others[kept])
}

// raceDeletions makes two nodes withdraw copies of the same image at the same time, in a cluster
// without other faults: one of three copies remains desired, and is damaged at the second
// withdrawal. So each of the two could count on the copy of the other one.
func (c *cluster) raceDeletions() {
	name, found := "", false
	for _, one := range slices.Sorted(maps.Keys(c.latest().config.Images)) {
		image := c.latest().config.Images[one]
		image.Disks = nil
		if len(c.disksForNewCopy(image, c.rankedDisks(c.latest(), image))) >= 3 {
			name, found = one, true
		}
	}
	if !found {
		return
	}
	declare := func(copies int) {
		c.declare(c.editedConfig(func(config *schema.Config) {
			image := config.Images[name]
			image.Copies, image.AllDisks, image.Disks = copies, false, nil
			config.Images[name] = image
			config.Settings.CleanupWaitInterval = 0
		}))
	}
	c.quick = true
	declare(3)
	c.runUntil(c.now + 10*time.Minute)
	c.racing = name
	declare(1)
	c.runUntil(c.now + 2*time.Minute)
}

// unmatchAllDisks declares selectors that match no disk, and no clean-up interval. No copy may be
// deleted then.
func (c *cluster) unmatchAllDisks() {
	c.quick = true
	c.declare(c.editedConfig(func(config *schema.Config) {
		for name, image := range config.Images {
			image.NodeSelector, image.Disks = []string{"unused tag"}, nil
			config.Images[name] = image
		}
		config.Settings.CleanupWaitInterval = 0
	}))
	c.runUntil(c.now + 2*time.Minute)
}
