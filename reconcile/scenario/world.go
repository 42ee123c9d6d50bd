package scenario

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/schema"
	"github.com/seed-26586806/backing-image-manager/schema/load"
)

// start is the initial time. It is after earliestTime of package plan: the planner considers
// earlier recorded times implausible.
var start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

const (
	initialSpace = 1 << 40  // of each disk
	initialSize  = 1 << 30  // of the image of each source
	soleNode     = "node1"  // the node of a configuration without nodes
	solePath     = "/disk1" // its disk
)

// world is a cluster in memory with its history. It is for one goroutine.
type world struct {
	now, startedAt time.Time
	base           plan.Desired // of the first node; other nodes differ in the name only
	contents       contents
	disks          map[diskLocation]*simulation.Disk
	nodes          map[string]*node     // the managers that run
	down           map[string]time.Time // nodes that are down, with the time when they stopped
	sources        map[string]source    // by the name of the image
	history        []executed
}

// diskLocation identifies a disk. Its name may change with the configuration.
type diskLocation struct{ node, path string }

// source is the behaviour of the source of an image.
type source struct {
	size  int64
	err   error    // the failure of each attempt; nil means that the source delivers
	nodes []string // the nodes that can reach the source; nil means all nodes
}

// without returns a source like s, except that the node cannot reach it.
func (s source) without(node string, c schema.Config) source {
	if s.nodes == nil {
		s.nodes = nodeNames(c)
	}
	s.nodes = slices.DeleteFunc(slices.Clone(s.nodes), func(name string) bool { return name == node })
	return s
}

// executed is an action in the history.
type executed struct {
	plan.Action
	at  time.Time
	err error // nil means success
}

// newWorld returns the cluster of a configuration. The error says why the configuration cannot
// be applied.
func newWorld(r load.Result) (*world, error) {
	w := &world{
		now: start, startedAt: start, contents: contents{simulation.NewLibrary()}, disks: map[diskLocation]*simulation.Disk{},
		nodes: map[string]*node{}, down: map[string]time.Time{}, sources: map[string]source{},
	}
	return w, w.configure(r)
}

// configure changes the configuration of all nodes. All nodes have confirmed the removal of
// images, so a missing image counts as removed. New disks are attached and empty. A disk at a
// known path of the same node is the known disk, whatever its name.
func (w *world) configure(r load.Result) error {
	name, paths := soleNode, []string{solePath}
	if nodes := nodeNames(r.Config); len(nodes) > 0 {
		name, paths = nodes[0], nil
	}
	base, err := plan.NewDesired(r.Loaded, name, paths)
	if err != nil {
		return err
	}
	base.Removed = plan.AlwaysConfirmed
	w.base = base
	for ref, at := range w.locations() {
		if w.disks[at] == nil {
			w.disks[at] = simulation.NewDisk(ref.String(), w.contents.Library, initialSpace)
		}
	}
	for name, n := range w.nodes {
		if _, declared := base.Config.Nodes[name]; !declared {
			n.stop()
		}
	}
	w.startNodes()
	w.changed()
	return nil
}

// startNodes starts the managers of the nodes that are up.
func (w *world) startNodes() {
	for _, name := range nodeNames(w.base.Config) {
		if _, down := w.down[name]; !down && w.nodes[name] == nil {
			w.nodes[name] = startNode(w, name)
		}
	}
}

// running returns the managers that run, sorted by name.
func (w *world) running() []*node {
	var nodes []*node
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		nodes = append(nodes, w.nodes[name])
	}
	return nodes
}

// changed makes every node observe again.
func (w *world) changed() {
	for _, n := range w.nodes {
		n.due = true
	}
}

// locations returns the locations of the declared disks.
func (w *world) locations() map[ident.DiskRef]diskLocation {
	all := map[ident.DiskRef]diskLocation{}
	for node, declared := range w.base.Config.Nodes {
		for name, d := range declared.Disks {
			all[ident.DiskRef{Node: node, Disk: name}] = diskLocation{node, d.Path}
		}
	}
	return all
}

// at returns the simulated disk at the declared path of ref.
func (w *world) at(ref ident.DiskRef) *simulation.Disk {
	return w.disks[diskLocation{ref.Node, w.base.Config.Nodes[ref.Node].Disks[ref.Disk].Path}]
}

// reachable reports whether a disk is attached and its node is up.
func (w *world) reachable(ref ident.DiskRef) bool {
	return w.nodes[ref.Node] != nil && w.at(ref).Attached
}

func (w *world) sourceOf(image string) source {
	if s, ok := w.sources[image]; ok {
		return s
	}
	return source{size: initialSize}
}

func nodeNames(c schema.Config) []string { return slices.Sorted(maps.Keys(c.Nodes)) }
