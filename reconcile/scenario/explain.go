package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// readyDisks are the disks with a ready copy that can be reached: there, on a node that is
// up. They are sorted.
func (w *world) readyDisks(id disk.ID) []schema.DiskRef {
	var refs []schema.DiskRef
	for ref, at := range w.places() {
		if w.disks[at].Copies[id].State == disk.Ready && w.reachable(ref) {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, func(a, b schema.DiskRef) int { return strings.Compare(a.String(), b.String()) })
	return refs
}

// hasTag reports whether the disk or its node has the tag, or is called so.
func (w *world) hasTag(ref schema.DiskRef, tag string) bool {
	node := w.base.Config.Nodes[ref.Node]
	return tag == ref.Node || tag == ref.String() || slices.Contains(node.Tags, tag) || slices.Contains(node.Disks[ref.Disk].Tags, tag)
}

// explain says of every declared disk, a line each, how it ranks for an image, what is
// there of it, and why there is not more.
func (w *world) explain(id disk.ID) []string {
	planned := map[schema.DiskRef]plan.Action{}
	for _, a := range w.plan().Actions {
		if a.CopyRef().ID == id {
			planned[a.CopyRef().Disk] = a
		}
	}
	var lines []string
	for _, p := range w.rankedPlaces(id) {
		rank := "no rank"
		if p.Rank > 0 {
			rank = fmt.Sprintf("rank %d", p.Rank)
		}
		words := []string{w.describeCopy(p.Disk, id)}
		if a := planned[p.Disk]; a.Op != "" {
			words = append(words, fmt.Sprintf("%s: %s", a.Op, a.Reason))
		} else if p.Reason != "" {
			words = append(words, p.Reason)
		}
		lines = append(lines, fmt.Sprintf("%s: %s, %s", p.Disk, rank, strings.Join(words, "; ")))
	}
	return lines
}

// rankedPlaces are the places of an image as the first node that is up sees them. One that is
// not declared has none, and none of its disks a rank.
func (w *world) rankedPlaces(id disk.ID) []plan.DiskRank {
	if nodes := w.upNodes(); len(nodes) > 0 && w.base.Config.Images[id.Name].ID == id {
		return nodes[0].RankDisks(w.cluster().Observe(nodes[:1])[0], id.Name)
	}
	var places []plan.DiskRank
	for ref := range w.places() {
		places = append(places, plan.DiskRank{Disk: ref})
	}
	slices.SortFunc(places, func(a, b plan.DiskRank) int { return strings.Compare(a.Disk.String(), b.Disk.String()) })
	return places
}

// describeCopy is what is on a disk of an image.
func (w *world) describeCopy(ref schema.DiskRef, id disk.ID) string {
	d := w.at(ref)
	c, there := d.Copies[id]
	text := "no copy"
	if there {
		text = string(c.State)
	}
	if c.UsedBy != "" {
		text += ", " + c.UsedBy
	}
	if _, down := w.down[ref.Node]; down {
		return text + " (the node is down)"
	}
	if !d.detachedAt.IsZero() {
		return text + " (the disk is not there)"
	}
	return text
}
