package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Cluster is the state of all nodes of one configuration at one moment, as each node observes
// itself. No single node knows this state. Saved status documents and simulations have it.
type Cluster struct {
	Now time.Time
	// Disks are the known disks as their own nodes observe them.
	Disks              map[ident.DiskRef]model.Disk
	Failures           map[ident.CopyRef]model.Failure
	Running, BeingRead map[ident.CopyRef]bool // as in Observed, of all nodes
	Jobs               map[ident.CopyRef]Job  // as in Observed, of all nodes
	// Unreachable are the nodes that do not respond, as the others observe them.
	Unreachable map[string]model.Peer
	// CannotPrepare is as in Observed, by node.
	CannotPrepare map[string]map[ident.ID]string
	// BackedUp are the copies whose record has a complete backup.
	BackedUp map[ident.CopyRef]bool
}

// Observe returns what the node of desired state d observes. The result shares memory with the cluster.
func (c *Cluster) Observe(d Desired) Observed {
	o := Observed{
		Now: c.Now, Disks: c.Disks, Failures: c.Failures, Peers: map[string]model.Peer{},
		Running: c.Running, Jobs: c.Jobs, BeingRead: c.BeingRead, CannotPrepare: c.CannotPrepare[d.Node], BackedUp: map[ident.ID]bool{},
	}
	for node := range d.Config.Nodes {
		if node != d.Node {
			o.Peers[node] = c.peer(node, d.Digest)
		}
	}
	for ref := range c.BackedUp {
		if ref.Disk.Node == d.Node {
			o.BackedUp[ref.ID] = true
		}
	}
	o.FindDisputedDisks()
	return o
}

// peer returns a node as the others observe it. If it responds, it has the same configuration as
// the others.
func (c *Cluster) peer(node, config string) model.Peer {
	if p, unreachable := c.Unreachable[node]; unreachable {
		p.Queried = true
		return p
	}
	return model.Peer{Queried: true, ConfigDigest: config, LastResponse: c.Now}
}

// Plan returns the plan of all these nodes. They must have the same configuration, and so
// must every node that responds. An action that concerns no disk is in the plan once.
func (c *Cluster) Plan(nodes []Desired) Plan {
	if len(nodes) == 0 {
		return newPlan([]Action{}, "", "")
	}
	first := nodes[0]
	if first.Allowed == schema.ObserveOnly {
		return newPlan([]Action{}, first.Digest, first.Revision)
	}
	observer := first
	observer.Node, observer.OnlyDisks = "", nil
	f := newFleet(c, observer)
	concerned, actions := f.concerned(), []Action{} // never null in JSON
	for _, d := range nodes {
		images := maps.Values(d.Config.Images)
		if d.Node != first.Node && c.publishesAll(d) { // the first node also reports the actions that concern no disk
			images = maps.Values(concerned[d.Node])
		}
		actions = append(actions, planImages(f.round(d), images)...)
	}
	p := newPlan(dedupe(actions), first.Digest, first.Revision)
	p.Suspended = activeSuspensions(first.Config, c.Now)
	return p
}

// publishesAll reports whether the node responds and all its disks are known. Such a node
// observes nothing that it does not publish.
func (c *Cluster) publishesAll(d Desired) bool {
	if _, unreachable := c.Unreachable[d.Node]; unreachable {
		return false
	}
	for name := range d.Config.Nodes[d.Node].Disks {
		if _, known := c.Disks[ident.DiskRef{Node: d.Node, Disk: name}]; !known {
			return false
		}
	}
	return true
}

// Merge returns the plans of several nodes as one. The nodes must have the same configuration. An
// action without a disk is in several plans; the result has it once.
func Merge(plans []Plan) Plan {
	actions := []Action{} // never null in JSON
	for _, p := range plans {
		actions = append(actions, p.Actions...)
	}
	if len(plans) == 0 {
		return newPlan(actions, "", "")
	}
	merged := newPlan(dedupe(actions), plans[0].Digest, plans[0].Revision)
	merged.Suspended = plans[0].Suspended
	return merged
}

