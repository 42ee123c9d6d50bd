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

// start is when a World begins: after every time before which a recorded one cannot be
// right, and otherwise as early as can be.
var start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

const initialSpace = 1 << 40

// world is a cluster as it is, and what happened to it. It is for one goroutine.
type world struct {
	now, startedAt time.Time
	base           plan.Desired // of one of the nodes; they differ in the name only
	disks          map[diskLocation]*simDisk
	down           map[string]time.Time // the nodes that are not up, and since when
	sources        map[string]source    // by name of the image
	history        []executed
	// As the world is now; nil: they have to be made.
	cached     *plan.Cluster
	cachedPlan *plan.Plan
	// looked: all marks are written.
	observed bool
}

// diskLocation is where a disk lies. What it is called may change with the configuration.
type diskLocation struct{ node, path string }

// simDisk is a disk, there or not.
type simDisk struct {
	plan.Disk
	detachedAt time.Time // since when it is not there; zero: it is
	tries      map[disk.ID]plan.Failure
	backedUp   map[disk.ID]bool
}

// source is what the source of an image does when it is asked.
type source struct {
	Size int64
	Err  error // what it fails with; nil: it delivers
	// From are the nodes that can reach it; nil: all.
	From []string
}

// soleNode is the node of a configuration that declares none.
const soleNode = "node1"

// newWorld returns the World of a configuration. The error says that it cannot be acted on.
func newWorld(r schema.Result) (*world, error) {
	w := &world{now: start, startedAt: start, disks: map[diskLocation]*simDisk{}, down: map[string]time.Time{}, sources: map[string]source{}}
	return w, w.configure(r)
}

// configure gives all nodes another configuration, as confirmed: what is not in it has
// left. Disks that are new in it are there and empty; one that lies where another did
// on the same node is the same one.
func (w *world) configure(r schema.Result) error {
	node, paths := soleNode, []string{"/disk1"}
	for _, name := range slices.Sorted(maps.Keys(r.Config.Nodes)) {
		node, paths = name, nil
		break
	}
	base, err := plan.NewDesired(r, node, paths)
	if err != nil {
		return err
	}
	before := w.base.Config
	w.base = base
	w.invalidate()
	for ref, at := range w.places() {
		if w.disks[at] == nil {
			w.disks[at] = newSimDisk(ref, at.path)
		}
	}
	w.forget(before)
	return nil
}

func newSimDisk(ref schema.DiskRef, path string) *simDisk {
	return &simDisk{
		Disk: plan.Disk{
			Path: path, UUID: ref.String(), Space: disk.Space{Total: initialSpace, Free: initialSpace}, Copies: map[disk.ID]plan.Copy{},
		},
		tries: map[disk.ID]plan.Failure{}, backedUp: map[disk.ID]bool{},
	}
}

// forget drops what failed under another declaration.
func (w *world) forget(before schema.Config) {
	for at, d := range w.disks {
		c := &plan.Cluster{Failures: map[plan.CopyRef]plan.Failure{}}
		for id, t := range d.tries {
			c.Failures[plan.CopyRef{Disk: schema.DiskRef{Node: at.node}, ID: id}] = t
		}
		c.Forget(before, w.base.Config)
		clear(d.tries)
		for key, t := range c.Failures {
			d.tries[key.ID] = t
		}
	}
}

// restore makes the world what saved statuses tell. What they do not tell of stays as it
// was.
func (w *world) restore(s *status.SavedCluster) {
	c := s.Cluster(w.base)
	w.now, w.startedAt = c.Now, c.Now
	w.invalidate()
	for ref, seen := range c.Disks {
		d := newSimDisk(ref, seen.Path)
		d.Disk = seen
		if seen.Problem != "" {
			d.detachedAt = w.now.Add(-seen.ProblemFor)
		}
		w.disks[diskLocation{ref.Node, seen.Path}] = d
	}
	for key, t := range c.Failures {
		w.at(key.Disk).tries[key.ID] = t
	}
	for key := range c.BackedUp {
		w.at(key.Disk).backedUp[key.ID] = true
	}
	for node, p := range c.Unreachable {
		if s.Knows(node) {
			w.down[node] = w.now.Add(-p.UnreachableFor)
		}
	}
	for node, images := range c.CannotPrepare {
		for id := range images {
			w.removeReach(node, id.Name)
		}
	}
}

