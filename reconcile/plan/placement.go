package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// placement is the result of the walk over the ranked disks of an image (P1 to P5).
type placement struct {
	ranked *ranking
	// targets are the desired disks that have a copy or can take one, best first. The first
	// of them creates the first copy.
	targets []ident.DiskRef
	copies  int // desired on ranked disks
	missing int // desired on ranked disks, but no disk can take them
	// needed are the targets of this node that are targets only because replicas need the image there.
	needed []ident.DiskRef
	// rejected has the disks that take no copy: ranked disks that the walk reached, and disks that
	// the image names or replicas need. It is nil if there is none.
	rejected map[ident.DiskRef]Rejection
}

// isTarget reports whether the disk is a desired disk.
func (pl placement) isTarget(ref ident.DiskRef) bool { return slices.Contains(pl.targets, ref) }

// requiredCopies returns how many copies must be ready elsewhere before a copy is deleted (S4).
func (pl placement) requiredCopies() int {
	return max(1, min(pl.copies, pl.ranked.len()))
}

// place walks over the ranked disks, best first. Targets are the first disks that have a copy or can take one, then
// the disks that the image names, and the disks of this node on which replicas need the image. The first target creates
// the first copy. Under one configuration, a disk loses this task in these ways (P3, F3, G2):
//
//	rejects           the disk takes no copy; that includes rejectsUnreachable and idleReason
//	isFailing         the disk or its connection has failed for the recovery interval
//	isOverdue         this node has waited too long for the disk; with a declared checksum only
//	disksInProgress   the first copy has started on another disk
//	addNeededDisks    a replica on another disk of its node needs the image; only before the first copy has started
//	keepFirst         a disk without a rank creates the first copy already
func place(s *imageState, ranked *ranking) placement {
	pl := placement{ranked: ranked, copies: s.image.Copies}
	if s.image.AllDisks {
		pl.copies = ranked.len()
	}
	var failing, overdue []ident.DiskRef
	started := disksInProgress(s, ranked)
	for i := 0; i < len(started)+ranked.len() && len(pl.targets) < pl.copies; i++ {
		var ref ident.DiskRef
		if i < len(started) {
			ref = started[i]
		} else if ref = ranked.at(i - len(started)); slices.Contains(started, ref) {
			continue
		}
		switch r := rejects(s, ref); {
		case !r.IsZero():
			pl.reject(ref, r)
		case isOverdue(s, ref):
			overdue = append(overdue, ref)
		case isFailing(s, ref):
			failing = append(failing, ref)
		default:
			pl.targets = append(pl.targets, ref)
		}
	}
	// A failing disk is a target only if no other disk is left. Of several failing disks, the
	// disk with the earliest next attempt is the first.
	slices.SortStableFunc(failing, func(a, b ident.DiskRef) int { return longFailure(s, a).RetryAt.Compare(longFailure(s, b).RetryAt) })
	for _, rest := range [][]ident.DiskRef{failing, overdue} {
		pl.targets = append(pl.targets, rest[:min(len(rest), pl.copies-len(pl.targets))]...)
	}
	pl.missing = pl.copies - len(pl.targets)
	pl.addNamedDisks(s)
	pl.addNeededDisks(s)
	if len(started) == 0 {
		pl.keepFirst(s)
	}
	return pl
}

func (pl *placement) reject(ref ident.DiskRef, r Rejection) {
	if pl.rejected == nil {
		pl.rejected = map[ident.DiskRef]Rejection{}
	}
	pl.rejected[ref] = r
}

// addNamedDisks adds the disks that the image names, in addition to the desired number of
// copies on ranked disks.
func (pl *placement) addNamedDisks(s *imageState) {
	for _, ref := range s.image.Disks {
		if _, declared := s.ix.Desired.Disk(ref); !declared || pl.isTarget(ref) {
			continue
		}
		if r := rejects(s, ref); !r.IsZero() {
			pl.reject(ref, r)
			continue
		}
		pl.targets = append(pl.targets, ref)
	}
}

