package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// giveUpAt returns when an unreachable peer has been unreachable for the recovery interval.
func (ix *index) giveUpAt(p Peer) time.Time {
	return ix.observed.Now.Add(ix.desired.Config.Settings.RecoveryWaitInterval - p.UnreachableFor)
}

// waitForPeers returns what the first copy must wait for, and until when: copies that may turn
// out to be ready, an unreachable node that had a ready copy, and without a checksum every
// node and disk that may have a copy (F5).
func (p imagePlanner) waitForPeers() (reason Reason, until time.Time) {
	if reason := p.unsettledCopy(); !reason.IsZero() {
		return reason, time.Time{}
	}
	if reason, until = p.waitForNode(); !reason.IsZero() || p.digestDeclared() {
		return reason, until
	}
	return p.waitForDisk()
}

// unsettledCopy returns a reason when a copy on another node may be ready in a moment.
func (p imagePlanner) unsettledCopy() Reason {
	for _, ref := range p.ix.peerByName[p.image.ID.Name] {
		c := p.ix.copyAt(ref)
		switch {
		case ref.ID != p.image.ID || !p.ix.isCurrent(ref.Disk):
		case c.State == disk.Ready && c.Leaving:
			return because(CodePeerUnsettled, "the copy on %s has a pending deletion", ref.Disk)
		case c.State == disk.Unknown && p.ix.observed.Failures[ref].Attempts == 0:
			return because(CodeVerifyFirst, "the file on %s is verified first", ref.Disk)
		}
	}
	return Reason{}
}

// waitForNode returns the node for which the first copy waits the longest.
func (p imagePlanner) waitForNode() (reason Reason, until time.Time) {
	for _, name := range p.ix.otherNodes() {
		peer, queried := p.ix.observed.Peers[name]
		if !queried || peer.Responds() {
			continue // with --offline no node is queried
		}
		end := p.ix.giveUpAt(peer)
		switch {
		case !peer.Queried:
			return because(CodePeerUnqueried, "node %s has not responded yet", name), time.Time{}
		case !end.After(p.ix.observed.Now), until.After(end):
		case p.hadReady(name):
			reason, until = because(CodePeerUnreachable, "node %s, which has a copy, does not respond: %s", name, peer.Problem), end
		case !p.digestDeclared():
			reason, until = because(CodePeerUnreachable, "without a checksum nothing is fetched while node %s, which does not respond, may have a copy: %s", name, peer.Problem), end
		}
	}
	return reason, until
}

// hadReady reports whether an unreachable node had a ready copy when it last responded.
func (p imagePlanner) hadReady(node string) bool {
	return slices.ContainsFunc(p.ix.peerByName[p.image.ID.Name], func(ref CopyRef) bool {
		return ref.Disk.Node == node && ref.ID == p.image.ID && p.ix.copyAt(ref).State == disk.Ready
	})
}

// waitForDisk returns a disk that cannot be read, or that another process of this node manages.
func (p imagePlanner) waitForDisk() (reason Reason, until time.Time) {
	const format = "without a checksum nothing is fetched while disk %s, %s, may have a copy: declare a checksum, or remove the disk from the configuration"
	d, o := p.ix.desired, p.ix.observed
	for _, name := range slices.Sorted(maps.Keys(d.Config.Nodes[d.Node].Disks)) {
		if ref := (schema.DiskRef{Node: d.Node, Disk: name}); !d.Owns(ref) && len(o.Peers) > 0 {
			return because(CodeDiskNotManaged, format, ref, "which this process does not manage"), time.Time{}
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), CompareDisks) {
		_, declared := d.Disk(ref)
		seen := o.Disks[ref]
		if end := o.Now.Add(d.Config.Settings.RecoveryWaitInterval - seen.ProblemFor); declared && seen.Problem != "" && end.After(o.Now) {
			return because(CodeDiskUnavailable, format, ref, "which cannot be used ("+seen.Problem+")"), end
		}
	}
	return Reason{}, time.Time{}
}

// interruptedSource returns the copy that a running sync to ref reads while its node does not
// respond for a moment. The bytes may still arrive; if not, the sync ends by its own timeouts.
func (p imagePlanner) interruptedSource(ref schema.DiskRef) (from CopyRef, ok bool) {
	if !p.ix.observed.Running[p.on(ref)] {
		return CopyRef{}, false
	}
	for _, other := range p.ix.peerByName[p.image.ID.Name] {
		c, peer := p.ix.copyAt(other), p.ix.observed.Peers[other.Disk.Node]
		silent := peer.Queried && !peer.Responds() && p.ix.giveUpAt(peer).After(p.ix.observed.Now)
		if other.ID == p.image.ID && c.State == disk.Ready && (silent || c.Leaving) {
			return other, true
		}
	}
	return CopyRef{}, false
}

// ignoredPeers returns " (why; why)" with the nodes whose copies a deletion cannot count on.
func (ix *index) ignoredPeers() string {
	var reasons []string
	for _, name := range ix.otherNodes() {
		// A node with this configuration that was not queried had no copy to count on.
		if reason := ix.whyIgnored(name); !reason.IsZero() && !ix.sameConfig(name) {
			reasons = append(reasons, reason.Text)
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	return " (" + JoinMax(reasons, "; ", 3) + ")"
}

// whyIgnored returns why a deletion does not count on the copies of another node.
func (ix *index) whyIgnored(name string) Reason {
	peer, queried := ix.observed.Peers[name]
	switch {
	case !queried:
		return because(CodePeerUnqueried, "node %s was not queried", name)
	case !peer.Responds():
		return because(CodePeerUnreachable, "node %s does not respond", name)
	case peer.ConfigDigest == "":
		return because(CodePeerConfig, "the configuration of node %s is not fully valid", name)
	case !ix.sameConfig(name):
		return because(CodePeerConfig, "node %s has another configuration", name)
	case peer.unconfirmed:
		return because(CodePeerUnqueried, "node %s was not queried", name)
	}
	return Reason{}
}
