package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// otherNodes are the declared nodes but this one, sorted.
func (s *index) otherNodes() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.desired.Config.Nodes)), func(name string) bool { return name == s.desired.Node })
}

// giveUpAt is when a silent node has been away for so long that it is not waited for
// any more.
func (s *index) giveUpAt(p Peer) time.Time {
	return s.observed.Now.Add(s.desired.Config.Settings.RecoveryWaitInterval - p.UnreachableFor)
}

// waitForPeers says what a first copy has to wait for, and until when: copies that may turn
// out to be ready, each node once, one that may be away with a ready copy, and without
// a checksum whatever may have the copy that establishes it.
func (v imagePlanner) waitForPeers() (why string, until time.Time) {
	if why := v.unsettledCopy(); why != "" {
		return why, time.Time{}
	}
	if why, until = v.waitForNode(); why != "" || v.digestDeclared() {
		return why, until
	}
	return v.waitForDisk()
}

// unsettledCopy names a copy on another node of which it will show in a moment whether it
// is ready.
func (v imagePlanner) unsettledCopy() string {
	for _, key := range v.ix.peerByName[v.image.ID.Name] {
		c := v.ix.copyAt(key)
		switch {
		case key.ID != v.image.ID || !v.ix.isCurrent(key.Disk):
		case c.State == disk.Ready && c.Leaving:
			return fmt.Sprintf("the copy on %s is about to go, or to stay", key.Disk)
		case c.State == disk.Unknown && v.ix.observed.Failures[key].Attempts == 0:
			return fmt.Sprintf("the file on %s is looked at first", key.Disk)
		}
	}
	return ""
}

// waitForNode names the node that is waited for the longest.
func (v imagePlanner) waitForNode() (why string, until time.Time) {
	for _, name := range v.ix.otherNodes() {
		peer, asking := v.ix.observed.Peers[name]
		if !asking || peer.Responds() {
			continue // asking: with --offline nobody is asked
		}
		end := v.ix.giveUpAt(peer)
		switch {
		case !peer.Queried:
			return fmt.Sprintf("node %s is asked first", name), time.Time{}
		case !end.After(v.ix.observed.Now), until.After(end):
		case v.hadReady(name):
			why, until = fmt.Sprintf("node %s, which has a copy, does not answer: %s", name, peer.Problem), end
		case !v.digestDeclared():
			why, until = fmt.Sprintf("without a checksum nothing is fetched as long as node %s, which does not answer, may have a copy: %s", name, peer.Problem), end
		}
	}
	return why, until
}

// waitForDisk names a disk that cannot be looked at, of a node that answers.
func (v imagePlanner) waitForDisk() (why string, until time.Time) {
	const unsure = "without a checksum nothing is fetched as long as disk %s, %s, may have a copy: declare a checksum, or take the disk out of the configuration"
	for _, name := range slices.Sorted(maps.Keys(v.ix.desired.Config.Nodes[v.ix.desired.Node].Disks)) {
		if ref := (schema.DiskRef{Node: v.ix.desired.Node, Disk: name}); !v.ix.desired.Owns(ref) && len(v.ix.observed.Peers) > 0 {
			return fmt.Sprintf(unsure, ref, "which this process does not look after"), time.Time{}
		}
	}
	for _, ref := range slices.SortedFunc(maps.Keys(v.ix.observed.Disks), CompareDisks) {
		_, declared := v.ix.desired.Disk(ref)
		away := v.ix.observed.Disks[ref]
		if end := v.ix.observed.Now.Add(v.ix.desired.Config.Settings.RecoveryWaitInterval - away.ProblemFor); declared && away.Problem != "" && end.After(v.ix.observed.Now) {
			return fmt.Sprintf(unsure, ref, "which cannot be used ("+away.Problem+")"), end
		}
	}
	return "", time.Time{}
}

// interruptedSource returns a copy that is copied to ref, and of which nothing is heard for
// a moment. The bytes may flow all the same, and if not, the transfer ends by itself.
func (v imagePlanner) interruptedSource(ref schema.DiskRef) (from CopyRef, ok bool) {
	if !v.ix.observed.Running[CopyRef{ref, v.image.ID}] {
		return CopyRef{}, false
	}
	for _, key := range v.ix.peerByName[v.image.ID.Name] {
		c, peer := v.ix.copyAt(key), v.ix.observed.Peers[key.Disk.Node]
		quiet := peer.Queried && !peer.Responds() && v.ix.giveUpAt(peer).After(v.ix.observed.Now)
		if key.ID == v.image.ID && c.State == disk.Ready && (quiet || c.Leaving) {
			return key, true
		}
	}
	return CopyRef{}, false
}

// digestDeclared reports whether it is declared what the bytes have to be.
func (v imagePlanner) digestDeclared() bool { return !v.image.Checksum.IsZero() }

// digestKnown reports whether it is clear what the bytes have to be: it is declared, or
// somebody has them.
func (v imagePlanner) digestKnown() bool { return v.digestDeclared() || len(v.ready) > 0 }

// hadReady reports whether a silent node had a ready copy when it was last heard.
func (v imagePlanner) hadReady(node string) bool {
	return slices.ContainsFunc(v.ix.peerByName[v.image.ID.Name], func(key CopyRef) bool {
		return key.Disk.Node == node && key.ID == v.image.ID && v.ix.copyAt(key).State == disk.Ready
	})
}

// ignoredPeers says which nodes' copies a deletion cannot count on, and why.
func (s *index) ignoredPeers() string {
	var why []string
	for _, name := range s.otherNodes() {
		if reason := s.whyIgnored(name); reason != "" && !s.sameConfig(name) { // else it had no copy to ask about
			why = append(why, reason)
		}
	}
	const most = 3
	if more := len(why) - most; more > 0 {
		why = append(why[:most], fmt.Sprintf("and %d more nodes", more))
	}
	if len(why) == 0 {
		return ""
	}
	return " (" + strings.Join(why, "; ") + ")"
}

// whyIgnored says why the copies of another node are not counted, or nothing.
func (s *index) whyIgnored(name string) string {
	peer, asking := s.observed.Peers[name]
	switch {
	case !asking:
		return fmt.Sprintf("node %s was not asked", name)
	case !peer.Responds():
		return fmt.Sprintf("node %s does not answer", name)
	case peer.ConfigDigest == "":
		return fmt.Sprintf("the configuration of node %s is not wholly valid", name)
	case !s.sameConfig(name):
		return fmt.Sprintf("node %s has another configuration", name)
	case peer.unconfirmed:
		return fmt.Sprintf("node %s was not asked", name)
	}
	return ""
}
