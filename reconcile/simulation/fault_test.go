package simulation

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// injectFaults causes one random fault or change, and itself again after a random time. A fault that
// occurs several times in the list is more frequent.
func (c *cluster) injectFaults() {
	c.unlessHealed(func() {
		faults := []func(){
			c.editConfig, c.editConfig, c.editConfig, c.editConfig,
			c.attachRandomVolume, c.attachRandomVolume, c.attachRandomVolume,
			func() { c.crashAndRestart(c.nodes[pick(c.rng, c.names...)]) }, func() { c.crashAndRestart(c.nodes[pick(c.rng, c.names...)]) },
			func() { c.cutLink(pick(c.rng, c.names...), pick(c.rng, c.names...)) }, c.partition, c.slowLink, c.sendWrongBytes,
			c.loseDisk, c.loseDisk, c.swapDisks, c.fillDisk, c.hideUsage, c.failDisk,
			c.corruptSilently, c.corruptVisibly, c.touchFile, c.addUnmanagedFile,
			c.breakConfigs, c.breakConfigs, c.setClock,
			c.upstreamDown, c.upstreamChanges, c.requestRandomCleanup,
			c.moveReplicas, c.uploadRandomly, c.uploadRandomly, c.uploadRandomly,
			c.declareClone, c.damageClones, c.damageClones,
		}
		if c.adverse.skew && c.adversity.oneIn(12) {
			c.skewRandomly()
		}
		pick(c.rng, faults...)()
		wait := c.between(0, 40*time.Second)
		if c.oneIn(6) {
			wait = c.between(0, 6*time.Minute)
		}
		c.after(wait, c.injectFaults)
	})
}

func (c *cluster) unlessHealed(do func()) {
	if !c.healed {
		do()
	}
}

// randomCopy returns a random copy that matches. It fails after a few attempts.
func (c *cluster) randomCopy(which func(ident.CopyRef, *Copy) bool) (ident.CopyRef, bool) {
	places := c.diskRefs()
	for range 8 {
		ref := pick(c.rng, places...)
		d := c.disks[ref]
		ids := d.IDs()
		if !d.Attached || len(ids) == 0 {
			continue
		}
		if key := (ident.CopyRef{Disk: ref, ID: pick(c.rng, ids...)}); which(key, d.Copies[key.ID]) {
			return key, true
		}
	}
	return ident.CopyRef{}, false
}

func hasFile(_ ident.CopyRef, s *Copy) bool { return s.File != "" && !s.Aside }

// crashAndRestart ends the process of a node, and starts it again after a random time.
func (c *cluster) crashAndRestart(m *node) {
	if c.healed {
		return
	}
	m.crash()
	wait := c.between(0, 20*time.Second)
	if c.oneIn(2) {
		wait = c.between(0, 8*time.Minute)
	}
	c.after(wait, m.start)
}

// cutLink cuts the connection between two nodes for a while, in one direction or both.
func (c *cluster) cutLink(a, b string) {
	if c.healed || a == b {
		return
	}
	one, two := c.link(a, b), c.link(b, a)
	one.down = true
	two.down = two.down || c.oneIn(2)
	c.logf("", "the link from %s to %s is cut (the reverse link: %v)", a, b, two.down)
	c.after(c.between(0, 6*time.Minute), func() {
		one.down, two.down = false, false
		c.countReturn(c.nodes[a])
		c.countReturn(c.nodes[b])
	})
}

// partition divides the cluster into two parts. A part may be a single node.
func (c *cluster) partition() {
	side := map[string]bool{pick(c.rng, c.names...): true}
	for _, name := range c.names {
		side[name] = side[name] || c.oneIn(4)
	}
	wait := c.between(0, 8*time.Minute)
	var cut []*link
	for _, a := range c.names {
		for _, b := range c.names {
			if side[a] && !side[b] {
				cut = append(cut, c.link(a, b), c.link(b, a))
			}
		}
	}
	c.logf("", "%v are partitioned from the other nodes", side)
	for _, w := range cut {
		w.down = true
	}
	c.after(wait, func() {
		for _, w := range cut {
			w.down = false
		}
		for _, name := range c.names {
			if side[name] {
				c.countReturn(c.nodes[name])
			}
		}
	})
}

func (c *cluster) slowLink() {
	w := c.link(pick(c.rng, c.names...), pick(c.rng, c.names...))
	w.slow = c.between(0, 20*time.Second)
	c.after(c.between(0, 10*time.Minute), func() { w.slow = 0 })
}

