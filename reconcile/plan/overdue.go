package plan

import (
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A node waits for the disk of another node that creates a first copy, or verifies a file. What that
// node publishes meanwhile, such as failures, their times and a running job, are claims, which one
// compromised node could repeat for ever. So each node measures by its own clock for how long it has
// waited for each disk: Plan.Awaited names the copies for which it waits now, and Observed.Awaited has
// the time in total. With a declared checksum, a disk for which it has waited too long is overdue, and
// the next disk has its turn. Without one, a peer is trusted with the content, and no second node
// creates another first copy.

// maxFirstCopyTime is for how long this node waits for a node that says that it is at work. A claim of
// progress cannot be verified, so that only time bounds it. An honest download may take hours: a second
// one of the same image, which wastes a transfer, starts only after a day.
const maxFirstCopyTime = 24 * time.Hour

// isOverdue reports whether this node has waited too long for the disk of another node: for the
// recovery interval if that node has no running job, and for maxFirstCopyTime otherwise, since its jobs
// may wait for each other.
func isOverdue(s *imageState, ref schema.DiskRef) bool {
	waited := s.ix.observed.Awaited[s.on(ref)]
	if waited == 0 || s.ix.desired.Owns(ref) || !s.digestDeclared() || len(s.ready) > 0 || s.image.Source.Upload != nil {
		return false
	}
	limit := s.ix.desired.Config.Settings.RecoveryWaitInterval
	if s.ix.isWorking(ref.Node) {
		limit = max(limit, maxFirstCopyTime)
	}
	return waited >= limit && !s.sourceHasFailed(ref)
}

// isWorking reports whether another node says that a job runs on any of its disks.
func (ix *index) isWorking(node string) bool {
	if ix.working == nil {
		ix.working = map[string]bool{}
		for ref := range ix.observed.Running {
			ix.working[ref.Disk.Node] = true
		}
	}
	return ix.working[node]
}

// sourceHasFailed reports whether two nodes, one of them that of the disk, say that the source of the
// image has failed. Then it is no claim of a single node, and no third one tries (F4).
func (s *imageState) sourceHasFailed(on schema.DiskRef) bool {
	if !s.failureHolds(on) {
		return false
	}
	for name, node := range s.ix.desired.Config.Nodes {
		for diskName := range node.Disks {
			if ref := (schema.DiskRef{Node: name, Disk: diskName}); name != on.Node && s.failureHolds(ref) {
				return true
			}
		}
	}
	return false
}

// failureHolds reports whether the source has failed for the disk, and the next attempt has not begun.
// Another node may take the recovery interval to begin it and to publish how it ended.
func (s *imageState) failureHolds(ref schema.DiskRef) bool {
	f := s.ix.observed.Failures[s.on(ref)]
	if f.Attempts == 0 || f.Fault != FaultSource || !f.AppliesTo(firstCopyOp(s.image)) {
		return false
	}
	retry := f.RetryAt
	if !s.ix.desired.Owns(ref) {
		retry = retry.Add(s.ix.desired.Config.Settings.RecoveryWaitInterval)
	}
	return f.Final || retry.After(s.ix.observed.Now)
}

// awaited returns the copies on other nodes for which this node waits, because no copy of the image is
// ready: that of the first target, and files that are verified first.
func (p imagePlanner) awaited() []CopyRef {
	s := p.state
	if len(s.ready) > 0 || !s.digestDeclared() || s.image.Source.Upload != nil || len(p.placement.targets) == 0 || s.image.Source.Clone != nil && s.knownDigestOfClone().IsZero() {
		return nil
	}
	var refs []CopyRef
	for _, ref := range s.ix.peerByName[s.image.ID.Name] {
		if c := s.ix.copyAt(ref); ref.ID == s.image.ID && s.ix.isCurrent(ref.Disk) && (c.State == disk.Unknown || c.State == disk.Ready) {
			refs = append(refs, ref)
		}
	}
	if first := p.placement.targets[0]; len(refs) == 0 && !s.ix.desired.Owns(first) && s.ix.isCurrent(first) {
		if reason, _ := waitForPeers(s); reason.IsZero() {
			refs = append(refs, s.on(first))
		}
	}
	return refs
}

// knownDigestOfClone returns the digest of the ready copies from which the image is cloned; zero if there
// are none.
func (s *imageState) knownDigestOfClone() disk.Digest {
	own, peers := s.cloneSources()
	for _, ref := range append(own, peers...) {
		return s.ix.copyAt(ref).SHA512
	}
	return disk.Digest{}
}
