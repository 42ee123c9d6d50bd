package simulation

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// cloneSome declares a clone of something that is declared.
func (c *cluster) cloneSome() {
	c.declare(c.edited(func(config *schema.Config) {
		name := pick1(c.dice, plantest.ImageNames[1:]...)
		if _, declared := config.Images[name]; declared {
			return
		}
		if source, ok := c.clone(*config, name); ok {
			config.Images[name] = c.imageFrom(*config, name, source)
		}
	}))
}

// clones are the names of declared clones.
func (c *cluster) clones() []string {
	return slices.DeleteFunc(slices.Clone(plantest.ImageNames), func(name string) bool {
		return c.head().config.Images[name].Source.Clone == nil
	})
}

// troubleClones spoils all copies of a clone, so that it has to be made again, and lets
// its source be in trouble too.
func (c *cluster) troubleClones() {
	clones := c.clones()
	if len(clones) == 0 {
		return
	}
	name := pick1(c.dice, clones...)
	source := c.head().config.Images[c.head().config.Images[name].Source.Clone.BackingImage]
	switch c.IntN(4) {
	case 0:
		c.dispute(source)
	case 1:
		for _, key := range c.soundOf(c.head().config, source) {
			c.slot(key).letter = "rotten"
			c.tell("", "%s rots", key)
		}
	}
	c.after(c.between(0, 2*time.Minute), func() { c.unlessCalm(func() { c.spoil(name) }) })
}

// dispute leaves a file of an image without a checksum that is not what it was before.
func (c *cluster) dispute(image schema.Image) {
	ref := pick1(c.dice, c.places()...)
	if d := c.drives[ref]; image.Checksum.IsZero() && d.there && d.slots[image.ID] == nil && d.free() > gib {
		s := d.slot(image.ID)
		s.letter, s.born = pick1(c.dice, plantest.Letters...), c.now
		c.tell("", "somebody leaves another file as %s on %s", image.ID, ref)
	}
}

// spoil lets all copies of an image be found damaged.
func (c *cluster) spoil(name string) {
	image := c.head().config.Images[name]
	for _, key := range c.soundOf(c.head().config, image) {
		s, m := c.slot(key), c.nodes[key.Disk.Node]
		if c.removing(key) != nil || !m.up {
			continue
		}
		c.lose(key, s)
		s.letter = "rotten"
		m.damaged(s)
		c.tell("", "%s is found damaged", key)
		m.kick()
	}
}

// spoilClonesOf spoils the clones of an image.
func (c *cluster) spoilClonesOf(name string) {
	for _, clone := range c.clones() {
		if c.head().config.Images[clone].Source.Clone.BackingImage == name {
			c.spoil(clone)
		}
	}
}
