package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Cluster is the state of all nodes of one configuration at one moment, as each node observes
// itself. No single node has this state; saved status documents and simulations do.
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

	published map[ident.DiskRef]model.Disk // as the nodes publish them; nil: not computed yet
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
	c.published = make(map[ident.DiskRef]model.Disk, len(c.Disks))
	fleet := newFleetIndex(d, c.Disks)
	for node := range d.Config.Nodes {
		d.Node, d.OnlyDisks = node, nil
		c.publish(d, fleet)
	}
}

// publish computes the published disks of a node, with the copies that they reject. An
// unreachable node publishes no rejections.
func (c *Cluster) publish(d Desired, fleet *fleetIndex) {
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := ident.DiskRef{Node: d.Node, Disk: name}
		if one, known := c.Disks[ref]; known {
			one.Copies = maps.Clone(one.Copies)
			c.published[ref] = one
		}
	}
	if _, unreachable := c.Unreachable[d.Node]; unreachable {
		return
	}
	o := c.ObserveFrom(d, c.Disks)
	images := fleet.mayReject(d, o)
	for ref, r := range rejections(fleet.NewRound(d, o, images), slices.Values(images)) {
		if c.published[ref.Disk].Copies != nil {
			addRejection(c.published[ref.Disk], ref.ID, r)
		}
	}
}

// addRejection records in the observed disk that it takes no copy of the image.
func addRejection(d model.Disk, id ident.ID, r Rejection) {
	c, exists := d.Copies[id]
	if !exists {
		c = model.Copy{ID: id, State: model.Pending}
	}
	c.Rejection, c.RejectionTemporary = r.Text, r.Severity == Temporary
	d.Copies[id] = c
}