// removeReach takes the source of an image out of the reach of a node.
func (w *world) removeReach(node, image string) {
	s := w.source(image)
	if s.From == nil {
		s.From = w.nodes()
	}
	s.From = slices.DeleteFunc(slices.Clone(s.From), func(name string) bool { return name == node })
	w.sources[image] = s
}

// config is the configuration that holds.
func (w *world) config() schema.Config { return w.base.Config }

// nodes are those that are declared, sorted.
func (w *world) nodes() []string { return slices.Sorted(maps.Keys(w.base.Config.Nodes)) }

// Now is the time by all clocks.
func (w *world) Now() time.Time { return w.now }

// sinceStart is how long ago the world began at some time.
func (w *world) sinceStart(at time.Time) time.Duration { return at.Sub(w.startedAt) }

// invalidate has everything looked at anew.
func (w *world) invalidate() { w.cached, w.cachedPlan, w.observed = nil, nil, false }

// places are where the declared disks lie.
func (w *world) places() map[schema.DiskRef]diskLocation {
	all := map[schema.DiskRef]diskLocation{}
	for node, declared := range w.base.Config.Nodes {
		for name, d := range declared.Disks {
			all[schema.DiskRef{Node: node, Disk: name}] = diskLocation{node, d.Path}
		}
	}
	return all
}

// at is a declared disk.
func (w *world) at(ref schema.DiskRef) *simDisk {
	return w.disks[diskLocation{ref.Node, w.base.Config.Nodes[ref.Node].Disks[ref.Disk].Path}]
}

func (w *world) source(image string) source {
	if s, ok := w.sources[image]; ok {
		return s
	}
	return source{Size: 1 << 30}
}

// desired is what is desired of one node.
func (w *world) desired(node string) plan.Desired {
	d := w.base
	d.Node = node
	return d
}

// cluster is the world as the managers find it.
func (w *world) cluster() *plan.Cluster {
	if w.cached == nil {
		w.cached = w.buildCluster()
	}
	return w.cached
}

func (w *world) buildCluster() *plan.Cluster {
	c := &plan.Cluster{
		Now: w.now, Disks: map[schema.DiskRef]plan.Disk{}, Failures: map[plan.CopyRef]plan.Failure{},
		Unreachable: map[string]plan.Peer{}, CannotPrepare: map[string]map[disk.ID]string{}, BackedUp: map[plan.CopyRef]bool{},
	}
	for ref, at := range w.places() {
		d := w.disks[at]
		c.Disks[ref] = d.observe(w.now)
		for id, t := range d.tries {
			c.Failures[plan.CopyRef{Disk: ref, ID: id}] = t
		}
		for id := range d.backedUp {
			c.BackedUp[plan.CopyRef{Disk: ref, ID: id}] = true
		}
	}
	for node := range w.base.Config.Nodes {
		if since, down := w.down[node]; down {
			c.Unreachable[node] = plan.Peer{Problem: "it is down", UnreachableFor: w.now.Sub(since)}
		}
		c.CannotPrepare[node] = w.unable(node)
	}
	return c
}

// observe is the disk as its node sees it.
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

// unable are the volumes of which a node has no replica.
func (w *world) unable(node string) map[disk.ID]string {
	out := map[disk.ID]string{}
	for name, s := range w.sources {
		image := w.base.Config.Images[name]
		if image.Source.ExportFromVolume != nil && s.From != nil && !slices.Contains(s.From, node) {
			out[image.ID] = "no replica of the volume is on this node"
		}
	}
	return out
}
