package plan

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
	Disks              map[schema.DiskRef]Disk
	Failures           map[CopyRef]Failure
	Running, BeingRead map[CopyRef]bool // copies at which a node works, and of others that it reads
	// Unreachable are the nodes that answer nobody, as the others know them.
	Unreachable map[string]Peer
	// CannotPrepare are, by node, the images that it cannot make the first copy of, and why.
	CannotPrepare map[string]map[disk.ID]string
	// BackedUp are the copies of which a whole backup was seen.
	BackedUp map[CopyRef]bool

	published map[schema.DiskRef]Disk // as the nodes show them to the others; nil: nobody asked yet
}

// Observe returns what each of these nodes sees: its own disks, and of the others what
// they show, or showed before they fell silent. All have to be of the same
// configuration, at each call. The values share memory with c and with each other.
func (c *Cluster) Observe(nodes []Desired) []Observed {
	if c.published == nil && len(nodes) > 0 {
		c.publishAll(nodes[0])
	}
	seen := make([]Observed, len(nodes))
	for i, d := range nodes {
		seen[i] = c.ObserveFrom(d, c.published)
	}
	return seen
}

// publishAll has every node show its disks.
func (c *Cluster) publishAll(d Desired) {
	c.published = make(map[schema.DiskRef]Disk, len(c.Disks))
	h := newFleetIndex(d, c.Disks)
	for node := range d.Config.Nodes {
		d.Node, d.OnlyDisks = node, nil
		c.publish(d, h)
	}
}

// Publish has the node of d show its disks anew, which have changed since the others saw
// them.
func (c *Cluster) Publish(d Desired) {
	if c.published != nil {
		c.publish(d, newFleetIndex(d, c.Disks))
	}
}

// publish has a node show its disks, with the copies that it takes not. One that is silent
// does not say these.
func (c *Cluster) publish(d Desired, h *fleetIndex) {
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := schema.DiskRef{Node: d.Node, Disk: name}
		if one, known := c.Disks[ref]; known {
			one.Copies = maps.Clone(one.Copies)
			c.published[ref] = one
		}
	}
	if _, silent := c.Unreachable[d.Node]; silent {
		return
	}
	o := c.ObserveFrom(d, c.Disks)
	images := h.mayReject(d, o)
	for key, r := range h.newIndex(d, o, images).rejections(slices.Values(images)) {
		if c.published[key.Disk].Copies != nil {
			c.published[key.Disk].AddRejection(key.ID, r)
		}
	}
}

// AddRejection notes that the disk takes no copy, in place of one if it has none.
func (d Disk) AddRejection(id disk.ID, r Rejection) {
	c, there := d.Copies[id]
	if !there {
		c = Copy{Copy: disk.Copy{ID: id, State: disk.Pending}}
	}
	c.Rejects, c.RejectsForNow = r.Reason, r.Temporary
	d.Copies[id] = c
}

// ObserveFrom is what the node of d sees, whose own disks are not as they are shown.
func (c *Cluster) ObserveFrom(d Desired, shown map[schema.DiskRef]Disk) Observed {
	o := Observed{
		Now: c.Now, Disks: maps.Clone(shown), Failures: c.Failures, Peers: map[string]Peer{},
		Running: map[CopyRef]bool{}, BeingRead: map[CopyRef]bool{}, CannotPrepare: c.CannotPrepare[d.Node], BackedUp: map[disk.ID]bool{},
	}
	maps.Copy(o.Running, c.Running)
	maps.Copy(o.BeingRead, c.BeingRead)
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
	o.RejectDuplicateDisks()
	return o
}

// peer is a node as the others know it. One that answers has their configuration.
func (c *Cluster) peer(node, config string) Peer {
	if p, silent := c.Unreachable[node]; silent {
		p.Queried = true
		return p
	}
	return Peer{Queried: true, ConfigDigest: config, LastResponse: c.Now}
}

// Plan is what these nodes would do now. All have to be of the same configuration, which
// every node that answers counts as having. What concerns an image and no disk is in it
// once.
func (c *Cluster) Plan(nodes []Desired) Plan {
	if len(nodes) == 0 {
		return Desired{}.NewPlan([]Action{})
	}
	first := nodes[0]
	if first.Allowed == schema.ObserveOnly {
		return first.NewPlan([]Action{})
	}
	if first.RankCache == nil {
		first.RankCache = NewRankCache(first.Config.Nodes, MaxCachedRanks)
	}
	if c.published == nil {
		c.publishAll(first)
	}
	h := newFleetIndex(first, c.published)
	h.addInProgress(c)
	everyone := first
	everyone.Node = ""
	h.addTargets(everyone, c.ObserveFrom(everyone, c.published))
	actions := []Action{} // never null in JSON
	for _, d := range nodes {
		d.RankCache = first.RankCache
		images := h.images(d, d.Node == first.Node || !c.isComplete(d))
		actions = append(actions, h.newIndex(d, c.ObserveFrom(d, c.published), images).plan(slices.Values(images))...)
	}
	p := first.NewPlan(dedupe(actions))
	p.Suspended = first.Suspensions(c.Now)
	return p
}

// isComplete reports whether the node answers and tells of all its disks: then it sees nothing
// of them that it does not show.
func (c *Cluster) isComplete(d Desired) bool {
	_, silent := c.Unreachable[d.Node]
	for name := range d.Config.Nodes[d.Node].Disks {
		_, known := c.Disks[schema.DiskRef{Node: d.Node, Disk: name}]
		silent = silent || !known
	}
	return !silent
}

// dedupe leaves out what several nodes say of an image and of no disk.
func dedupe(actions []Action) []Action {
	type matter struct {
		id   disk.ID
		kind Op
	}
	told := map[matter]bool{}
	return slices.DeleteFunc(actions, func(a Action) bool {
		about := matter{a.CopyRef().ID, a.Op}
		again := a.Disk == "" && told[about]
		told[about] = told[about] || a.Disk == ""
		return again
	})
}

// Forget drops what failed under a declaration that is not the same any more.
func (c *Cluster) Forget(before, now schema.Config) {
	maps.DeleteFunc(c.Failures, func(key CopyRef, t Failure) bool {
		was, is := before.Images[key.ID.Name], now.Images[key.ID.Name]
		return !t.Op.SameDeclaration(was, is)
	})
}

// Problems says of the disks of these nodes what is wrong with them, and which are not
// known, by disk.
func (c *Cluster) Problems(nodes []Desired) map[schema.DiskRef]string {
	problems := map[schema.DiskRef]string{}
	for _, d := range nodes {
		for name, declared := range d.Config.Nodes[d.Node].Disks {
			ref := schema.DiskRef{Node: d.Node, Disk: name}
			seen, known := c.Disks[ref]
			switch {
			case !known:
				problems[ref] = "none of the states tells of a disk at " + declared.Path
			case seen.Problem != "":
				problems[ref] = seen.Problem
			}
		}
	}
	return problems
}
