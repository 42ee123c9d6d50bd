package reconcile

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Cluster is all nodes of one configuration at one moment, each as it knows itself,
// which none of them sees.
type Cluster struct {
	Now time.Time
	// Disks are the declared ones of which anything is known, as their own nodes see them.
	Disks         map[schema.DiskRef]Disk
	Tries         map[Key]Try
	Running, Read map[Key]bool // copies at which a node works, and of others that it reads
	// Silent are the nodes that answer nobody, as the others know them.
	Silent map[string]Peer
	// Unable are, by node, the images that it cannot make the first copy of, and why.
	Unable map[string]map[disk.ID]string
	// BackedUp are the copies of which a whole backup was seen.
	BackedUp map[Key]bool

	shown map[schema.DiskRef]Disk // as the nodes show them to the others; nil: nobody asked yet
}

// Seen returns what each of these nodes sees: its own disks, and of the others what
// they show, or showed before they fell silent. All have to be of the same
// configuration, at each call. The values share memory with c and with each other.
func (c *Cluster) Seen(nodes []Desired) []Observed {
	if c.shown == nil && len(nodes) > 0 {
		c.showAll(nodes[0])
	}
	seen := make([]Observed, len(nodes))
	for i, d := range nodes {
		seen[i] = c.seen(d, c.shown)
	}
	return seen
}

// showAll has every node show its disks.
func (c *Cluster) showAll(d Desired) {
	c.shown = make(map[schema.DiskRef]Disk, len(c.Disks))
	h := newShare(d, c.Disks)
	for node := range d.Config.Nodes {
		d.Node, d.Picked = node, nil
		c.show(d, h)
	}
}

// Show has the node of d show its disks anew, which have changed since the others saw
// them.
func (c *Cluster) Show(d Desired) {
	if c.shown != nil {
		c.show(d, newShare(d, c.Disks))
	}
}

// show has a node show its disks, with the copies that it takes not. One that is silent
// does not say these.
func (c *Cluster) show(d Desired, h *share) {
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := schema.DiskRef{Node: d.Node, Disk: name}
		if one, known := c.Disks[ref]; known {
			one.Copies = maps.Clone(one.Copies)
			c.shown[ref] = one
		}
	}
	if _, silent := c.Silent[d.Node]; silent {
		return
	}
	o := c.seen(d, c.Disks)
	images := h.refusing(d, o)
	for key, r := range h.scene(d, o, images).refusals(slices.Values(images)) {
		if c.shown[key.Disk].Copies != nil {
			c.shown[key.Disk].refuse(key.ID, r)
		}
	}
}

// refuse notes that the disk takes no copy, in place of one if it has none.
func (d Disk) refuse(id disk.ID, r refusal) {
	c, there := d.Copies[id]
	if !there {
		c = Copy{Copy: disk.Copy{ID: id, State: disk.Pending}}
	}
	c.Refuses, c.Later = r.why, r.later
	d.Copies[id] = c
}

// seen is what the node of d sees, whose own disks are not as they are shown.
func (c *Cluster) seen(d Desired, shown map[schema.DiskRef]Disk) Observed {
	o := Observed{
		Now: c.Now, Disks: maps.Clone(shown), Tries: c.Tries, Peers: map[string]Peer{},
		Running: map[Key]bool{}, Read: map[Key]bool{}, Unable: c.Unable[d.Node], BackedUp: map[disk.ID]bool{},
	}
	maps.Copy(o.Running, c.Running)
	maps.Copy(o.Read, c.Read)
	for node := range d.Config.Nodes {
		if node != d.Node {
			o.Peers[node] = c.peer(node, d.Digest)
		}
	}
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := schema.DiskRef{Node: d.Node, Disk: name}
		if own, known := c.Disks[ref]; known {
			o.Disks[ref] = own
		}
	}
	for key := range c.BackedUp {
		if key.Disk.Node == d.Node {
			o.BackedUp[key.ID] = true
		}
	}
	o.refuseClones()
	return o
}

// peer is a node as the others know it. One that answers has their configuration.
func (c *Cluster) peer(node, config string) Peer {
	if p, silent := c.Silent[node]; silent {
		p.Asked = true
		return p
	}
	return Peer{Asked: true, Config: config, Last: c.Now}
}

// Plan is what these nodes would do now. All have to be of the same configuration, which
// every node that answers counts as having. What concerns an image and no disk is in it
// once.
func (c *Cluster) Plan(nodes []Desired) Plan {
	if len(nodes) == 0 {
		return Desired{}.newPlan([]Action{})
	}
	first := nodes[0]
	if first.May == schema.ObserveOnly {
		return first.newPlan([]Action{})
	}
	if first.ranks == nil {
		first.ranks = newRanks(first.Config.Nodes, mostKept)
	}
	if c.shown == nil {
		c.showAll(first)
	}
	h := newShare(first, c.shown)
	h.begun(c)
	everyone := first
	everyone.Node = ""
	h.wanted(everyone, c.seen(everyone, c.shown))
	actions := []Action{} // never null in JSON
	for _, d := range nodes {
		d.ranks = first.ranks
		images := h.images(d, d.Node == first.Node || !c.whole(d))
		actions = append(actions, h.scene(d, c.seen(d, c.shown), images).plan(slices.Values(images))...)
	}
	p := first.newPlan(once(actions))
	p.Suspended = first.suspensions(c.Now)
	return p
}

// whole reports whether the node answers and tells of all its disks: then it sees nothing
// of them that it does not show.
func (c *Cluster) whole(d Desired) bool {
	_, silent := c.Silent[d.Node]
	for name := range d.Config.Nodes[d.Node].Disks {
		_, known := c.Disks[schema.DiskRef{Node: d.Node, Disk: name}]
		silent = silent || !known
	}
	return !silent
}

// once leaves out what several nodes say of an image and of no disk.
func once(actions []Action) []Action {
	type matter struct {
		id   disk.ID
		kind Kind
	}
	told := map[matter]bool{}
	return slices.DeleteFunc(actions, func(a Action) bool {
		about := matter{a.Key().ID, a.Kind}
		again := a.Disk == "" && told[about]
		told[about] = told[about] || a.Disk == ""
		return again
	})
}

// Forget drops what failed under a declaration that is not the same any more.
func (c *Cluster) Forget(before, now schema.Config) {
	maps.DeleteFunc(c.Tries, func(key Key, t Try) bool {
		was, is := before.Images[key.ID.Name], now.Images[key.ID.Name]
		return !t.Kind.same(was, is)
	})
}