// dedupe removes the duplicates of actions that concern an image and no disk.
func dedupe(actions []Action) []Action {
	type operation struct {
		id ident.ID
		op model.Op
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
func (c *Cluster) Problems(nodes []Desired) map[ident.DiskRef]string {
	problems := map[ident.DiskRef]string{}
	for _, d := range nodes {
		for name, declared := range d.Config.Nodes[d.Node].Disks {
			ref := ident.DiskRef{Node: d.Node, Disk: name}
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

// fleet plans for all nodes of a cluster. They share one index, each image is planned only for the few nodes that it may
// concern, and a node computes only the rejections that another node needs. The result is the same as when each node
// plans all images.
type fleet struct {
	*Cluster
	observer *Round            // of a node without disks
	owners   map[string]*Round // of the nodes whose rejections were needed
	rejected map[ident.CopyRef]Rejection
}

// newFleet returns the fleet of a cluster. d is the desired state of the observer, which is a node without disks.
func newFleet(c *Cluster, d Desired) *fleet {
	f := &fleet{Cluster: c, owners: map[string]*Round{}, rejected: map[ident.CopyRef]Rejection{}}
	o := c.Observe(d)
	f.observer = newRound(d, o, newIndex(d, o))
	f.observer.published = f.published
	return f
}

// round returns the round of one node.
func (f *fleet) round(d Desired) *Round {
	ix := newRound(d, f.Observe(d), f.observer.index)
	ix.published = f.published
	return ix
}

// published returns the published reason why a disk takes no copy. An unreachable node publishes nothing.
func (f *fleet) published(ref ident.CopyRef) Rejection {
	if r, known := f.rejected[ref]; known {
		return r
	}
	node := ref.Disk.Node
	if _, unreachable := f.Unreachable[node]; unreachable {
		return Rejection{}
	}
	if f.owners[node] == nil {
		d := f.observer.Desired
		d.Node = node
		f.owners[node] = f.round(d)
	}
	r := rejectsForPeers(newImageState(f.owners[node], f.observer.Desired.Config.Images[ref.ID.Name]), ref.Disk)
	f.rejected[ref] = rejectedByPeer(r.Text, r.Severity == Temporary)
	return f.rejected[ref]
}

// concerned returns, by node and name, the images that may concern a node: its copy needs an action or is surplus, its
// disk was rejected, a replica there needs the image, an attempt failed, or a job runs.
func (f *fleet) concerned() map[string]map[string]schema.Image {
	byNode, declared := map[string]map[string]schema.Image{}, f.observer.Desired.Config.Images
	add := func(on ident.DiskRef, name string) {
		if byNode[on.Node] == nil {
			byNode[on.Node] = map[string]schema.Image{}
		}
		if image, ok := declared[name]; ok {
			byNode[on.Node][name] = image
		}
	}
	for ref := range f.Failures {
		add(ref.Disk, ref.ID.Name)
	}
	for ref := range f.Running {
		add(ref.Disk, ref.ID.Name)
	}
	for on, seen := range f.Disks {
		for id := range seen.Needs {
			add(on, id.Name)
		}
	}
	for name, image := range declared {
		p := newImagePlanner(f.observer, image)
		isComplete := func(ref ident.CopyRef) bool { // nothing must be done about the copy, if its disk is desired
			c := f.observer.copyAt(ref)
			return ref.ID == image.ID && c.State == model.Ready && c.HasCfg && !c.ManifestDigest.IsZero() && !f.observer.suspects[ref] && p.state.mismatch[ref].IsZero()
		}
		targets := map[ident.DiskRef]bool{}
		for _, on := range p.placement.targets {
			targets[on] = true
			if image.Backup != nil || !isComplete(p.state.on(on)) {
				add(on, name)
			}
		}
		for _, ref := range f.observer.byName[name] {
			if !targets[ref.Disk] || !isComplete(ref) {
				add(ref.Disk, name)
			}
		}
		for _, on := range image.Disks {
			add(on, name)
		}
		for on := range p.placement.rejected {
			add(on, name)
		}
	}
	return byNode
}
