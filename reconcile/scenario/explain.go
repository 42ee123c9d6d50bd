package scenario

import (
	"fmt"
	"slices"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// readyDisks returns the reachable disks with a ready copy, sorted.
func readyDisks(w *world, id ident.ID) []ident.DiskRef {
	var refs []ident.DiskRef
	for ref, at := range w.locations() {
		if w.disks[at].Copies[id].Ready() && w.reachable(ref) {
			refs = append(refs, ref)
		}
	}
	slices.SortFunc(refs, ident.DiskRef.Compare)
	return refs
}

// hasTag reports whether a disk or its node has the tag, as a tag or as its name.
func hasTag(c schema.Config, ref ident.DiskRef, tag string) bool {
	node := c.Nodes[ref.Node]
	return tag == ref.Node || tag == ref.String() || slices.Contains(node.Tags, tag) || slices.Contains(node.Disks[ref.Disk].Tags, tag)
}

// explain returns a line for each declared disk: its rank for an image, its copy, and the
// planned action or the reason why there is none.
func explain(w *world, id ident.ID) []string {
	planned := map[ident.DiskRef]plan.Action{}
	for _, a := range w.plan().Actions {
		if a.CopyRef().ID == id {
			planned[a.CopyRef().Disk] = a
		}
	}
	var lines []string
	for _, r := range rankDisks(w, id) {
		rank := "no rank"
		if r.Rank > 0 {
			rank = fmt.Sprintf("rank %d", r.Rank)
		}
		parts := []string{describeCopy(w, r.Disk, id)}
		if a := planned[r.Disk]; a.Op != "" {
			parts = append(parts, fmt.Sprintf("%s: %s", a.Op, a.Text))
		} else if !r.Reason.IsZero() {
			parts = append(parts, r.Reason.Text)
		}
		lines = append(lines, fmt.Sprintf("%s: %s, %s", r.Disk, rank, strings.Join(parts, "; ")))
	}
	return lines
}

// rankDisks returns the disks in the order of their ranks for an image, as the first node that
// is up computes them. For an image that is not declared, no disk has a rank.
func rankDisks(w *world, id ident.ID) []plan.DiskRank {
	w.observeAll()
	if nodes := w.running(); len(nodes) > 0 && w.base.Config.Images[id.Name].ID == id {
		return plan.NewRound(nodes[0].desired(), nodes[0].observed).RankDisks(id.Name)
	}
	var ranks []plan.DiskRank
	for ref := range w.locations() {
		ranks = append(ranks, plan.DiskRank{Disk: ref})
	}
	slices.SortFunc(ranks, func(a, b plan.DiskRank) int { return ident.DiskRef.Compare(a.Disk, b.Disk) })
	return ranks
}

// describeCopy returns the state of a copy on a disk.
func describeCopy(w *world, ref ident.DiskRef, id ident.ID) string {
	d := w.at(ref)
	text := "no copy"
	if d.Copies[id] != nil {
		text = string(d.Copy(id).State)
	}
	if user := d.UsedBy(id); user != "" && (d.Copies[id] != nil || d.Replicas[id].Count > 0) {
		text += ", " + user
	}
	if _, down := w.down[ref.Node]; down {
		return text + " (the node is down)"
	}
	if !d.Attached {
		return text + " (the disk is not attached)"
	}
	return text
}
