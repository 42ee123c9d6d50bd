package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/simulation"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// checkNode returns an error if the node is not declared. The error lists the declared nodes.
func checkNode(c schema.Config, name string) error {
	if _, ok := c.Nodes[name]; !ok {
		return fmt.Errorf("node %s is not declared: the nodes are %s", name, joinNames(nodeNames(c)))
	}
	return nil
}

// parseDisk parses NODE/DISK. The error lists the declared names.
func parseDisk(c schema.Config, text string) (ident.DiskRef, error) {
	ref, err := ident.ParseDiskRef(text)
	if err != nil {
		return ident.DiskRef{}, fmt.Errorf("%s is not a disk: %w", text, err)
	}
	if err := checkNode(c, ref.Node); err != nil {
		return ident.DiskRef{}, err
	}
	disks := c.Nodes[ref.Node].Disks
	if _, ok := disks[ref.Disk]; !ok {
		return ident.DiskRef{}, fmt.Errorf("node %s has no disk %s: it has %s", ref.Node, ref.Disk, joinNames(slices.Sorted(maps.Keys(disks))))
	}
	return ref, nil
}

// findImage finds an image by its name, or a generation by <name>-<uuid>. The name of an
// undeclared image is enough if only one of its generations has copies.
func (w *world) findImage(text string) (ident.ID, error) {
	if image, ok := w.base.Config.Images[text]; ok {
		return image.ID, nil
	}
	if _, invalid := w.base.Invalid[text]; invalid {
		return ident.ID{Name: text}, nil
	}
	generations := map[string]ident.ID{} // of copies
	for _, d := range w.disks {
		for id := range d.Copies {
			if id.Name == text {
				generations[id.String()] = id
			}
		}
	}
	for _, id := range generations {
		if len(generations) == 1 {
			return id, nil
		}
		return ident.ID{}, fmt.Errorf("%s has several generations: name one of %s", text, joinNames(slices.Sorted(maps.Keys(generations))))
	}
	for _, e := range slices.Backward(w.history) {
		if e.Image == text {
			return e.CopyRef().ID, nil
		}
	}
	if id, err := ident.ParseID(text); err == nil {
		return id, nil
	}
	return ident.ID{}, fmt.Errorf("image %s is not declared and has no copies: the declared images are %s", text, joinNames(slices.Sorted(maps.Keys(w.base.Config.Images))))
}

// joinNames lists names for an error.
func joinNames(names []string) string { return cmp.Or(plan.JoinMax(names, ", ", 10), "none") }

// setUp starts or stops a node. A node that is down neither works nor responds. Its disks stay
// as they are. A node that starts knows only what is on its disks.
func (w *world) setUp(node string, up bool) {
	w.observeAll()
	_, down := w.down[node]
	switch {
	case up:
		delete(w.down, node)
		w.startNodes()
	case !down:
		w.nodes[node].stop()
		w.down[node] = w.now
	}
	w.changed()
}

// setAttached attaches or detaches a disk. The disk keeps its copies.
func (w *world) setAttached(ref ident.DiskRef, attached bool) {
	w.observeAll()
	w.at(ref).Attached = attached
	w.changed()
	w.observeAll() // the time for which the disk has a problem begins now
}

// putCopy puts a copy on a disk, or removes it if c is nil. It does not change the free space.
func (w *world) putCopy(ref ident.CopyRef, c *simulation.Copy) {
	d := w.at(ref.Disk)
	free := d.Free()
	if d.Copies[ref.ID] = c; c == nil {
		delete(d.Copies, ref.ID)
	}
	d.SetFree(free)
	w.changed()
}

// newCopy returns a copy of an image in a state.
func (w *world) newCopy(id ident.ID, state model.State, size int64) *simulation.Copy {
	content := w.contents.of(w.base.Config, id, size)
	c := &simulation.Copy{File: content, Recorded: content, Owned: true}
	switch state {
	case model.Ready:
		c.VerifiedAt = w.now
	case model.Failed:
		c.File = w.contents.damaged(content)
		c.MarkDamaged(w.now)
	case model.Unknown:
		c.Recorded, c.Owned, c.NoCfg = "", false, true
	}
	return c
}

// setUsed sets whether a replica on the disk uses a copy. The copy need not exist.
func (w *world) setUsed(ref ident.CopyRef, used bool) {
	w.observeAll()
	d := w.at(ref.Disk)
	delete(d.Replicas, ref.ID)
	if c := d.Copies[ref.ID]; c != nil {
		c.Users, c.UsedBy = 0, ""
	}
	if used {
		d.Replicas[ref.ID] = simulation.Replicas{Count: 1}
	}
	w.changed()
}

// advance moves the clock. The managers observe the usage of copies, but execute nothing.
func (w *world) advance(d time.Duration) {
	w.observeAll()
	w.now = w.now.Add(d)
	w.changed()
}
