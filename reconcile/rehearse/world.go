// Package rehearse plays through what the managers of a cluster would do, in memory: the
// plans are the real ones (reconcile.Desired.Plan), and whatever they say happens at
// once, or fails where the world says so.
//
// A World is the nodes of one configuration with their disks, the sources of the images,
// and a clock. It begins with every declared disk there and empty, every node up, every
// source delivering, and nothing in use.
//
//	round:  every node that is up marks its copies (Marks) and plans
//	        what is to be made is made, at once
//	        what is to go goes if the others agree (Confirm)
//
// What it leaves out: bytes (every copy has the right ones), the time that transfers
// take and how many run at once, and what happens between two rounds, so that no work is
// ever interrupted and no two nodes see different things. Whoever needs these has the
// simulation of package reconcile.
package rehearse

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Start is when a World begins: after every time before which a recorded one cannot be
// right, and otherwise as early as can be.
var Start = time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)

const tebibyte = 1 << 40

// World is a cluster as it is, and what happened to it. It is for one goroutine.
type World struct {
	now, began time.Time
	base       reconcile.Desired // of one of the nodes; they differ in the name only
	drives     map[place]*drive
	down       map[string]time.Time // the nodes that are not up, and since when
	sources    map[string]Source    // by name of the image
	done       []Done
	// As the world is now; nil: they have to be made.
	all  *reconcile.Cluster
	plan *reconcile.Plan
	// looked: all marks are written.
	looked bool
}

// place is where a disk lies. What it is called may change with the configuration.
type place struct{ node, path string }

// drive is a disk, there or not.
type drive struct {
	reconcile.Disk
	away     time.Time // since when it is not there; zero: it is
	tries    map[disk.ID]reconcile.Try
	backedUp map[disk.ID]bool
}

// Source is what the source of an image does when it is asked.
type Source struct {
	Size int64
	Err  error // what it fails with; nil: it delivers
	// From are the nodes that can reach it; nil: all.
	From []string
}

// alone is the node of a configuration that declares none.
const alone = "node1"

// New returns the World of a configuration. The error says that it cannot be acted on.
func New(r schema.Result) (*World, error) {
	w := &World{now: Start, began: Start, drives: map[place]*drive{}, down: map[string]time.Time{}, sources: map[string]Source{}}
	return w, w.Configure(r)
}

// Configure gives all nodes another configuration, as confirmed: what is not in it has
// left. Disks that are new in it are there and empty; one that lies where another did
// on the same node is the same one.
func (w *World) Configure(r schema.Result) error {
	node, paths := alone, []string{"/disk1"}
	for _, name := range slices.Sorted(maps.Keys(r.Config.Nodes)) {
		node, paths = name, nil
		break
	}
	base, err := reconcile.Desire(r, node, paths)
	if err != nil {
		return err
	}
	before := w.base.Config
	w.base = base
	w.changed()
	for ref, at := range w.places() {
		if w.drives[at] == nil {
			w.drives[at] = newDrive(ref, at.path)
		}
	}
	w.forget(before)
	return nil
}

func newDrive(ref schema.DiskRef, path string) *drive {
	return &drive{
		Disk: reconcile.Disk{
			Path: path, UUID: ref.String(), Space: disk.Space{Total: tebibyte, Free: tebibyte}, Copies: map[disk.ID]reconcile.Copy{},
		},
		tries: map[disk.ID]reconcile.Try{}, backedUp: map[disk.ID]bool{},
	}
}

// forget drops what failed under another declaration.
func (w *World) forget(before schema.Config) {
	for at, d := range w.drives {
		c := &reconcile.Cluster{Tries: map[reconcile.Key]reconcile.Try{}}
		for id, t := range d.tries {
			c.Tries[reconcile.Key{Disk: schema.DiskRef{Node: at.node}, ID: id}] = t
		}
		c.Forget(before, w.base.Config)
		clear(d.tries)
		for key, t := range c.Tries {
			d.tries[key.ID] = t
		}
	}
}