// keepFirst makes the disk that creates the first copy already the first target, also without a rank: a named disk, or a disk with a need.
func (pl *placement) keepFirst(s *imageState) {
	if len(s.ready) > 0 {
		return
	}
	refs := s.ix.peerCopies(s.image.ID.Name)
	for _, on := range s.ix.ownDisks { // a job may not have created the folder yet
		refs = append(slices.Clip(refs), s.on(on))
	}
	for _, ref := range refs {
		_, needed := s.needOn(ref.Disk)
		peer := s.ix.Observed.Peers[ref.Disk.Node]
		lost := !s.ix.Desired.Owns(ref.Disk) && !peer.Responds() && !s.ix.giveUpAt(peer).After(s.ix.Observed.Now) // F3
		if ref.ID == s.image.ID && stageOf(s, ref) == running && (needed || pl.isTarget(ref.Disk)) && !isOverdue(s, ref.Disk) && !lost {
			pl.first(ref.Disk)
			return
		}
	}
}

// stage is the progress of a first copy on a disk, until the copy is ready.
type stage int

const (
	notStarted  stage = iota
	interrupted       // a partial file exists
	uploading         // a client has started to upload the image
	running           // a job is running
)

// disksInProgress returns the ranked disks on which the first copy has started, the latest stage
// first. A disk keeps the task to create the first copy, whatever its rank, as long as it can
// continue (F3).
func disksInProgress(s *imageState, ranked *ranking) []ident.DiskRef {
	if len(s.ready) > 0 {
		return nil
	}
	var refs []ident.CopyRef
	for _, ref := range s.ix.copiesNamed(s.image.ID.Name) {
		if ref.ID == s.image.ID && stageOf(s, ref) > notStarted && s.matches(ref.Disk) && !isFailing(s, ref.Disk) && !isOverdue(s, ref.Disk) {
			refs = append(refs, ref)
		}
	}
	for _, on := range s.ix.ownDisks { // a job may not have created the folder yet
		ref := s.on(on)
		if (s.hasJob(ref) || s.ix.Desired.Uploads[ref]) && !slices.Contains(refs, ref) && s.matches(on) && !isFailing(s, on) {
			refs = append(refs, ref)
		}
	}
	ranked.order(refs)
	slices.SortStableFunc(refs, func(a, b ident.CopyRef) int { return cmp.Compare(stageOf(s, b), stageOf(s, a)) })
	disks := make([]ident.DiskRef, len(refs))
	for i, ref := range refs {
		disks[i] = ref.Disk
	}
	return disks
}

// stageOf returns the stage of a first copy. The partial file of a sync is no first copy.
func stageOf(s *imageState, ref ident.CopyRef) stage {
	c := s.ix.copyAt(ref)
	switch {
	case s.hasJob(ref):
		return running
	case s.ix.Desired.Uploads[ref]:
		return uploading
	case c.PartKind == model.PartFromUpload:
		return interrupted
	case s.image.Source.Upload == nil && c.PartBytes > 0 && c.PartKind != model.PartFromPeers:
		return interrupted
	}
	return notStarted
}

// isFailing reports whether the disk, or the connection of its node to the source, has failed
// for the recovery interval. Then another disk creates the first copy (F3), unless an attempt runs.
func isFailing(s *imageState, ref ident.DiskRef) bool { return longFailure(s, ref).Attempts > 0 }

// longFailure returns the failure for which isFailing is true.
func longFailure(s *imageState, ref ident.DiskRef) model.Failure {
	if s.ix.copyAt(s.on(ref)).State == model.Ready || s.hasJob(s.on(ref)) {
		return model.Failure{} // the failure is over, or may be
	}
	if s.image.Source.Upload != nil && len(s.ready) == 0 {
		return model.Failure{} // no other disk can continue a partial upload
	}
	long := func(f model.Failure) bool {
		return f.Attempts > 0 && s.ix.Observed.Now.Sub(f.Since) >= s.ix.Desired.Config.Settings.RecoveryWaitInterval
	}
	if f := s.ix.Observed.Failures[s.on(ref)]; f.Fault == model.FaultDisk && long(f) {
		return f
	}
	if len(s.ready) > 0 {
		return model.Failure{} // no disk needs the source any more
	}
	// All disks of a node share its connection to the source.
	var worst model.Failure
	for name := range s.ix.Desired.Config.Nodes[ref.Node].Disks {
		f := s.ix.Observed.Failures[s.on(ident.DiskRef{Node: ref.Node, Disk: name})]
		if f.Fault == model.FaultNetwork && f.Op.IsFirstCopy() && long(f) && f.RetryAt.After(worst.RetryAt) {
			worst = f
		}
	}
	return worst
}

