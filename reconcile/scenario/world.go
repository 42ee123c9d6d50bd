package scenario

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// start is the initial time. It is later than the time before which the planner considers a
// recorded time invalid.
var start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

const (
	initialSpace = 1 << 40  // of each disk
	initialSize  = 1 << 30  // of the image of each source
	soleNode     = "node1"  // the node of a configuration without nodes
	solePath     = "/disk1" // its disk
)

// world is a simulated cluster with its history. It is for one goroutine.
type world struct {
	now, startedAt time.Time
	base           plan.Desired // of the first node; the others differ in the name only
	disks          map[diskLocation]*simDisk
	down           map[string]time.Time // nodes that are down, with the time when they stopped
	sources        map[string]source    // by the name of the image
	history        []executed

	// The caches of cluster and plan. A nil one has to be computed.
	cachedCluster *plan.Cluster
	cachedPlan    *plan.Plan
	observed      bool // the usage of all copies is recorded
}

// diskLocation identifies a disk. Its name may change with the configuration.
type diskLocation struct{ node, path string }

// simDisk is a disk, attached or not.
type simDisk struct {
	plan.Disk
	detachedAt time.Time // zero: it is attached
	failures   map[disk.ID]plan.Failure
	backedUp   map[disk.ID]bool
}

func newSimDisk(ref schema.DiskRef, path string) *simDisk {
	return &simDisk{
		Disk: plan.Disk{
			Path: path, UUID: ref.String(), Space: disk.Space{Total: initialSpace, Free: initialSpace}, Copies: map[disk.ID]plan.Copy{},
		},
		failures: map[disk.ID]plan.Failure{}, backedUp: map[disk.ID]bool{},
	}
}

// observe returns the disk as its node sees it.
func (d *simDisk) observe(now time.Time) plan.Disk {
	if d.detachedAt.IsZero() {
		return d.Disk
	}
	problem := d.Problem
	if problem == "" {
		problem = disk.ErrNotInitialised.Error()
	}
	return plan.Disk{Path: d.Path, UUID: d.UUID, Problem: problem, ProblemFor: now.Sub(d.detachedAt)}
}

// source is the behaviour of the source of an image.
type source struct {
	size  int64
	err   error    // the failure of each attempt; nil: it delivers
	nodes []string // that can reach it; nil: all
}

// newWorld returns the cluster of a configuration. The error says why the configuration cannot
// be applied.
func newWorld(r schema.Result) (*world, error) {
	w := &world{now: start, startedAt: start, disks: map[diskLocation]*simDisk{}, down: map[string]time.Time{}, sources: map[string]source{}}
	return w, w.configure(r)
}

// configure changes the configuration of all nodes. All nodes have confirmed it, so that
// images that are missing in it count as removed. New disks are attached and empty. A disk at
// a known path of the same node is the known disk, whatever its name.
func (w *world) configure(r schema.Result) error {
	node, paths := soleNode, []string{solePath}
	if nodes := nodeNames(r.Config); len(nodes) > 0 {
		node, paths = nodes[0], nil
	}
	base, err := plan.NewDesired(r, node, paths)
	if err != nil {
		return err
	}
	before := w.base.Config
	w.base = base
	w.invalidate()
	for ref, at := range w.locations() {
		if w.disks[at] == nil {
			w.disks[at] = newSimDisk(ref, at.path)
		}
	}
	w.dropFailures(before)
	return nil
}

// dropFailures removes the failures that happened under another declaration.
func (w *world) dropFailures(before schema.Config) {
	for at, d := range w.disks {
		c := &plan.Cluster{Failures: map[plan.CopyRef]plan.Failure{}}
		for id, f := range d.failures {
			c.Failures[plan.CopyRef{Disk: schema.DiskRef{Node: at.node}, ID: id}] = f
		}
		c.Forget(before, w.base.Config)
		clear(d.failures)
		for ref, f := range c.Failures {
			d.failures[ref.ID] = f
		}
	}
}

