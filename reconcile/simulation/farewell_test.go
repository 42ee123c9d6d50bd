package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// farewell takes an image out of the configuration of a cluster at rest, where no interval
// and no limit keeps its copies: they go, but not at the first look without it. In the
// storm before, somebody is hardly ever so quick.
func (c *cluster) farewell() {
	names := slices.Sorted(maps.Keys(c.head().config.Images))
	if len(names) == 0 {
		return
	}
	name := pick1(c.dice, names...)
	c.quick = true
	c.declare(c.edited(func(config *schema.Config) {
		delete(config.Images, name)
		config.Settings.CleanupWaitInterval, config.Settings.PruneLimit = 0, schema.PrunePercent(100)
	}))
	c.until(c.now + 10*time.Minute)
	if len(c.found) == 0 {
		c.stays(name)
	}
}

// stays holds what is still there of an image that left: what is used somewhere, what is
// not ours, and what is on a disk that is not declared.
func (c *cluster) stays(name string) {
	for _, ref := range c.places() {
		for _, id := range c.drives[ref].ids() {
			s := c.drives[ref].slots[id]
			if id.Name == name && s.users > 0 {
				return
			}
		}
	}
	for _, ref := range c.places() {
		for _, id := range c.drives[ref].ids() {
			_, declared := c.head().config.Nodes[ref.Node].Disks[ref.Disk]
			if s := c.drives[ref].slots[id]; declared && id.Name == name && s.owned {
				c.broke("rest", "%s is there 10 minutes after it left the configuration", plan.CopyRef{Disk: ref, ID: id})
			}
		}
	}
}
