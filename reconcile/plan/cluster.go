package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Cluster is the state of all nodes of one configuration at one moment, as each node observes
// itself. No single node has this state; saved status documents and simulations do.
type Cluster struct {
	Now time.Time
	// Disks are the known disks as their own nodes observe them.
	Disks              map[schema.DiskRef]Disk
	Failures           map[CopyRef]Failure
	Running, BeingRead map[CopyRef]bool // as in Observed, of all nodes
	// Unreachable are the nodes that do not respond, as the others observe them.
	Unreachable map[string]Peer
	// CannotPrepare is as in Observed, by node.
	CannotPrepare map[string]map[disk.ID]string
	// BackedUp are the copies whose record has a complete backup.
	BackedUp map[CopyRef]bool

	published map[schema.DiskRef]Disk // as the nodes publish them; nil: not computed yet
}

// Observe returns what each of these nodes observes: its own disks, and what the other nodes
// publish. All calls must have the same configuration. The values share memory with c and
// with each other.
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

// publishAll computes what every node publishes.
func (c *Cluster) publishAll(d Desired) {
	c.published = make(map[schema.DiskRef]Disk, len(c.Disks))
	h := newFleetIndex(d, c.Disks)
	for node := range d.Config.Nodes {
		d.Node, d.OnlyDisks = node, nil
		c.publish(d, h)
	}
}

// publish computes the published disks of a node, with the copies that they reject. An
// unreachable node publishes no rejections.
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
			c.published[key.Disk].addRejection(key.ID, r)
		}
	}
}

// addRejection notes in the observed disk that it takes no copy of the image.
func (d Disk) addRejection(id disk.ID, r Rejection) {
	c, exists := d.Copies[id]
	if !exists {
		c = Copy{Copy: disk.Copy{ID: id, State: disk.Pending}}
	}
	c.Rejects, c.RejectsForNow = r.Text, r.Severity == Temporary
	d.Copies[id] = c
}

// ObserveFrom returns what the node of d observes when the other nodes publish these disks.
func (c *Cluster) ObserveFrom(d Desired, published map[schema.DiskRef]Disk) Observed {
	o := Observed{
		Now: c.Now, Disks: maps.Clone(published), Failures: c.Failures, Peers: map[string]Peer{},
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

// peer returns a node as the others observe it. A node that responds has their configuration.
func (c *Cluster) peer(node, config string) Peer {
	if p, silent := c.Unreachable[node]; silent {
		p.Queried = true
		return p
	}
	return Peer{Queried: true, ConfigDigest: config, LastResponse: c.Now}
}

// Plan returns the plan of all these nodes. They must have the same configuration, and so
// must every node that responds. An action that concerns no disk is in the plan once.
func (c *Cluster) Plan(nodes []Desired) Plan {
	if len(nodes) == 0 {
		return Desired{}.newPlan([]Action{})
	}
	first := nodes[0]
	if first.Allowed == schema.ObserveOnly {
		return first.newPlan([]Action{})
	}
	if first.rankCache == nil {
		first.rankCache = NewRankCache(first.Config.Nodes, maxCachedRanks)
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
		d.rankCache = first.rankCache
		images := h.images(d, d.Node == first.Node || !c.isComplete(d))
		actions = append(actions, h.newIndex(d, c.ObserveFrom(d, c.published), images).plan(slices.Values(images))...)
	}
	p := first.newPlan(dedupe(actions))
	p.Suspended = first.suspensions(c.Now)
	return p
}

// isComplete reports whether the node responds and all its disks are known: then it observes
// nothing that it does not publish.
func (c *Cluster) isComplete(d Desired) bool {
	_, silent := c.Unreachable[d.Node]
	for name := range d.Config.Nodes[d.Node].Disks {
		_, known := c.Disks[schema.DiskRef{Node: d.Node, Disk: name}]
		silent = silent || !known
	}
	return !silent
}

// Merge returns the plans of several nodes as one. The nodes must have the same configuration. An
// action that concerns no disk is in the plan once.
func Merge(plans []Plan) Plan {
	actions := []Action{} // never null in JSON
	for _, p := range plans {
		actions = append(actions, p.Actions...)
	}
	merged := Desired{}.newPlan(dedupe(actions))
	if len(plans) > 0 {
		merged.Digest, merged.Revision, merged.Suspended = plans[0].Digest, plans[0].Revision, plans[0].Suspended
	}
	return merged
}

// dedupe removes the duplicates of actions that concern an image and no disk.
func dedupe(actions []Action) []Action {
	type operation struct {
		id disk.ID
		op Op
	}
	planned := map[operation]bool{}
	return slices.DeleteFunc(actions, func(a Action) bool {
		this := operation{a.CopyRef().ID, a.Op}
		duplicate := a.Disk == "" && planned[this]
		planned[this] = planned[this] || a.Disk == ""
		return duplicate
	})
}

// Problems returns the problems of the disks of these nodes. A disk that is not known is a
// problem, too.
func (c *Cluster) Problems(nodes []Desired) map[schema.DiskRef]string {
	problems := map[schema.DiskRef]string{}
	for _, d := range nodes {
		for name, declared := range d.Config.Nodes[d.Node].Disks {
			ref := schema.DiskRef{Node: d.Node, Disk: name}
			seen, known := c.Disks[ref]
			switch {
			case !known:
				problems[ref] = "no state describes a disk at " + declared.Path
			case seen.Problem != "":
				problems[ref] = seen.Problem
			}
		}
	}
	return problems
}
