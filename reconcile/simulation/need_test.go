package simulation

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// followRandomly changes followReplicas in a configuration before its declaration. Most images follow
// replicas.
func (c *cluster) followRandomly(config *schema.Config) {
	if c.healed {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(config.Images)) {
		if image := config.Images[name]; c.needs.oneIn(3) {
			image.FollowReplicas = !c.needs.oneIn(6)
			config.Images[name] = image
		}
	}
}

// needMoment returns a random time.
func (c *cluster) needMoment(least, most time.Duration) time.Duration {
	return least + time.Duration(c.needs.Int64N(int64(most-least)))
}

// injectNeeds places replicas on random disks, again and again, until the faults end.
func (c *cluster) injectNeeds() {
	c.after(c.needMoment(0, 3*time.Minute), func() {
		c.unlessHealed(func() {
			c.placeReplica()
			c.injectNeeds()
		})
	})
}

// placeReplica places a replica of an image on a disk that has no file of the image: of a declared image, or of any that
// has a copy, also an older generation or an orphan. It stays for a
// random time: for a moment, or for long enough that a copy can be created for it.
func (c *cluster) placeReplica() {
	config := c.latest().config
	names := slices.Sorted(maps.Keys(config.Images))
	if len(names) == 0 {
		return
	}
	id := config.Images[pick(c.needs, names...)].ID
	if c.needs.oneIn(10) {
		id.UUID = "0badcafe"
	}
	if existing := c.existingIDs(); len(existing) > 0 && c.needs.oneIn(2) {
		id = pick(c.needs, existing...)
	}
	key := ident.CopyRef{Disk: pick(c.needs, c.diskRefs()...), ID: id}
	d := c.disks[key.Disk]
	if s := d.Copies[id]; !d.Attached || d.ReplicasAway || s != nil && s.File != "" {
		return
	}
	r := d.Replicas[id]
	if r.Count++; r.Count == 1 {
		r.Since = startTime.Add(c.now)
	}
	d.Replicas[id] = r
	c.logf("", "a replica that needs %s is placed", key)
	if m := c.nodes[key.Disk.Node]; m.up && c.needs.oneIn(2) { // an event of the file system
		m.requestRound()
	}
	if c.needs.oneIn(4) {
		c.leaveReserve(key.Disk)
	}
	wait := c.needMoment(0, 15*time.Minute)
	if c.needs.oneIn(3) {
		wait = c.needMoment(0, time.Minute)
	}
	if c.needs.oneIn(4) {
		c.after(c.needMoment(0, wait+1), func() { c.unmountReplicas(key.Disk, d) })
	}
	c.after(wait, func() { c.unlessHealed(func() { c.removeReplica(key, d) }) })
}

// existingIDs returns the images with a file on any disk.
func (c *cluster) existingIDs() []ident.ID {
	existing := map[ident.ID]bool{}
	for _, d := range c.disks {
		for id, s := range d.Copies {
			existing[id] = existing[id] || s.File != ""
		}
	}
	maps.DeleteFunc(existing, func(_ ident.ID, file bool) bool { return !file })
	return slices.SortedFunc(maps.Keys(existing), ident.ID.Compare)
}

// unmountReplicas hides the replicas of a disk for a while, if they have not changed for a minute in which a manager had to
// record them.
func (c *cluster) unmountReplicas(ref ident.DiskRef, d *Disk) {
	m, named := c.nodes[ref.Node], d.named()
	life := m.starts
	c.after(time.Minute, func() {
		seen, observed := m.observed.Disks[ref]
		recorded := observed && seen.UUID == d.UUID && seen.Problem == "" && !seen.ReadOnly && m.desired.Allowed != schema.ObserveOnly
		for _, s := range d.Copies { // a use may have ended and begun again
			recorded = recorded && (s.Users == 0 || c.now-c.history(s).usedFrom > time.Minute)
		}
		for _, r := range d.Replicas {
			recorded = recorded && (r.Count == 0 || startTime.Add(c.now).Sub(r.Since) > time.Minute)
		}
		if c.healed || c.disks[ref] != d || !m.up || m.starts != life || !recorded || d.ReplicasAway || !maps.Equal(named, d.named()) {
			return
		}
		d.ReplicasAway = true
		c.logf("", "the folder of the replicas on %s is not mounted", ref)
		if c.needs.oneIn(2) {
			c.crashAndRestart(m)
		}
		c.after(c.needMoment(0, 10*time.Minute), func() { d.ReplicasAway = false })
	})
}

// needing returns the disks, other than that of a copy, on which replicas need the generation of the copy, and which have no
// ready copy of it.
func (c *cluster) needing(key ident.CopyRef) map[ident.DiskRef]bool {
	disks := map[ident.DiskRef]bool{}
	for ref, d := range c.disks {
		on := ident.CopyRef{Disk: ref, ID: key.ID}
		if ref != key.Disk && d.Attached && c.users(on) > 0 && (!d.Copies[key.ID].Ready() || c.deletionOf(on) != nil) {
			disks[ref] = true
		}
	}
	return disks
}

