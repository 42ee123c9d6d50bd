package plan

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// UsageUpdates returns the copies of this node whose recorded usage must change. It is
// a pure function like Plan. Use is recorded in observe-only mode, too.
func (r *Round) UsageUpdates() map[ident.CopyRef]model.Usage {
	stays := map[ident.CopyRef]bool{} // not surplus
	for _, image := range r.Desired.Config.Images {
		if len(r.ownCopies(image.ID.Name)) == 0 {
			continue // no copy here
		}
		p := newImagePlanner(r, image)
		for _, ref := range p.placement.targets {
			stays[ident.CopyRef{Disk: ref, ID: image.ID}] = true
		}
		maps.Copy(stays, keptGenerations(p.state))
	}
	updates := map[ident.CopyRef]model.Usage{}
	for name := range r.byName {
		for _, ref := range r.ownCopies(name) {
			c := r.copyAt(ref)
			if u := newUsage(r, ref, stays[ref]); c.Owned && c.SameAs == (ident.DiskRef{}) && u != c.Usage {
				updates[ref] = u
			}
		}
	}
	return updates
}

// newUsage returns the usage to record for a copy. stays: the copy is not surplus.
// SurplusSince starts only under a valid configuration, and starts again after the wall clock
// was wrong (S4).
func newUsage(ix *Round, ref ident.CopyRef, stays bool) model.Usage {
	d, o, c := ix.Desired, ix.Observed, ix.copyAt(ref)
	u := c.Usage
	u.InUseRecorded = ix.inUse(ref) != ""
	if c.InUseRecorded && !u.InUseRecorded || d.otherClock(c) && !u.LastUsed.IsZero() || implausible(u.LastUsed, o.Now) && !u.LastUsed.IsZero() {
		u.LastUsed = o.Now
	}
	image, declared := d.Config.Images[ref.ID.Name]
	_, maybe := d.Undecided.MayDeclare(ref.ID.Name, c.Declaration)
	undecided := !d.invalidReason(ref.ID.Name).IsZero() || maybe && !declared
	if image.Declaration.File != "" {
		u.Declaration = image.Declaration
	}
	if stays || undecided || o.Disks[ref.Disk].ClockStepped || d.otherClock(c) || implausible(u.SurplusSince, o.Now) {
		u.SurplusSince = time.Time{}
	}
	surplus := !stays && !undecided && (declared || d.IsRemoved(ref.ID.Name))
	if surplus && d.Allowed == schema.Everything && u.SurplusSince.IsZero() {
		u.SurplusSince = o.Now
	}
	switch {
	case undecided || !declared:
	case image.ID == ref.ID:
		u.ReplacedAt = time.Time{}
	default:
		u.ReplacedAt = replacedAt(c, o.Now)
	}
	if u != c.Usage {
		u.ClockNode = d.Node
	}
	return u
}

// otherClock reports whether the recorded times of a copy come from the clock of another node,
// which had the disk before.
func (d Desired) otherClock(c model.Copy) bool { return c.ClockNode != "" && c.ClockNode != d.Node }

// intervalEnd returns when the clean-up interval of a copy ends. It starts with the last use or
// when the copy became surplus, whichever is later. It starts again now if a recorded time is
// missing, implausible or from another clock (S4). UsageUpdates records the new start.
func (r *Round) intervalEnd(ref ident.CopyRef) time.Time {
	d, o, c, stepped := r.Desired, r.Observed, r.copyAt(ref), r.Observed.Disks[ref.Disk].ClockStepped
	since := c.SurplusSince
	switch {
	case since.IsZero(), stepped, d.otherClock(c), implausible(since, o.Now),
		c.InUseRecorded && r.inUse(ref) == "", // the use has just ended
		!c.LastUsed.IsZero() && implausible(c.LastUsed, o.Now):
		since = o.Now
	case c.LastUsed.After(since):
		since = c.LastUsed
	}
	return since.Add(d.Config.Settings.CleanupWaitInterval)
}

// earliestTime is before any time that this program can have recorded.
var earliestTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func implausible(recorded, now time.Time) bool {
	return recorded.After(now) || recorded.Before(earliestTime)
}

// needsOf returns, for each generation, the disks of all nodes that need it: a replica on the disk names the generation, and
// the disk has no verified copy of it. If a node does not respond, or a disk cannot be read any more, its last needs count even
// beside a verified copy. That copy may be in a folder that another disk shows, and only a response shows that (U5).
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
func (r *Round) inUse(ref ident.CopyRef) string {
	c := r.copyAt(ref)
	switch {
	case c.UsedBy != "":
		return c.UsedBy
	case r.usageUnknown != "" && r.Desired.Owns(ref.Disk):
		return r.usageUnknown
	case c.State == model.Pending:
		return ""
	}
	return r.neededBy(ref, false)
}

// neededBy returns which replica on another disk needs the generation of a copy of this node (U4); "": none. A need keeps
// no copy of the declared generation, which S2 and S4 protect. A person may end the claim of a node. With unknown false, it
// looks at disks without a verified copy. With unknown true, it looks at disks that cannot be read now, or whose node does not
// respond, and that last had a verified copy: that copy may be this file, and then the replica needs it.
func (r *Round) neededBy(ref ident.CopyRef, unknown bool) string {
	if r.Desired.Config.Images[ref.ID.Name].ID == ref.ID {
		return ""
	}
	for _, on := range r.needs[ref.ID] {
		c, readable := r.Observed.Disks[on].Ready(ref.ID)
		if on != ref.Disk && !r.Desired.isWaived(ref, on.Node) && unknown == (readable && !c.Leaving) {
			return fmt.Sprintf("%s on %s needs it", r.Observed.Disks[on].Needs[ref.ID].By, on)
		}
	}
	return ""
}

// isWaived reports whether the claims of a node do not keep a copy whose clean-up is requested (U8).
func (d Desired) isWaived(ref ident.CopyRef, node string) bool {
	return node != d.Node && slices.Contains(d.DespiteNeed[ref], node)
}

// unknownUsage returns why the needs of replicas for undeclared generations are not known, zero if they are known.
// undeclared is CodeOrphan or CodeOldGeneration. For CodeOrphan, each node must respond (D2). For CodeOldGeneration, the last
// response of a node since the start of this process counts (U7): a node cannot get a replica of an image that it does not
// have.
func (r *Round) unknownUsage(undeclared model.Code) model.Reason {
	if cached, known := r.unknownUsages[undeclared]; known {
		return cached
	}
	reason := model.Reason{}
	for _, node := range slices.Sorted(maps.Keys(r.Desired.Config.Nodes)) {
		if reason = r.unknownUsageOn(node, undeclared); !reason.IsZero() {
			break
		}
	}
	r.unknownUsages[undeclared] = reason
	return reason
}

// unknownUsageOn returns why it is not known whether replicas on one node need such a generation: see unknownUsage.
func (r *Round) unknownUsageOn(node string, undeclared model.Code) model.Reason {
	own, peer := node == r.Desired.Node, r.Observed.Peers[node]
	reason := incompletePeer(peer, node)
	switch {
	case own:
	case undeclared == CodeOrphan:
		reason = cmp.Or(r.whyIgnored(node), reason)
	case !peer.Responds() && peer.LastResponse.IsZero():
		reason = because(CodeUsageUnknown, "node %s has not responded since this process started", node)
	}
	if !reason.IsZero() {
		return reason
	}
	for _, name := range slices.Sorted(maps.Keys(r.Desired.Config.Nodes[node].Disks)) {
		on := ident.DiskRef{Node: node, Disk: name}
		switch seen, known := r.Observed.Disks[on]; {
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