// sendWrongBytes makes a node send wrong bytes to its peers for a while.
func (c *cluster) sendWrongBytes() {
	name := pick(c.rng, c.names...)
	c.sendsWrongBytes[name] = true
	c.after(c.between(0, 10*time.Minute), func() { c.sendsWrongBytes[name] = false })
}

// loseDisk detaches a disk. After a while it is attached again, or replaced by an empty one.
func (c *cluster) loseDisk() {
	ref := pick(c.rng, c.diskRefs()...)
	d := c.disks[ref]
	if !d.Attached {
		return
	}
	c.recordLosses(ref, d)
	d.Attached = false
	c.logf("", "%s is detached", ref)
	empty := c.oneIn(3)
	c.after(c.between(10*time.Second, 8*time.Minute), func() {
		if d.Attached || c.nodes[ref.Node].liar != nil {
			return // heal attached it, or will
		}
		if empty {
			c.diskCount++
			c.disks[ref] = NewDisk(newUUID(c.diskCount), c.library, diskSize)
			d = c.disks[ref]
		}
		d.reattach(c.disks[ref] == d)
		c.logf("", "%s is attached%s", ref, textIf(empty, ", empty"))
	})
}

// reattach attaches a disk. Folders that a deletion had renamed have their names again, as after
// disk.Open.
func (d *Disk) reattach(there bool) {
	d.Attached = there
	for _, s := range d.Copies {
		s.Aside = false
	}
}

// swapDisks swaps two disks. An operator needs at least a minute for that.
func (c *cluster) swapDisks() {
	a, b := pick(c.rng, c.diskRefs()...), pick(c.rng, c.diskRefs()...)
	one, two := c.disks[a], c.disks[b]
	if a == b || !one.Attached || !two.Attached {
		return
	}
	c.recordLosses(a, one)
	c.recordLosses(b, two)
	one.Attached, two.Attached = false, false
	c.logf("", "%s and %s are detached to be swapped", a, b)
	c.after(c.between(time.Minute, 5*time.Minute), func() {
		if c.disks[a] == one && c.disks[b] == two && !one.Attached && !two.Attached && c.nodes[a.Node].liar == nil && c.nodes[b.Node].liar == nil {
			c.disks[a], c.disks[b] = two, one
			one.reattach(true)
			two.reattach(true)
			c.logf("", "%s and %s are swapped", a, b)
		}
	})
}

func (c *cluster) fillDisk() {
	d := c.disks[pick(c.rng, c.diskRefs()...)]
	d.OtherFiles = pick(c.rng, int64(6*gib), diskSize)
	c.after(c.between(0, 10*time.Minute), func() { d.OtherFiles = 0 })
}

func (c *cluster) hideUsage() {
	d := c.disks[pick(c.rng, c.diskRefs()...)]
	d.UsersUnknown = true
	c.after(c.between(0, 5*time.Minute), func() { d.UsersUnknown = false })
}

// corruptSilently changes bytes without evidence: only a reader of the file detects it.
// corruptVisibly also changes the evidence, and touchFile changes nothing else.
func (c *cluster) corruptSilently() {
	if key, ok := c.randomCopy(hasFile); ok {
		c.recordLoss(key, c.copyAt(key)) // a medium may lose the bytes after the proof
		c.recordLoss(key, c.copyAt(key))
		c.copyAt(key).File = "rotten"
		c.logf("", "%s is damaged without evidence", key)
		if m := c.nodes[key.Disk.Node]; c.oneIn(2) && m.up { // a scrub detects it
			m.after(c.between(0, 5*time.Minute), func() {
				if s := c.copyAt(key); s.Ready() && s.File != s.Recorded {
					c.recordLoss(key, s)
					_ = m.verify(c.disks[key.Disk], key.ID)
					m.requestRound()
				}
			})
		}
	}
}

func (c *cluster) corruptVisibly() {
	if key, ok := c.randomCopy(hasFile); ok {
		c.recordLoss(key, c.copyAt(key))
		c.copyAt(key).Changed, c.copyAt(key).File = true, "damaged"
		c.logf("", "%s is damaged", key)
	}
}

func (c *cluster) touchFile() {
	if key, ok := c.randomCopy(hasFile); ok {
		c.recordLoss(key, c.copyAt(key))
		c.copyAt(key).Changed = true
	}
}

