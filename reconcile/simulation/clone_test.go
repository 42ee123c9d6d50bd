package simulation

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// declareClone declares a clone of a declared image.
func (c *cluster) declareClone() {
	c.declare(c.editedConfig(func(config *schema.Config) {
		name := pick(c.rng, plantest.ImageNames[1:]...)
		if _, declared := config.Images[name]; declared {
			return
		}
		if source, ok := c.randomClone(*config, name); ok {
			config.Images[name] = c.imageWithSource(*config, name, source)
		}
	}))
}

// clones returns the names of the declared clones.
func (c *cluster) clones() []string {
	return slices.DeleteFunc(slices.Clone(plantest.ImageNames), func(name string) bool {
		return c.latest().config.Images[name].Source.Clone == nil
	})
}

// damageClones damages all copies of a clone, so that it has to be cloned again. At the same time
// the copies of its source may be damaged or conflict.
func (c *cluster) damageClones() {
	clones := c.clones()
	if len(clones) == 0 {
		return
	}
	name := pick(c.rng, clones...)
	source := c.latest().config.Images[c.latest().config.Images[name].Source.Clone.BackingImage]
	switch c.IntN(4) {
	case 0:
		c.addDifferentFile(source)
	case 1:
		for _, key := range c.readyCopies(c.latest().config, source) {
			c.recordLoss(key, c.copyAt(key))
			c.copyAt(key).File = "rotten"
			c.logf("", "%s is damaged, which nobody has detected", key)
		}
	}
	c.after(c.between(0, 2*time.Minute), func() { c.unlessHealed(func() { c.damageCopies(name) }) })
}

// addDifferentFile adds a file whose bytes differ from those of the ready copies, for an image
// without a declared checksum.
func (c *cluster) addDifferentFile(image schema.Image) {
	ref := pick(c.rng, c.diskRefs()...)
	if d := c.disks[ref]; image.Checksum.IsZero() && d.Attached && d.Copies[image.ID] == nil && d.Free() > gib {
		s := d.Folder(image.ID)
		s.File, c.history(s).ownedAt = pick(c.rng, plantest.Letters...), c.now
		c.logf("", "a file with other bytes is added as %s on %s", image.ID, ref)
	}
}

// damageCopies damages all copies of an image, and marks them as failed.
func (c *cluster) damageCopies(name string) {
	image := c.latest().config.Images[name]
	for _, key := range c.readyCopies(c.latest().config, image) {
		s, m := c.copyAt(key), c.nodes[key.Disk.Node]
		if c.deletionOf(key) != nil || !m.up {
			continue
		}
		c.recordLoss(key, s)
		s.File = "rotten"
		m.markDamaged(s)
		c.logf("", "%s is found damaged", key)
		m.requestRound()
	}
}

// damageClonesOf damages the copies of all clones of an image.
func (c *cluster) damageClonesOf(name string) {
	for _, clone := range c.clones() {
		if c.latest().config.Images[clone].Source.Clone.BackingImage == name {
			c.damageCopies(clone)
		}
	}
}
