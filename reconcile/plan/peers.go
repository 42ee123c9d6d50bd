package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// view is what one node desires and observes. Its methods answer what it knows about other nodes.
type view struct {
	Desired  Desired
	Observed Observed
}

func (v *view) copyAt(ref ident.CopyRef) model.Copy {
	return v.Observed.Disks[ref.Disk].Copies[ref.ID]
}

// isCurrent reports whether the observed state of the disk is current: it is a disk of this
// process, or its node responds.
func (v *view) isCurrent(ref ident.DiskRef) bool {
	_, known := v.Observed.Disks[ref]
	return known && (v.Desired.Owns(ref) || v.Observed.Peers[ref.Node].Responds())
}

// sameConfig reports whether another node responds and has this node's configuration, which
// is valid.
func (v *view) sameConfig(node string) bool {
	peer := v.Observed.Peers[node]
	return peer.Responds() && peer.ConfigDigest == v.Desired.Digest && v.Desired.Digest != ""
}

// otherNodes returns the names of the other declared nodes, sorted.
func (v *view) otherNodes() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(v.Desired.Config.Nodes)), func(name string) bool { return name == v.Desired.Node })
}

// recoveryInterval returns the recovery interval.
func (v *view) recoveryInterval() time.Duration {
	return v.Desired.Config.Settings.RecoveryWaitInterval
}

// otherConfig returns the reason that another node has another configuration, or none.
func (v *view) otherConfig(name string) model.Reason {
	if v.Observed.Peers[name].ConfigDigest == "" {
		return because(CodePeerConfig, "the configuration of node %s is not fully valid", name)
	}
	return because(CodePeerConfig, "node %s has another configuration", name)
}

// giveUpAt returns when an unreachable peer has been unreachable for the recovery interval.
func (v *view) giveUpAt(p model.Peer) time.Time {
	return v.Observed.Now.Add(v.recoveryInterval() - p.UnreachableFor(v.Observed.Now))
}

// ignoredPeers returns the reasons why a deletion cannot count on the copies of some nodes.
func (v *view) ignoredPeers() (reasons []string) {
	for _, name := range v.otherNodes() {
		// A node with the same configuration is ignored only because it was not queried. It has
		// no copy to count on.
		if reason := v.whyIgnored(name); !reason.IsZero() && !v.sameConfig(name) {
			reasons = append(reasons, reason.Text)
		}
	}
	return reasons
}

// whyIgnored returns why a deletion does not count on the copies of another node.
func (v *view) whyIgnored(name string) model.Reason {
	peer, queried := v.Observed.Peers[name]
	switch {
	case !queried, v.sameConfig(name) && v.Observed.unconfirmed[name]:
		return because(CodePeerUnqueried, "node %s was not queried", name)
	case !peer.Responds():
		return because(CodePeerUnreachable, "node %s does not respond", name)
	case !v.sameConfig(name):
		return v.otherConfig(name)
	}
	return model.Reason{}
}
