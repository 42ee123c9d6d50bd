package reconcile

import (
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// image checks all that happens to one declared image.
func (j *invariants) image(image schema.Image) {
	ready := j.readyOf(image)
	conflict := false
	for _, key := range ready {
		differs := j.o.Disks[key.Disk].Copies[key.ID].SHA512 != j.o.Disks[ready[0].Disk].Copies[ready[0].ID].SHA512
		conflict = conflict || image.Checksum.IsZero() && differs
	}
	var made, first, about int
	var goes []plan.CopyRef
	for _, a := range j.p.Actions {
		if a.Image != image.ID.Name {
			continue
		}
		about++
		switch a.Op {
		case plan.Download, plan.Upload, plan.Export, plan.Restore, plan.Clone:
			made++
			first++
		case plan.Sync:
			made++
		case plan.Cleanup, plan.Evict:
			if !j.part(a.CopyRef()) { // no image has less by it
				goes = append(goes, a.CopyRef())
			}
		}
	}
	j.never(first > 1 || len(ready) == 0 && made > 1, "%d disks prepare %s at once", made, image.ID)
	j.never(first > 0 && len(ready) > 0, "a first copy of %s, which is ready", image.ID)
	j.never(conflict && made+len(goes) > 0, "work on %s, the copies of which differ", image.ID)
	j.never(made > 0 && len(ready) > 0 && j.d.Config.Settings.ConcurrentReplenishPerNodeLimit == 0, "a second copy of %s although the limit is 0", image.ID)
	j.keepsEnough(image, ready, goes)
	elsewhere := slices.ContainsFunc(matching(j.d.Config, image), func(ref schema.DiskRef) bool { return ref.Node != j.d.Node })
	j.never(j.d.Allowed != schema.ObserveOnly && about == 0 && !elsewhere && len(ready) == 0, "no word about %s, which is nowhere ready", image.ID)
}

// keepsEnough checks what is left when everything goes at once that may go.
func (j *invariants) keepsEnough(image schema.Image, ready, goes []plan.CopyRef) {
	if len(goes) == 0 {
		return
	}
	places := matching(j.d.Config, image)
	least := image.Copies
	if image.AllDisks {
		least = len(places)
	}
	j.never(len(places) == 0, "a deletion of %s, which no disk matches", image.ID)
	stand, left := 0, 0
	for _, key := range ready {
		if slices.Contains(goes, key) || key.Disk.Node == j.d.Node && j.o.Running[key] || !j.counted(key.Disk.Node) || j.o.Disks[key.Disk].Copies[key.ID].Leaving {
			continue // Running: it may be on its way out
		}
		left++
		node := j.d.Config.Nodes[key.Disk.Node]
		_, declared := node.Disks[key.Disk.Disk]
		named := declared && slices.Contains(image.Disks, key.Disk) && !node.EvictionRequested && !node.Disks[key.Disk.Disk].EvictionRequested
		if named || slices.Contains(places, key.Disk) {
			stand++
		}
	}
	j.never(stand < max(1, min(least, len(places))), "%d copies of %s are left where they should be", stand, image.ID)
	j.never(slices.ContainsFunc(goes, func(key plan.CopyRef) bool { return slices.Contains(ready, key) }) && left < least, "%d copies of %s are left of %d, %d are wanted", left, image.ID, len(ready), least)
}

// readyOf are the copies that may be counted on.
func (j *invariants) readyOf(image schema.Image) []plan.CopyRef {
	var keys []plan.CopyRef
	for ref, seen := range j.o.Disks {
		c, there := seen.Copies[image.ID]
		right := image.Checksum.IsZero() || c.SHA512 == image.Checksum || c.SHA256 == image.Checksum
		if there && seen.Problem == "" && c.State == disk.Ready && right && (!c.Leaving || ref.Node == j.d.Node) && j.speaks(ref.Node) {
			keys = append(keys, plan.CopyRef{Disk: ref, ID: image.ID})
		}
	}
	return keys
}

// matching are the disks that may hold an image, in no order.
func matching(c schema.Config, image schema.Image) []schema.DiskRef {
	var refs []schema.DiskRef
	for nodeName, node := range c.Nodes {
		for name, d := range node.Disks {
			ok := !node.EvictionRequested && !d.EvictionRequested
			for _, want := range image.NodeSelector {
				ok = ok && slices.Contains(node.Tags, want)
			}
			for _, want := range image.DiskSelector {
				ok = ok && slices.Contains(d.Tags, want)
			}
			if ok {
				refs = append(refs, schema.DiskRef{Node: nodeName, Disk: name})
			}
		}
	}
	return refs
}