// addUnmanagedFile adds a file of a declared generation that this program did not create.
func (c *cluster) addUnmanagedFile() {
	config := c.latest().config
	name, ok := c.randomImageName(&config)
	ref := pick(c.rng, c.diskRefs()...)
	if d := c.disks[ref]; ok && d.Attached && d.Copies[config.Images[name].ID] == nil && d.Free() > gib {
		image := config.Images[name]
		content := c.expectedBytes(config, image)
		if !image.Checksum.IsZero() {
			content = c.contentOf(image.Checksum)
		}
		if content == "" {
			return
		}
		s := d.Folder(image.ID)
		s.File, c.history(s).ownedAt = content, c.now
		c.logf("", "an unmanaged file is added as %s on %s", image.ID, ref)
	}
}

// breakConfigs makes the config directories of one or more nodes invalid for a while.
func (c *cluster) breakConfigs() {
	all := c.oneIn(3)
	for _, name := range c.names {
		if m := c.nodes[name]; all && !c.oneIn(4) || !all && c.oneIn(len(c.names)) {
			c.after(c.between(0, 10*time.Second), func() { c.unlessHealed(m.breakDir) })
			c.after(c.between(10*time.Second, 8*time.Minute), m.repairDir)
		}
	}
}

// setClock sets the wall clock of a node while its manager runs.
func (c *cluster) setClock() {
	if m := c.nodes[pick(c.rng, c.names...)]; m.up {
		m.clockOffset += pick(c.rng, -48*time.Hour, -10*time.Minute, 10*time.Minute, time.Hour, 24*time.Hour, 1000*time.Hour)
		c.logf(m.name, "the wall clock is set, to an offset of %s", m.clockOffset)
	}
}

func (c *cluster) upstreamDown() {
	c.offline = true
	c.after(c.between(0, 6*time.Minute), func() { c.offline = false })
}

func (c *cluster) upstreamChanges() {
	config := c.latest().config
	if name, ok := c.randomImageName(&config); ok && config.Images[name].Source.Clone == nil {
		c.served[upstream(config.Images[name])] = pick(c.rng, plantest.Letters...)
	}
}

// requestRandomCleanup requests the immediate deletion of a random copy.
func (c *cluster) requestRandomCleanup() {
	key, ok := c.randomCopy(hasFile)
	if m := c.nodes[key.Disk.Node]; ok && m.up {
		m.requestCleanup(key)
	}
}

// requestCleanup requests the deletion of a copy before the end of its clean-up interval.
func (m *node) requestCleanup(key ident.CopyRef) {
	if m.liar != nil {
		return
	}
	m.loop.RequestCleanup(key.ID.Name, key.ID.UUID, key.Disk, nil, func(_ plan.Action, err error) {
		if err == nil {
			m.requestedCleanups[key] = m.c.now
		}
	})
	m.requestRound()
}

// failDisk makes all writes to a disk fail for a while, or only the writes of image data.
func (c *cluster) failDisk() {
	d := c.disks[pick(c.rng, c.diskRefs()...)]
	if c.oneIn(2) {
		d.ReadOnly = true
	} else {
		d.FailsWrites = true
	}
	c.after(c.between(0, 8*time.Minute), func() { d.ReadOnly, d.FailsWrites = false, false })
}

// attachBeforeRename sometimes attaches a volume to a copy in the last moment in which the volume can
// find the folder: between the first check for users and the rename, which follows after wait.
func (c *cluster) attachBeforeRename(key ident.CopyRef, wait time.Duration) {
	if !c.healed && c.oneIn(20) {
		c.after(c.between(0, wait), func() { c.attach(key) })
	}
}

// attachRandomVolume attaches a volume to a random copy.
func (c *cluster) attachRandomVolume() {
	if key, ok := c.randomCopy(hasFile); ok {
		c.attach(key)
	}
}

// attach attaches a volume to a copy for a random time.
func (c *cluster) attach(key ident.CopyRef) {
	s := c.copyAt(key)
	if c.healed || s == nil {
		return
	}
	if r := c.deletionOf(key); r != nil {
		c.pairs[pairAttach]++
		c.logf("", "a volume tries to use %s, whose deletion is %s", key, r.phase)
	}
	if s.Aside || s.File == "" || c.disks[key.Disk].ReplicasAway {
		return // the volume finds no file, or has no place for its replica
	}
	if s.Users++; s.Users == 1 {
		c.history(s).usedFrom = c.now
	}
	c.logf("", "a volume uses %s", key)
	wait := c.between(0, 15*time.Minute)
	if c.oneIn(2) {
		wait = c.between(0, 5*time.Second)
	}
	c.after(wait, func() {
		c.unlessHealed(func() {
			s.Users = max(0, s.Users-1)
			c.lastNeed[key] = c.now // it needed the copy, if the file was lost meanwhile
		})
	})
}