// A node waits while a disk of another node creates a first copy or verifies a file. Meanwhile the other
// node publishes failures, their times and running jobs. These are only claims, and a compromised node
// could repeat them for ever. So each node measures by its own clock for how long it has waited for each
// disk: Plan.Awaited names the copies for which the node waits now, and Observed.Awaited has the total
// times. If the image has a declared checksum and the node has waited too long for a disk, this disk is
// overdue, and the next disk creates the first copy. Without a declared checksum, the peer decides about
// the content, and no second node creates another first copy.

// maxFirstCopyTime limits how long this node waits for a node that publishes a running job. This node
// cannot verify that the job makes progress, so it limits the time. A real download may take hours, and a
// second download of the same image would waste a transfer. So the second one starts only after a day.
const maxFirstCopyTime = 24 * time.Hour

// isOverdue reports whether this node has waited too long for the disk of another node. The limit is the
// recovery interval if that node publishes no job that works on a copy. Otherwise the limit is
// maxFirstCopyTime, because the jobs of that node may wait for each other.
func isOverdue(s *imageState, ref ident.DiskRef) bool {
	waited := s.ix.Observed.Awaited[s.on(ref)]
	if waited == 0 || s.ix.Desired.Owns(ref) || !s.digestDeclared() || len(s.ready) > 0 || s.image.Source.Upload != nil {
		return false
	}
	limit := s.ix.Desired.Config.Settings.RecoveryWaitInterval
	if s.ix.isWorking(ref.Node) {
		limit = max(limit, maxFirstCopyTime)
	}
	return waited >= limit && !s.sourceHasFailed(ref)
}

// isWorking reports whether another node publishes a job that works on a copy on any of its disks. A
// deletion does not count: no job waits for a deletion, and false claims of a third node can make it fail
// again and again.
func (v *view) isWorking(node string) bool {
	for ref, running := range v.Observed.Running {
		if running && ref.Disk.Node == node && !v.copyAt(ref).Leaving {
			return true
		}
	}
	return false
}

// sourceHasFailed reports whether the node of the disk and another node both publish that the source of
// the image has failed. A single node could publish a false failure. Two nodes that agree are enough, so
// no third node tries the source (F4).
func (s *imageState) sourceHasFailed(on ident.DiskRef) bool {
	if !s.failureHolds(on) {
		return false
	}
	for name, node := range s.ix.Desired.Config.Nodes {
		for diskName := range node.Disks {
			if ref := (ident.DiskRef{Node: name, Disk: diskName}); name != on.Node && s.failureHolds(ref) {
				return true
			}
		}
	}
	return false
}

// failureHolds reports whether the source has failed for the disk, and the next attempt has not begun.
// If the disk belongs to another node, that node has the recovery interval to begin the attempt and to
// publish its result.
func (s *imageState) failureHolds(ref ident.DiskRef) bool {
	f := s.ix.Observed.Failures[s.on(ref)]
	if f.Attempts == 0 || f.Fault != model.FaultSource || !f.AppliesTo(firstCopyOp(s.image)) {
		return false
	}
	retry := f.RetryAt
	if !s.ix.Desired.Owns(ref) {
		retry = retry.Add(s.ix.Desired.Config.Settings.RecoveryWaitInterval)
	}
	return f.Final || retry.After(s.ix.Observed.Now)
}

// awaited returns the copies on other nodes for which this node waits, because no copy of the image is
// ready. These are the files of the image that other nodes still verify or may delete, without the overdue
// ones. If there are none, it is the copy on the first target.
func (p imagePlanner) awaited() []ident.CopyRef {
	s := p.state
	if len(s.ready) > 0 || !s.digestDeclared() || s.image.Source.Upload != nil || len(p.placement.targets) == 0 || s.image.Source.Clone != nil && s.cloneDigest().IsZero() {
		return nil
	}
	var refs []ident.CopyRef
	for _, ref := range s.ix.peerCopies(s.image.ID.Name) {
		c := s.ix.copyAt(ref)
		if ref.ID != s.image.ID || !s.ix.isCurrent(ref.Disk) || c.Unproven || isOverdue(s, ref.Disk) { // as in waitForPeers
			continue
		}
		if c.State == model.Unknown || c.State == model.Ready {
			refs = append(refs, ref)
		}
	}
	if first := p.placement.targets[0]; len(refs) == 0 && !s.ix.Desired.Owns(first) && s.ix.isCurrent(first) {
		if reason, _ := waitForPeers(s); reason.IsZero() {
			refs = append(refs, s.on(first))
		}
	}
	return refs
}