// checkNeeds checks that no replica on another disk needs the generation that is deleted, as far as the node can know: U4, U7.
func (r *deletion) checkNeeds(o plan.Observed) {
	for ref := range r.needs {
		peer := r.node.peers[ref.Node]
		_, declared := r.conf.config.Nodes[ref.Node].Disks[ref.Disk]
		switch {
		case !declared || r.c.nodes[ref.Node].liar != nil:
		case ref.Node == r.node.name, r.responded[ref.Node] && !*clusterWorld:
			r.c.violation("U4", "%s is deleted, and a replica on %s needs it", r.key, ref)
		case peer != nil && peer.publication != nil && publishes(peer.publication.state, ref.Disk, r.key.ID):
			r.c.violation("U7", "%s is deleted, and a replica on %s needed it when that node last responded", r.key, ref)
		}
	}
	for name, node := range r.conf.config.Nodes {
		for d := range node.Disks {
			ref := ident.DiskRef{Node: name, Disk: d}
			if name == r.node.name && o.Disks[ref].Problem != "" {
				r.c.violation("U7", "%s is deleted, and the replicas on %s cannot be read: %s", r.key, ref, o.Disks[ref].Problem)
			}
		}
		if p := r.node.peers[name]; name != r.node.name && (p == nil || p.publication == nil) && !r.responded[name] {
			r.c.violation("U7", "%s is deleted, and node %s has not responded since the process started", r.key, name)
		}
	}
}

// publishes reports whether a node has published that replicas on a disk need an image.
func publishes(s model.Node, name string, id ident.ID) bool {
	return s.Disks[name].Copies[id].Need != nil
}

// leaveReserve declares a reserve for a disk, and fills the disk for a while, so that an image fits on it only
// below the reserve.
func (c *cluster) leaveReserve(ref ident.DiskRef) {
	const reserve = 2 * gib
	c.declare(c.editedConfig(func(config *schema.Config) {
		if one, declared := config.Nodes[ref.Node].Disks[ref.Disk]; declared {
			one.StorageReserved = reserve
			config.Nodes[ref.Node].Disks[ref.Disk] = one
		}
	}))
	d := c.disks[ref]
	d.SetFree(reserve + gib/2)
	c.after(c.needMoment(0, 10*time.Minute), func() { d.OtherFiles = 0 })
}

// removeReplica removes a replica of an image from a disk, wherever the disk is now.
func (c *cluster) removeReplica(key ident.CopyRef, d *Disk) {
	for ref, now := range c.disks {
		if now == d {
			key.Disk = ref
		}
	}
	r := d.Replicas[key.ID]
	if r.Count--; r.Count > 0 {
		d.Replicas[key.ID] = r
		return
	}
	delete(d.Replicas, key.ID)
	c.lastNeed[key] = c.now
	c.logf("", "the last replica that needed %s is removed", key)
	if job := c.nodes[key.Disk.Node].jobs[key]; job != nil && job.action.Needed && !job.ended {
		c.pairs[pairVanished]++
	}
}

// removeReplicas removes replicas from a disk: all, or those of some images.
func (c *cluster) removeReplicas(ref ident.DiskRef, all bool) {
	d := c.disks[ref]
	for _, id := range slices.SortedFunc(maps.Keys(d.Replicas), ident.ID.Compare) {
		if all || c.needs.oneIn(2) {
			delete(d.Replicas, id)
			c.lastNeed[ident.CopyRef{Disk: ref, ID: id}] = c.now
		}
	}
}

// users returns how many replicas on its disk use a copy.
func (c *cluster) users(key ident.CopyRef) int {
	d := c.disks[key.Disk]
	n := d.Replicas[key.ID].Count
	if s := d.Copies[key.ID]; s != nil {
		n += s.Users
	}
	return n
}

// isNeeded reports whether replicas on a disk needed a copy at some moment since began, and the
// configuration follows them.
func (c *cluster) isNeeded(d *declaration, key ident.CopyRef, began time.Duration) bool {
	image := d.config.Images[key.ID.Name]
	last, ended := c.lastNeed[key]
	return image.ID == key.ID && image.FollowReplicas && (c.users(key) > 0 || c.disks[key.Disk].replicasOf(key.ID) != "" || ended && last >= began)
}

// checkNeeded checks that a job that creates a copy on a disk that is not desired was needed when its
// round began.
func (m *node) checkNeeded(job *runningJob) {
	if !job.action.Op.CreatesCopy() {
		return
	}
	image, ref := m.applied.config.Images[job.key.ID.Name], job.key.Disk
	job.declaredFree = m.applied.config.Nodes[ref.Node].Disks[ref.Disk].StorageReserved
	desired := slices.Contains(m.c.rankedDisks(m.applied, image), ref) || slices.Contains(image.Disks, ref) && !isEvicted(m.applied.config, ref)
	if !desired && !m.c.isNeeded(m.applied, job.key, m.roundBegan) {
		m.c.violation("G2", "%s of %s begins, and no replica on the disk needs it", job.action.Op, job.key)
	}
}

// noteFilled notes that a copy is used from now on if replicas have waited for it. It checks that the copy
// leaves the reserve of the disk free.
func (m *node) noteFilled(d *Disk, job *runningJob) {
	if d.Replicas[job.key.ID].Count > 0 {
		m.c.history(d.Copies[job.key.ID]).usedFrom = m.c.now
	}
	if !job.action.Needed {
		return
	}
	m.c.pairs[pairNeed]++
	if free := d.Free(); free < job.declaredFree {
		m.c.violation("G2", "%s leaves %d bytes free on its disk, and %d are reserved", job.key, free, job.declaredFree)
	}
}

// checkNeedsMet checks that each replica of an image has a copy on its disk in a converged cluster.
func (c *cluster) checkNeedsMet(image schema.Image) {
	config := c.latest().config
	if !image.FollowReplicas || config.Settings.ConcurrentReplenishPerNodeLimit == 0 {
		return
	}
	for _, ref := range c.diskRefs() {
		m := c.nodes[ref.Node]
		_, declared := config.Nodes[ref.Node].Disks[ref.Disk]
		key := ident.CopyRef{Disk: ref, ID: image.ID}
		if declared && m.liar == nil && !c.skewed[ref.Node] && c.disks[ref].Replicas[image.ID].Count > 0 && !c.copyAt(key).Ready() {
			c.violation("G2", "a replica needs %s, which is not ready", key)
		}
	}
}
