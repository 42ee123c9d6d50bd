package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Round is the desired and the observed state of one round, with an index. So planning costs in proportion to the
// number of images and copies, not to their product. The methods compute what a node decides and says in a round. Each is
// a pure function of Desired and Observed, except for caches. Methods must not be called concurrently. The index has
// no recorded usage and no jobs, because these may change in Observed between two calls.
type Round struct {
	view
	*index

	ownDisks []ident.DiskRef // usable disks of this process, sorted
	// needs has, by generation, the disks of all nodes with replicas that need it: see needsOf.
	needs map[ident.ID][]ident.DiskRef
	// usageUnknown is why it is not known which copies of this node are in use; "": it is known.
	usageUnknown  string
	unknownUsages map[model.Code]model.Reason // cache of unknownUsage
	// published returns why a disk of another node takes no copy of an image, as that node publishes it.
	published func(ident.CopyRef) Rejection
	suspended []schema.Image           // cache of neededBySuspended
	ends      map[ident.CopyRef]string // for Plan.Ends
	awaited   []ident.CopyRef          // for Plan.Awaited
}

// index has what a round finds by name or digest. It depends on the configuration and on what all nodes observe alike. So the
// nodes of a Cluster share one index.
type index struct {
	disks []ident.DiskRef // usable disks, sorted
	// byName has the copies on these disks, and byDigest the ready copies, both sorted. Copies on an unreachable node are from its
	// last response.
	byName   map[string][]ident.CopyRef
	byDigest map[ident.Digest][]ident.CopyRef
	// suspects are copies that gave wrong bytes. They are verified before they are read or
	// counted on again.
	suspects map[ident.CopyRef]bool
	ranked   DiskList
	scratch  []rankedDisk // memory for a ranking
}

func newIndex(d Desired, o Observed) *index {
	ix := &index{
		byName: map[string][]ident.CopyRef{}, byDigest: map[ident.Digest][]ident.CopyRef{}, suspects: Suspects(o.Failures), ranked: NewDiskList(d.Config.Nodes),
	}
	for _, on := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		seen := o.Disks[on]
		if seen.Problem != "" {
			continue
		}
		ix.disks = append(ix.disks, on)
		for _, id := range slices.SortedFunc(maps.Keys(seen.Copies), ident.ID.Compare) {
			ref, c := ident.CopyRef{Disk: on, ID: id}, seen.Copies[id]
			ix.byName[id.Name] = append(ix.byName[id.Name], ref)
			for _, digest := range []ident.Digest{c.SHA512, c.SHA256} {
				if c.State == model.Ready && !digest.IsZero() {
					ix.byDigest[digest] = append(ix.byDigest[digest], ref)
				}
			}
		}
	}
	return ix
}

// NewRound returns the round for a desired and an observed state.
func NewRound(d Desired, o Observed) *Round { return newRound(d, o, newIndex(d, o)) }

func newRound(d Desired, o Observed, ix *index) *Round {
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(d.Config.Nodes)), func(name string) bool { return name == d.Node })
	return &Round{
		view: view{d, o, others}, index: ix, ownDisks: keep(ix.disks, d.Owns), needs: needsOf(o), usageUnknown: unknownUsers(d, o),
		unknownUsages: map[model.Code]model.Reason{}, ends: map[ident.CopyRef]string{},
		published: func(ref ident.CopyRef) Rejection {
			c := o.Disks[ref.Disk].Copies[ref.ID]
			return rejectedByPeer(c.Rejection, c.RejectionTemporary)
		},
	}
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

// ownCopies returns the copies of all images of one name on the disks of this process, peerCopies the copies on all other disks.
func (r *Round) ownCopies(name string) []ident.CopyRef {
	return keep(r.byName[name], func(ref ident.CopyRef) bool { return r.Desired.Owns(ref.Disk) })
}

func (r *Round) peerCopies(name string) []ident.CopyRef {
	return keep(r.byName[name], func(ref ident.CopyRef) bool { return !r.Desired.Owns(ref.Disk) })
}

// copiesNamed returns the copies of all images of one name: first on the disks of this process, then on all other disks.
func (r *Round) copiesNamed(name string) []ident.CopyRef {
	return append(r.ownCopies(name), r.peerCopies(name)...)
}

// readyWith returns the ready copies with the given digest that a job may read. own are on the disks of this process. peers
// are on nodes that respond, and have a chunk manifest.
func (r *Round) readyWith(digest ident.Digest) (own, peers []ident.CopyRef) {
	for _, ref := range r.byDigest[digest] {
		switch c := r.copyAt(ref); {
		case c.Leaving, r.suspects[ref]:
		case r.Desired.Owns(ref.Disk):
			own = append(own, ref)
		case r.isCurrent(ref.Disk) && !c.ManifestDigest.IsZero():
			peers = append(peers, ref)
		}
	}
	return own, peers
}

// keep returns the elements for which wanted is true.
func keep[T any](all []T, wanted func(T) bool) (kept []T) {
	for _, one := range all {
		if wanted(one) {
			kept = append(kept, one)
		}
	}
	return kept
}

// moveBack returns the elements with the worse ones, for which isWorse is true, at the end.
func moveBack[T any](all []T, isWorse func(T) bool) []T {
	return append(keep(all, func(one T) bool { return !isWorse(one) }), keep(all, isWorse)...)
}

// attempt returns the operation, or a wait while an earlier failure delays it. Sync and repair
// of one copy take turns: a failure of either delays both. On a read-only disk the operation
// waits, unless it is useful although its outcome cannot be recorded.
func (r *Round) attempt(op model.Op, ref ident.CopyRef, reason model.Reason, bytes int64) Action {
	f := r.Observed.Failures[ref]
	otherTurn := (op == model.Sync && f.Op == model.Repair || op == model.Repair && f.Op == model.Sync) && f.RetryAt.After(r.Observed.Now)
	if otherTurn || f.Delays(op, r.Observed.Now) {
		return backOff(ref, f)
	}
	unrecorded := op == model.Verify && (reason.Code == CodeVerifyRequested || reason.Code == CodeSuspect)
	if r.Observed.Disks[ref.Disk].ReadOnly && !unrecorded {
		return waitForWrites(op, ref, reason)
	}
	return NewAction(op, ref, reason, bytes)
}

// waitForWrites returns the wait for a disk that is read-only now.
func waitForWrites(op model.Op, ref ident.CopyRef, reason model.Reason) Action {
	return wait(ref, reason.With(CodeDiskReadOnly, ", but the disk cannot be changed: %s", model.ReadOnlyText)).asWaitFor(op, true)
}

// withSource records in an action which copy it reads. An idle action reads none.
func (r *Round) withSource(a Action, from ident.CopyRef) Action {
	if a.Idle() {
		return a
	}
	a.From, a.SourceDigest = from, r.copyAt(from).SHA512
	if r.Desired.Owns(from.Disk) {
		a.LocalSource = from
	}
	return a
}

// view is what one node desires and observes. Its methods return what the node knows about other nodes.
type view struct {
	Desired  Desired
	Observed Observed

	others []string // the other declared nodes, sorted
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
	for _, name := range v.others {
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
