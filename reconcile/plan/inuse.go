package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// needsOf returns, by generation, the disks of all nodes with replicas that name it and without a verified copy of it.
// For a node that does not respond, and a disk that cannot be read any more, the last response counts, whatever copy
// there was: it may be in a folder that another disk shows, and only a response shows that (U5).
func needsOf(o Observed) map[ident.ID][]ident.DiskRef {
	needs := map[ident.ID][]ident.DiskRef{}
	for ref, seen := range o.Disks {
		peer, other := o.Peers[ref.Node]
		silent := seen.Problem != "" || other && !peer.Responds()
		for id := range seen.Needs {
			if c := seen.Copies[id]; silent || c.State != model.Ready || c.Leaving {
				needs[id] = append(needs[id], ref)
			}
		}
	}
	for _, refs := range needs {
		slices.SortFunc(refs, ident.DiskRef.Compare)
	}
	return needs
}

// inUse returns why a copy is in use, as far as this node knows; "": it is not. If the users on one disk of this node
// cannot be read, each copy of this node may be in use (U7).
func (ix *Round) inUse(ref ident.CopyRef) string {
	c := ix.copyAt(ref)
	switch {
	case c.UsedBy != "":
		return c.UsedBy
	case ix.usageUnknown != "" && ix.Desired.Owns(ref.Disk):
		return ix.usageUnknown
	case c.State == model.Pending:
		return ""
	}
	return ix.neededBy(ref, false)
}

// neededBy returns which replica on another disk needs the generation of a copy of this node (U4); "": none. The declared
// generation is protected by S2 and S4, so that a need keeps no surplus copy of it. A person may end the claim of a node.
// unknown: it is one only if the copy on its disk, which was verified when its node last responded, is in the same folder.
func (ix *Round) neededBy(ref ident.CopyRef, unknown bool) string {
	if ix.Desired.Config.Images[ref.ID.Name].ID == ref.ID {
		return ""
	}
	for _, on := range ix.needs[ref.ID] {
		c, readable := ix.Observed.Disks[on].Ready(ref.ID)
		if on != ref.Disk && !ix.isWaived(ref, on.Node) && unknown == (readable && !c.Leaving) {
			return fmt.Sprintf("%s on %s needs it", ix.Observed.Disks[on].Needs[ref.ID].By, on)
		}
	}
	return ""
}

// isWaived reports whether the claims of a node do not keep a copy whose clean-up is requested (U8).
func (ix *Round) isWaived(ref ident.CopyRef, node string) bool {
	return node != ix.Desired.Node && slices.Contains(ix.Desired.DespiteNeed[ref], node)
}

// unknownUsage returns why it is not known whether replicas need a generation that is not declared, or a zero Reason. The
// argument says why it is not declared. For CodeOrphan, each node must respond (D2). For CodeOldGeneration, a node that has
// responded since this process started counts with its last response (U7): it cannot get a replica of an image that it
// does not have.
func (ix *Round) unknownUsage(undeclared model.Code) model.Reason {
	if cached, known := ix.unknownUsages[undeclared]; known {
		return cached
	}
	reason := model.Reason{}
	for _, node := range slices.Sorted(maps.Keys(ix.Desired.Config.Nodes)) {
		if reason = ix.unknownUsageOn(node, undeclared); !reason.IsZero() {
			break
		}
	}
	ix.unknownUsages[undeclared] = reason
	return reason
}

// unknownUsageOn is unknownUsage for the disks of one node.
func (ix *Round) unknownUsageOn(node string, undeclared model.Code) model.Reason {
	own, peer := node == ix.Desired.Node, ix.Observed.Peers[node]
	reason := incompletePeer(peer, node)
	switch {
	case own:
	case undeclared == CodeOrphan:
		reason = cmp.Or(ix.whyIgnored(node), reason)
	case !peer.Responds() && peer.LastResponse.IsZero():
		reason = because(CodeUsageUnknown, "node %s has not responded since this process started", node)
	}
	if !reason.IsZero() {
		return reason
	}
	for _, name := range slices.Sorted(maps.Keys(ix.Desired.Config.Nodes[node].Disks)) {
		on := ident.DiskRef{Node: node, Disk: name}
		switch seen, known := ix.Observed.Disks[on]; {
		case !known:
			return because(CodeUsageUnknown, "%s: not observed", on)
		case seen.Problem != "" && (own || undeclared == CodeOrphan || seen.Needs == nil):
			return because(CodeUsageUnknown, "%s: %s", on, seen.Problem)
		}
	}
	return model.Reason{}
}

// unknownUsers returns why it is not known which copies of this node are in use (U7); "": it is known.
func unknownUsers(d Desired, o Observed) string {
	var unknown []string
	for name := range d.Config.Nodes[d.Node].Disks {
		ref := ident.DiskRef{Node: d.Node, Disk: name}
		if seen := o.Disks[ref]; d.Owns(ref) && seen.Problem == "" && seen.UsageUnknown != "" {
			unknown = append(unknown, fmt.Sprintf("%s: %s", ref, seen.UsageUnknown))
		}
	}
	if len(unknown) == 0 {
		return ""
	}
	slices.Sort(unknown)
	return "it cannot be determined what is in use: " + JoinMax(unknown, "; ", 3)
}