// ObserveFrom returns what the node of d observes when the other nodes publish these disks.
func (c *Cluster) ObserveFrom(d Desired, published map[ident.DiskRef]model.Disk) Observed {
	o := Observed{
		Now: c.Now, Disks: maps.Clone(published), Failures: c.Failures, Peers: map[string]model.Peer{},
		Running: map[ident.CopyRef]bool{}, Jobs: c.Jobs, BeingRead: map[ident.CopyRef]bool{}, CannotPrepare: c.CannotPrepare[d.Node], BackedUp: map[ident.ID]bool{},
	}
	maps.Copy(o.Running, c.Running)
	maps.Copy(o.BeingRead, c.BeingRead)
	for node := range d.Config.Nodes {
		if node != d.Node {
			o.Peers[node] = c.peer(node, d.Digest)
		}
	}
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := ident.DiskRef{Node: d.Node, Disk: name}
		if own, known := c.Disks[ref]; known {
			o.Disks[ref] = own
		}
	}
	for ref := range c.BackedUp {
		if ref.Disk.Node == d.Node {
			o.BackedUp[ref.ID] = true
		}
	}
	o.MarkDisputedDisks()
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
	if first.rankCache == nil {
		first.rankCache = NewRankCache(first.Config.Nodes, maxCachedRanks)
	}
	if c.published == nil {
		c.publishAll(first)
	}
	fleet := newFleetIndex(first, c.published)
	fleet.addInProgress(c)
	observer := first
	observer.Node, observer.OnlyDisks = "", nil
	fleet.addTargets(observer, c.ObserveFrom(observer, c.published))
	actions := []Action{} // never null in JSON
	for _, d := range nodes {
		d.rankCache = first.rankCache
		images := fleet.images(d, d.Node == first.Node || !c.publishesAll(d))
		actions = append(actions, planImages(fleet.NewRound(d, c.ObserveFrom(d, c.published), images), slices.Values(images))...)
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
// action that concerns no disk is in the plan once.
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

// fleetIndex divides the work of planning for all nodes of a cluster. Each image is planned
// only for the few nodes that it may concern. The result is the same as when each node plans
// all images.
type fleetIndex struct {
	copiesByName  map[string][]ident.CopyRef     // all copies by image name, sorted
	digestsByName map[string][]ident.Digest      // the digests of these copies
	namesByDigest map[ident.Digest][]string      // the images with copies of that digest
	undeclared    []string                       // images with copies that are not declared
	maxSpace      map[string]neededSpace         // that a new copy takes, at most
	imagesByNode  map[string]map[string]struct{} // the images that may concern a node
}

// neededSpace is the disk space that a new copy takes, in bytes.
type neededSpace struct {
	data   int64 // of the image
	beside int64 // of the files beside it
}

// max returns the larger one of each value.
func (s neededSpace) max(t neededSpace) neededSpace {
	return neededSpace{max(s.data, t.data), max(s.beside, t.beside)}
}

// newFleetIndex indexes the published disks.
func newFleetIndex(d Desired, disks map[ident.DiskRef]model.Disk) *fleetIndex {
	f := &fleetIndex{copiesByName: map[string][]ident.CopyRef{}, digestsByName: map[string][]ident.Digest{}, namesByDigest: map[ident.Digest][]string{}, maxSpace: map[string]neededSpace{}, imagesByNode: map[string]map[string]struct{}{}}
	largest := map[ident.Digest]neededSpace{}
	for _, ref := range slices.SortedFunc(maps.Keys(disks), ident.DiskRef.Compare) {
		for _, id := range slices.SortedFunc(maps.Keys(disks[ref].Copies), ident.ID.Compare) {
			c := disks[ref].Copies[id]
			f.copiesByName[id.Name] = append(f.copiesByName[id.Name], ident.CopyRef{Disk: ref, ID: id})
			needed := neededSpace{c.RealSize, disk.SpaceBeside(c.Size)}
			f.maxSpace[id.Name] = f.maxSpace[id.Name].max(needed)
			for _, digest := range []ident.Digest{c.SHA512, c.SHA256} {
				if names := f.namesByDigest[digest]; !digest.IsZero() && !slices.Contains(names, id.Name) {
					f.namesByDigest[digest], f.digestsByName[id.Name] = append(names, id.Name), append(f.digestsByName[id.Name], digest)
				}
				largest[digest] = largest[digest].max(needed)
			}
		}
	}
	for name := range f.copiesByName {
		if _, declared := d.Config.Images[name]; !declared {
			f.undeclared = append(f.undeclared, name)
		}
	}
	for name, image := range d.Config.Images {
		if !image.Checksum.IsZero() {
			f.maxSpace[name] = f.maxSpace[name].max(largest[image.Checksum])
		}
	}
	return f
}

// addImage adds an image that may concern a node.
func (f *fleetIndex) addImage(node, name string) {
	if f.imagesByNode[node] == nil {
		f.imagesByNode[node] = map[string]struct{}{}
	}
	f.imagesByNode[node][name] = struct{}{}
}

// addInProgress adds the images with failures and running jobs.
func (f *fleetIndex) addInProgress(c *Cluster) {
	for ref := range c.Failures {
		f.addImage(ref.Disk.Node, ref.ID.Name)
	}
	for ref := range c.Running {
		f.addImage(ref.Disk.Node, ref.ID.Name)
	}
}

// addTargets adds each image to the nodes where something must be done about a copy of it, or
// where a copy is surplus or a disk was rejected. The argument d is the desired state of an
// observer without disks, and o has what the nodes publish.
func (f *fleetIndex) addTargets(d Desired, o Observed) {
	ix := NewRound(d, o)
	for name, image := range d.Config.Images {
		p := newImagePlanner(ix, image)
		targets := map[ident.DiskRef]bool{}
		for _, ref := range p.placement.targets {
			targets[ref] = true
			if image.Backup != nil || !isComplete(p.state, p.state.on(ref)) {
				f.addImage(ref.Node, name)
			}
		}
		for _, ref := range f.copiesByName[name] {
			if !targets[ref.Disk] || !isComplete(p.state, ref) {
				f.addImage(ref.Disk.Node, name)
			}
		}
		for _, ref := range image.Disks {
			f.addImage(ref.Node, name)
		}
		for ref := range p.placement.rejected {
			f.addImage(ref.Node, name)
		}
	}
	for ref, seen := range o.Disks {
		for id := range seen.Needs {
			f.addImage(ref.Node, id.Name)
		}
	}
}

// isComplete reports whether nothing must be done about a copy on a desired disk.
func isComplete(s *imageState, ref ident.CopyRef) bool {
	c := s.ix.copyAt(ref)
	return ref.ID == s.image.ID && c.State == model.Ready && c.HasCfg && !c.ManifestDigest.IsZero() && !s.ix.suspects[ref] && s.mismatch[ref].IsZero()
}

// images returns the images that may concern a node. If all is true, it returns every image: the
// first node also reports the actions that concern no disk.
func (f *fleetIndex) images(d Desired, all bool) []schema.Image {
	if all {
		return slices.Collect(maps.Values(d.Config.Images))
	}
	var images []schema.Image
	for name := range f.imagesByNode[d.Node] {
		if image, declared := d.Config.Images[name]; declared {
			images = append(images, image)
		}
	}
	return images
}

// newRound returns the round of d and o with the copies that matter for these images.
func (f *fleetIndex) NewRound(d Desired, o Observed, images []schema.Image) *Round {
	ix := emptyRound(d, o)
	for ref, seen := range o.Disks {
		if seen.Problem == "" && d.Owns(ref) {
			ix.ownDisks = append(ix.ownDisks, ref)
		}
	}
	slices.SortFunc(ix.ownDisks, ident.DiskRef.Compare)
	for name := range f.closure(images) {
		for _, ref := range f.copiesByName[name] {
			seen := o.Disks[ref.Disk]
			if c, exists := seen.Copies[ref.ID]; exists && seen.Problem == "" {
				ix.addCopy(ref, c, d.Owns(ref.Disk))
			}
		}
	}
	// closure is in no order, and the sources of a sync must be in the order of newRound.
	for _, byDigest := range []map[ident.Digest][]ident.CopyRef{ix.ownByDigest, ix.peerByDigest} {
		for _, refs := range byDigest {
			slices.SortFunc(refs, ident.CopyRef.Compare)
		}
	}
	return ix
}

// closure returns the names of the images whose copies matter for these images: their own, the
// images that they are cloned from, images with the same bytes, and all orphans.
func (f *fleetIndex) closure(images []schema.Image) map[string]bool {
	names := map[string]bool{}
	addSameBytes := func(digest ident.Digest) {
		for _, name := range f.namesByDigest[digest] {
			names[name] = true
		}
	}
	add := func(name string) {
		names[name] = true
		for _, digest := range f.digestsByName[name] {
			addSameBytes(digest)
		}
	}
	for _, image := range images {
		addSameBytes(image.Checksum)
		add(image.ID.Name)
		if clone := image.Source.Clone; clone != nil {
			add(clone.BackingImage)
		}
	}
	for _, name := range f.undeclared {
		add(name)
	}
	return names
}

// mayReject returns the images that a disk of the node may reject. All others certainly fit.
func (f *fleetIndex) mayReject(d Desired, o Observed) []schema.Image {
	var images []schema.Image
	for name, image := range d.Config.Images {
		may := image.Source.Clone != nil || o.CannotPrepare[image.ID] != ""
		for diskName, declared := range d.Config.Nodes[d.Node].Disks {
			ref := ident.DiskRef{Node: d.Node, Disk: diskName}
			seen := o.Disks[ref]
			need := max(1, f.maxSpace[name].data+f.maxSpace[name].beside, o.Failures[ident.CopyRef{Disk: ref, ID: image.ID}].NeedsSpace)
			may = may || need > seen.Space.Free-declared.StorageReserved || seen.Copies[image.ID].State == model.Failed
		}
		if may {
			images = append(images, image)
		}
	}
	return images
}