// Saved makes the world what saved statuses tell. What they do not tell of stays as it
// was.
func (w *World) Saved(s *reconcile.Snapshot) {
	c := s.Cluster(w.base)
	w.now, w.began = c.Now, c.Now
	w.changed()
	for ref, seen := range c.Disks {
		d := newDrive(ref, seen.Path)
		d.Disk = seen
		if seen.Problem != "" {
			d.away = w.now.Add(-seen.Away)
		}
		w.drives[place{ref.Node, seen.Path}] = d
	}
	for key, t := range c.Tries {
		w.at(key.Disk).tries[key.ID] = t
	}
	for key := range c.BackedUp {
		w.at(key.Disk).backedUp[key.ID] = true
	}
	for node, p := range c.Silent {
		if s.Tells(node) {
			w.down[node] = w.now.Add(-p.Silent)
		}
	}
	for node, images := range c.Unable {
		for id := range images {
			w.cannot(node, id.Name)
		}
	}
}

// cannot takes the source of an image out of the reach of a node.
func (w *World) cannot(node, image string) {
	s := w.source(image)
	if s.From == nil {
		s.From = w.Nodes()
	}
	s.From = slices.DeleteFunc(slices.Clone(s.From), func(name string) bool { return name == node })
	w.sources[image] = s
}

// Config is the configuration that holds.
func (w *World) Config() schema.Config { return w.base.Config }

// Nodes are those that are declared, sorted.
func (w *World) Nodes() []string { return slices.Sorted(maps.Keys(w.base.Config.Nodes)) }

// Now is the time by all clocks.
func (w *World) Now() time.Time { return w.now }

// Since is how long ago the world began at some time.
func (w *World) Since(at time.Time) time.Duration { return at.Sub(w.began) }

// changed has everything looked at anew.
func (w *World) changed() { w.all, w.plan, w.looked = nil, nil, false }

// places are where the declared disks lie.
func (w *World) places() map[schema.DiskRef]place {
	all := map[schema.DiskRef]place{}
	for node, declared := range w.base.Config.Nodes {
		for name, d := range declared.Disks {
			all[schema.DiskRef{Node: node, Disk: name}] = place{node, d.Path}
		}
	}
	return all
}

// at is a declared disk.
func (w *World) at(ref schema.DiskRef) *drive {
	return w.drives[place{ref.Node, w.base.Config.Nodes[ref.Node].Disks[ref.Disk].Path}]
}

func (w *World) source(image string) Source {
	if s, ok := w.sources[image]; ok {
		return s
	}
	return Source{Size: 1 << 30}
}

// desired is what is desired of one node.
func (w *World) desired(node string) reconcile.Desired {
	d := w.base
	d.Node = node
	return d
}

// cluster is the world as the managers find it.
func (w *World) cluster() *reconcile.Cluster {
	if w.all == nil {
		w.all = w.find()
	}
	return w.all
}

func (w *World) find() *reconcile.Cluster {
	c := &reconcile.Cluster{
		Now: w.now, Disks: map[schema.DiskRef]reconcile.Disk{}, Tries: map[reconcile.Key]reconcile.Try{},
		Silent: map[string]reconcile.Peer{}, Unable: map[string]map[disk.ID]string{}, BackedUp: map[reconcile.Key]bool{},
	}
	for ref, at := range w.places() {
		d := w.drives[at]
		c.Disks[ref] = d.look(w.now)
		for id, t := range d.tries {
			c.Tries[reconcile.Key{Disk: ref, ID: id}] = t
		}
		for id := range d.backedUp {
			c.BackedUp[reconcile.Key{Disk: ref, ID: id}] = true
		}
	}
	for node := range w.base.Config.Nodes {
		if since, down := w.down[node]; down {
			c.Silent[node] = reconcile.Peer{Problem: "it is down", Silent: w.now.Sub(since)}
		}
		c.Unable[node] = w.unable(node)
	}
	return c
}

// look is the disk as its node sees it.
func (d *drive) look(now time.Time) reconcile.Disk {
	if d.away.IsZero() {
		return d.Disk
	}
	problem := d.Problem
	if problem == "" {
		problem = disk.ErrNotInitialised.Error()
	}
	return reconcile.Disk{Path: d.Path, UUID: d.UUID, Problem: problem, Away: now.Sub(d.away)}
}

// unable are the volumes of which a node has no replica.
func (w *World) unable(node string) map[disk.ID]string {
	out := map[disk.ID]string{}
	for name, s := range w.sources {
		image := w.base.Config.Images[name]
		if image.Source.ExportFromVolume != nil && s.From != nil && !slices.Contains(s.From, node) {
			out[image.ID] = "no replica of the volume is on this node"
		}
	}
	return out
}