// restore sets the cluster to saved states. What they do not contain stays as it is.
func (w *world) restore(s *status.SavedCluster) {
	c := s.Cluster(w.base)
	w.now, w.startedAt = c.Now, c.Now
	w.invalidate()
	for ref, saved := range c.Disks {
		d := newSimDisk(ref, saved.Path)
		d.Disk = saved
		if saved.Problem != "" {
			d.detachedAt = w.now.Add(-saved.ProblemFor)
		}
		w.disks[diskLocation{ref.Node, saved.Path}] = d
	}
	for ref, f := range c.Failures {
		w.at(ref.Disk).failures[ref.ID] = f
	}
	for ref := range c.BackedUp {
		w.at(ref.Disk).backedUp[ref.ID] = true
	}
	for node, p := range c.Unreachable {
		if s.Knows(node) {
			w.down[node] = w.now.Add(-p.UnreachableFor)
		}
	}
	for node, images := range c.CannotPrepare {
		for id := range images {
			s := w.sourceOf(id.Name)
			if s.nodes == nil {
				s.nodes = nodeNames(w.base.Config)
			}
			s.nodes = slices.DeleteFunc(slices.Clone(s.nodes), func(name string) bool { return name == node })
			w.sources[id.Name] = s
		}
	}
}

// invalidate drops the caches after a change.
func (w *world) invalidate() { w.cachedCluster, w.cachedPlan, w.observed = nil, nil, false }

// locations returns the locations of the declared disks.
func (w *world) locations() map[schema.DiskRef]diskLocation {
	all := map[schema.DiskRef]diskLocation{}
	for node, declared := range w.base.Config.Nodes {
		for name, d := range declared.Disks {
			all[schema.DiskRef{Node: node, Disk: name}] = diskLocation{node, d.Path}
		}
	}
	return all
}

// at returns a declared disk.
func (w *world) at(ref schema.DiskRef) *simDisk {
	return w.disks[diskLocation{ref.Node, w.base.Config.Nodes[ref.Node].Disks[ref.Disk].Path}]
}

func (w *world) sourceOf(image string) source {
	if s, ok := w.sources[image]; ok {
		return s
	}
	return source{size: initialSize}
}

// desired returns the desired state of one node.
func (w *world) desired(node string) plan.Desired {
	d := w.base
	d.Node = node
	return d
}

// cluster returns the state that the managers observe.
func (w *world) cluster() *plan.Cluster {
	if w.cachedCluster != nil {
		return w.cachedCluster
	}
	c := &plan.Cluster{
		Now: w.now, Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{},
		Unreachable: map[string]plan.Peer{}, CannotPrepare: map[string]map[disk.ID]string{}, BackedUp: map[plan.CopyRef]bool{},
	}
	for ref, at := range w.locations() {
		d := w.disks[at]
		c.Disks[ref] = d.observe(w.now)
		for id, f := range d.failures {
			c.Failures[plan.CopyRef{Disk: ref, ID: id}] = f
		}
		for id := range d.backedUp {
			c.BackedUp[plan.CopyRef{Disk: ref, ID: id}] = true
		}
	}
	for node := range w.base.Config.Nodes {
		if since, down := w.down[node]; down {
			c.Unreachable[node] = plan.Peer{Problem: "it is down", UnreachableFor: w.now.Sub(since)}
		}
		c.CannotPrepare[node] = w.missingReplicas(node)
	}
	w.cachedCluster = c
	return c
}

// missingReplicas returns the exported images whose volume has no replica on a node.
func (w *world) missingReplicas(node string) map[disk.ID]string {
	missing := map[disk.ID]string{}
	for name, s := range w.sources {
		image := w.base.Config.Images[name]
		if image.Source.ExportFromVolume != nil && s.nodes != nil && !slices.Contains(s.nodes, node) {
			missing[image.ID] = "no replica of the volume is on this node"
		}
	}
	return missing
}

func nodeNames(c schema.Config) []string { return slices.Sorted(maps.Keys(c.Nodes)) }
