package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Round is the desired and the observed state of one round, indexed, so that planning costs
// in proportion to the number of images and copies, not to their product. What a node decides and says in a round is computed
// from it, by its methods: each is a pure function of the two states, except for caches. They must not be called concurrently. The index has
// no recorded usage and no jobs: these may change in Observed between two calls.
type Round struct {
	Desired  Desired
	Observed Observed

	ownDisks []ident.DiskRef // usable disks of this process, sorted
	// ownByName are the copies on ownDisks, by image name. peerByName are the copies on all
	// other disks, including those of unreachable nodes from their last response. Sorted.
	ownByName, peerByName map[string][]ident.CopyRef
	// ownByDigest are the ready copies on ownDisks, by digest. peerByDigest are the ready
	// copies on nodes that respond, if chunks can be read from them. Sorted.
	ownByDigest, peerByDigest map[ident.Digest][]ident.CopyRef
	// suspects are copies that gave wrong bytes. They are verified before they are read or
	// counted on again.
	suspects map[ident.CopyRef]bool
	// needs are the disks with replicas that need a generation, on all nodes: see needsOf.
	needs map[ident.ID][]ident.DiskRef
	// usageUnknown is why it is not known which copies of this node are in use; "": it is known.
	usageUnknown  string
	unknownUsages map[model.Code]model.Reason // cache of unknownUsage
	// proofsWaived: copies count without a proof.
	proofsWaived bool
	suspended    []schema.Image // cache of suspendedImages
	rankings     *RankCache
	ends         map[ident.CopyRef]string // for Plan.Ends
	working      map[string]bool          // cache of isWorking
	awaited      []ident.CopyRef          // for Plan.Awaited
	scratch      []rankedDisk             // memory for rankings that are not cached
}

// emptyIndex returns an index without copies.
func emptyRound(d Desired, o Observed) *Round {
	ix := &Round{
		Desired: d, Observed: o, ownByName: map[string][]ident.CopyRef{}, peerByName: map[string][]ident.CopyRef{},
		ownByDigest: map[ident.Digest][]ident.CopyRef{}, peerByDigest: map[ident.Digest][]ident.CopyRef{}, suspects: Suspects(o.Failures), rankings: d.rankCache,
		needs: needsOf(o), usageUnknown: unknownUsers(d, o), unknownUsages: map[model.Code]model.Reason{}, ends: map[ident.CopyRef]string{},
	}
	if ix.rankings == nil {
		ix.rankings = NewRankCache(d.Config.Nodes, 0)
	}
	return ix
}

// NewRound returns the round for a desired and an observed state.
func NewRound(d Desired, o Observed) *Round {
	ix := emptyRound(d, o)
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		seen := o.Disks[ref]
		if seen.Problem != "" {
			continue
		}
		own := d.Owns(ref)
		if own {
			ix.ownDisks = append(ix.ownDisks, ref)
		}
		for _, id := range slices.SortedFunc(maps.Keys(seen.Copies), ident.ID.Compare) {
			ix.addCopy(ident.CopyRef{Disk: ref, ID: id}, seen.Copies[id], own)
		}
	}
	return ix
}

// Suspects returns the copies that gave wrong bytes to a job.
func Suspects(failures map[ident.CopyRef]model.Failure) map[ident.CopyRef]bool {
	all := map[ident.CopyRef]bool{}
	for _, f := range failures {
		for _, ref := range f.Suspects {
			all[ref] = true
		}
	}
	return all
}

func (ix *Round) addCopy(ref ident.CopyRef, c model.Copy, own bool) {
	byName, byDigest := ix.ownByName, ix.ownByDigest
	if !own {
		byName, byDigest = ix.peerByName, ix.peerByDigest
	}
	byName[ref.ID.Name] = append(byName[ref.ID.Name], ref)
	if c.State != model.Ready || c.Leaving || ix.suspects[ref] || !own && !(ix.isCurrent(ref.Disk) && !c.ManifestDigest.IsZero()) {
		return
	}
	for _, digest := range []ident.Digest{c.SHA512, c.SHA256} {
		if !digest.IsZero() {
			byDigest[digest] = append(byDigest[digest], ref)
		}
	}
}

func (ix *Round) copyAt(ref ident.CopyRef) model.Copy {
	return ix.Observed.Disks[ref.Disk].Copies[ref.ID]
}

// copiesNamed returns the copies of all images of one name, on all disks.
func (ix *Round) copiesNamed(name string) []ident.CopyRef {
	return slices.Concat(ix.ownByName[name], ix.peerByName[name])
}

