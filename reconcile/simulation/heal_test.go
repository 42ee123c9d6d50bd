package simulation

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// heal ends all faults, so that the cluster can converge. If fit is true, it also removes from the
// declaration everything that prevents convergence, such as missing nodes and a replenish limit of
// 0.
func (c *cluster) heal(fit bool) {
	c.healed, c.healedAt = true, c.now
	c.logf("", "all faults end")
	for _, w := range c.links {
		w.down, w.slow = false, 0
	}
	clear(c.sendsWrongBytes)
	c.offline = false
	for _, ref := range c.diskRefs() {
		d := c.disks[ref]
		if !d.Attached && c.nodes[ref.Node].liar == nil {
			d.reattach(true)
		}
		d.ReplicasAway = false
		d.UsersUnknown, d.ReadOnly, d.FailsWrites, d.OtherFiles = false, false, false, -100*gib
		c.removeReplicas(ref, fit)
		for _, id := range d.IDs() {
			s := d.Copies[id]
			if fit || c.oneIn(2) {
				s.Users = 0
				c.lastNeed[ident.CopyRef{Disk: ref, ID: id}] = c.now
			}
			if s.Ready() && s.File != s.Recorded { // a scrub finds it
				c.recordLoss(ident.CopyRef{Disk: ref, ID: id}, s)
				c.nodes[ref.Node].markDamaged(s)
			}
		}
	}
	config := c.editedConfig(func(config *schema.Config) { c.fitConfig(config, fit) })
	_ = c.resolveConflicts(&config)
	for _, name := range c.names {
		m := c.nodes[name]
		m.start()
		if !c.skewed[name] {
			m.repairDir()
		}
	}
	c.declare(config)
	for _, name := range plantest.ImageNames {
		if config.Images[name].Source.Upload != nil && c.oneIn(2) {
			c.keepUploading(name)
		}
	}
}

// encrypts reports whether each first copy of an image has other bytes.
func encrypts(image schema.Image) bool {
	return image.Source.Clone != nil && image.Source.Clone.Encryption == schema.Encrypt
}

func (c *cluster) fitConfig(config *schema.Config, fit bool) {
	if fit {
		config.Settings.ConcurrentReplenishPerNodeLimit = 5
		for name, node := range c.declarations[0].config.Nodes {
			node.Tags = config.Nodes[name].Tags
			config.Nodes[name] = node
		}
		if len(config.Images) == 0 {
			c.addImage(config)
		}
		for _, ref := range c.diskRefs() {
			for _, id := range c.disks[ref].IDs() {
				if _, declared := config.Images[id.Name]; !declared && !slices.Contains(config.Settings.PruneConfirmed, id) {
					config.Settings.PruneConfirmed = append(config.Settings.PruneConfirmed, id)
				}
			}
		}
	}
}

// resolveConflicts does what an operator must do if copies of an image differ, or if the upstream has
// other bytes than the declared ones. It reports whether it changed anything.
func (c *cluster) resolveConflicts(config *schema.Config) (did bool) {
	for _, name := range plantest.ImageNames {
		image, declared := config.Images[name]
		if !declared {
			continue
		}
		differ := map[string]bool{}
		for _, ref := range c.diskRefs() {
			if s := c.disks[ref].Copies[image.ID]; s != nil && s.File != "" {
				differ[s.File] = true
				if s.Owned {
					differ[s.Recorded] = true
				}
			}
		}
		switch {
		case !image.Checksum.IsZero():
			if of := image.Source.Clone; of == nil {
				c.served[upstream(image)] = c.contentOf(image.Checksum)
			} else if c.expectedBytes(*config, image) != c.contentOf(image.Checksum) && !c.isReadyWith(*config, image.Checksum) {
				image.Checksum = ident.Digest{} // these bytes exist nowhere
				image.ID.UUID = schema.UUID(name, image.Checksum, image.Source)
				config.Images[name] = image
				did = true
			}
			did = c.retryFinalFailures(image.ID) || did
		case len(differ) > 1 && encrypts(image):
			image.ID.UUID = fmt.Sprintf("%08x", c.Uint32())
			config.Images[name] = image
			did = true
		case len(differ) > 1:
			content := c.served[upstream(image)]
			if have := c.readyCopies(*config, image); len(have) > 0 && image.Source.Download == nil {
				content = c.copyAt(have[0]).Recorded
			}
			if content == "" { // a clone without a ready copy
				for _, ref := range c.diskRefs() {
					delete(c.disks[ref].Copies, image.ID)
				}
				did = true
				break
			}
			if image.Source.Clone == nil {
				c.served[upstream(image)] = content // otherwise nobody could get the declared bytes
			}
			image.Checksum = c.digest(content)
			image.ID.UUID = schema.UUID(name, image.Checksum, image.Source)
			config.Images[name] = image
			did = true
		}
		for _, ref := range c.diskRefs() {
			s := c.disks[ref].Copies[image.ID]
			if s != nil && s.File != "" && !image.Checksum.IsZero() && c.digest(s.File) != image.Checksum && (c.digest(s.Recorded) != image.Checksum || c.users(ident.CopyRef{Disk: ref, ID: image.ID}) > 0) {
				delete(c.disks[ref].Copies, image.ID)
				did = true
			}
		}
	}
	return did
}

// retryFinalFailures requests another attempt for each failure of the image that only another declaration would end. It
// reports whether there is one.
func (c *cluster) retryFinalFailures(id ident.ID) (any bool) {
	for _, name := range c.names {
		m := c.nodes[name]
		for key, t := range m.observed.Failures {
			if !m.up || m.liar != nil || key.ID != id || !t.Final {
				continue
			}
			if any = true; key.Disk.Node == name {
				m.loop.RequestRetry(id.Name, nil, func([]reconcile.Attempt, error) {})
				m.requestRound()
				break
			}
		}
	}
	return any
}