// attempt returns the operation, or a wait while an earlier failure delays it. Sync and repair
// of one copy take turns: the failure of one delays the other as well. On a read-only disk the
// operation waits, unless it is useful although its outcome cannot be recorded.
func (ix *Round) attempt(op model.Op, ref ident.CopyRef, reason model.Reason, bytes int64) Action {
	f := ix.Observed.Failures[ref]
	otherTurn := (op == model.Sync && f.Op == model.Repair || op == model.Repair && f.Op == model.Sync) && f.RetryAt.After(ix.Observed.Now)
	if otherTurn || f.Delays(op, ix.Observed.Now) {
		return backOff(ref, f)
	}
	unrecorded := op == model.Verify && (reason.Code == CodeVerifyRequested || reason.Code == CodeSuspect)
	if ix.Observed.Disks[ref.Disk].ReadOnly && !unrecorded {
		return waitForWrites(op, ref, reason)
	}
	return NewAction(op, ref, reason, bytes)
}

// waitForWrites returns the wait for a disk that is read-only now.
func waitForWrites(op model.Op, ref ident.CopyRef, reason model.Reason) Action {
	return wait(ref, reason.With(CodeDiskReadOnly, ", but the disk cannot be changed: %s", model.ReadOnlyText)).asWaitFor(op, true)
}

// withSource records in an action which copy it reads. An idle action reads none.
func (ix *Round) withSource(a Action, from ident.CopyRef) Action {
	if a.Idle() {
		return a
	}
	a.From, a.SourceDigest = from, ix.copyAt(from).SHA512
	if ix.Desired.Owns(from.Disk) {
		a.LocalSource = from
	}
	return a
}

// isCurrent reports whether the observed state of the disk is current: it is a disk of this
// process, or its node responds.
func (ix *Round) isCurrent(ref ident.DiskRef) bool {
	_, known := ix.Observed.Disks[ref]
	return known && (ix.Desired.Owns(ref) || ix.Observed.Peers[ref.Node].Responds())
}

// sameConfig reports whether another node responds and has this node's configuration, which
// is valid.
func (ix *Round) sameConfig(node string) bool {
	peer := ix.Observed.Peers[node]
	return peer.Responds() && peer.ConfigDigest == ix.Desired.Digest && ix.Desired.Digest != ""
}

// otherNodes returns the names of the other declared nodes, sorted.
func (ix *Round) otherNodes() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(ix.Desired.Config.Nodes)), func(name string) bool { return name == ix.Desired.Node })
}

// recoveryInterval returns the recovery interval.
func (ix *Round) recoveryInterval() time.Duration {
	return ix.Desired.Config.Settings.RecoveryWaitInterval
}

// otherConfig returns the reason that another node has another configuration, or none.
func (ix *Round) otherConfig(name string) model.Reason {
	if ix.Observed.Peers[name].ConfigDigest == "" {
		return because(CodePeerConfig, "the configuration of node %s is not fully valid", name)
	}
	return because(CodePeerConfig, "node %s has another configuration", name)
}

// giveUpAt returns when an unreachable peer has been unreachable for the recovery interval.
func (ix *Round) giveUpAt(p model.Peer) time.Time {
	return ix.Observed.Now.Add(ix.recoveryInterval() - p.UnreachableFor(ix.Observed.Now))
}

// ignoredPeers returns the reasons why a deletion cannot count on the copies of some nodes.
func (ix *Round) ignoredPeers() (reasons []string) {
	for _, name := range ix.otherNodes() {
		// A node with the same configuration is ignored only because it was not queried. It has
		// no copy to count on.
		if reason := ix.whyIgnored(name); !reason.IsZero() && !ix.sameConfig(name) {
			reasons = append(reasons, reason.Text)
		}
	}
	return reasons
}

// whyIgnored returns why a deletion does not count on the copies of another node.
func (ix *Round) whyIgnored(name string) model.Reason {
	peer, queried := ix.Observed.Peers[name]
	switch {
	case !queried:
		return because(CodePeerUnqueried, "node %s was not queried", name)
	case !peer.Responds():
		return because(CodePeerUnreachable, "node %s does not respond", name)
	case !ix.sameConfig(name):
		return ix.otherConfig(name)
	case ix.Observed.unconfirmed[name]:
		return because(CodePeerUnqueried, "node %s was not queried", name)
	}
	return model.Reason{}
}
