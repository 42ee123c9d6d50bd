package plantest

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// CheckPlan fails the test if the plan violates a rule for d and o. The rules are stated here a
// second time, without the planner's code.
func CheckPlan(t testing.TB, d plan.Desired, o plan.Observed, p plan.Plan) {
	t.Helper()
	for _, v := range violations(d, o, p) {
		t.Errorf("rule broken: %s", v)
	}
}

func violations(d plan.Desired, o plan.Observed, p plan.Plan) []string {
	k := &checker{d: d, o: o, p: p}
	k.checkActions()
	k.checkDeletions()
	k.checkSuspensions()
	k.checkGenerations()
	k.checkJobs()
	for _, image := range d.Config.Images {
		k.checkImage(image)
	}
	return k.violations
}

// checker compares one plan with the rules.
type checker struct {
	d          plan.Desired
	o          plan.Observed
	p          plan.Plan
	violations []string
}

// forbid records a violation if broken is true.
func (k *checker) forbid(broken bool, format string, args ...any) {
	if broken {
		k.violations = append(k.violations, fmt.Sprintf(format, args...))
	}
}

// checkActions checks each action separately.
func (k *checker) checkActions() {
	busy := map[ident.CopyRef]model.Op{}
	for _, a := range k.p.Actions {
		k.forbid(a.Text == "" || a.Code == "", "no reason for %+v", a)
		k.forbid(!a.Until.IsZero() && !a.Until.After(k.o.Now), "a wait until a time that has passed: %+v", a)
		if a.Op == model.Wait || a.Op == model.Blocked {
			continue
		}
		key := a.CopyRef()
		k.forbid(busy[key] != "", "%s and %s of %s at the same time", busy[key], a.Op, key)
		busy[key] = a.Op
		if k.goesOn(a) {
			continue // it began under other conditions
		}
		k.forbid(k.d.Allowed == schema.ObserveOnly, "%s in observe-only mode", a.Op)
		seen, known := k.o.Disks[key.Disk]
		k.forbid(!known || seen.Problem != "" || key.Disk.Node != k.d.Node, "%s on a disk that this node cannot use: %s", a.Op, key)
		c, there := seen.Copies[key.ID]
		file := there && c.State != model.Pending
		f := k.o.Failures[key]
		applies := f.Op == "" || f.Op == a.Op
		applies = applies && a.Op != model.Upload // a client may upload another file
		k.forbid(applies && f.Final && (f.RetryAt.IsZero() || f.RetryAt.After(k.o.Now)) && a.Op != model.Cleanup && a.Op != model.Evict, "%s of %s after a final failure", a.Op, key)
		k.forbid(applies && f.NeedsSpace == 0 && f.RetryAt.After(k.o.Now), "%s of %s before its retry time", a.Op, key)
		switch a.Op {
		case model.Adopt, model.Verify:
			verified := key.ID
			if a.VerifiesPeer() { // for the deletion of key, which may be an older generation
				verified = a.From.ID
			}
			declared := k.d.Config.Images[a.Image].ID
			older := key.ID != declared && a.Op == model.Verify && k.d.Verify[key] && c.State == model.Ready && c.Owned
			k.forbid(!file || declared != verified && !older, "%s of a file that is missing or not declared: %s", a.Op, key)
		case model.Repair:
			k.forbid(c.State != model.Failed || c.ManifestDigest.IsZero() || !c.Owned || k.d.Config.Images[a.Image].ID != key.ID, "repair of %s, which is %s", key, c.State)
		case model.Download, model.Upload, model.Export, model.Restore, model.Clone, model.Sync:
			k.forbid(file && (c.State != model.Failed || InUse(k.d, k.o, key) != "" || !c.Owned), "%s over %s copy %s (used: %q)", a.Op, c.State, key, InUse(k.d, k.o, key))
			k.checkTarget(a)
			k.checkFirstCopy(a)
		case model.Backup:
			_, declared := k.d.Config.Images[a.Image]
			k.forbid(!declared || c.State != model.Ready || c.Leaving || k.o.BackedUp[key.ID], "backup of %s copy %s", c.State, key)
		case model.Cleanup, model.Evict:
			k.forbid(!there || !c.Owned, "%s of a copy that is not owned: %s", a.Op, key)
			k.forbid(InUse(k.d, k.o, key) != "", "%s of %s: %s", a.Op, key, InUse(k.d, k.o, key))
			k.checkNeedsKnown(key)
			k.forbid(k.d.Allowed != schema.Everything, "%s while the configuration is invalid", a.Op)
		default:
			k.forbid(true, "unknown action %s", a.Op)
		}
	}
}

// goesOn reports whether an action is a running job of this node that creates, verifies or repairs a copy.
func (k *checker) goesOn(a plan.Action) bool {
	j, runs := k.o.Jobs[a.CopyRef()]
	_, ends := k.p.Ends[a.CopyRef()]
	return runs && !ends && j.Action.Op == a.Op && !a.Op.Deletes() && !a.VerifiesPeer()
}

// checkJobs checks that each running job of this node is in the plan or ends for a reason, and that no job ends if only
// other nodes and other images are not as they were when it began.
func (k *checker) checkJobs() {
	for key, j := range k.o.Jobs {
		planned := slices.ContainsFunc(k.p.Actions, func(a plan.Action) bool { return a.CopyRef() == key && a.Op == j.Action.Op })
		why, ends := k.p.Ends[key]
		k.forbid(!planned && !ends || ends && why == "", "%s of %s: planned %v, ends %v for %q", j.Action.Op, key, planned, ends, why)
		image, declared := k.d.Config.Images[key.ID.Name]
		seen := k.o.Disks[key.Disk]
		wanted := declared && image.ID == key.ID && reflect.DeepEqual(plan.Basis(j.Image), plan.Basis(image)) && j.Action.Op.CreatesCopy() && seen.Problem == "" && !seen.ReadOnly &&
			!image.Checksum.IsZero() && slices.Contains(MatchingDisks(k.d.Config, image), key.Disk)
		alone := true
		for ref, other := range k.o.Disks {
			_, exists := other.Copies[key.ID]
			alone = alone && (ref == key.Disk || !exists && !k.o.Running[ident.CopyRef{Disk: ref, ID: key.ID}])
		}
		if j.Action.Op == model.Upload { // it ends if the bytes exist under another name
			alone = alone && len(k.o.Disks) == 1
		}
		k.forbid(wanted && alone && ends, "%s of %s ends: %s", j.Action.Op, key, why)
	}
}

// checkSuspensions checks the actions for suspended images. It also checks that a suspension only
// removes actions from the plan, and adds none.
func (k *checker) checkSuspensions() {
	if k.d.Config.Settings.Suspend == nil && !slices.ContainsFunc(slices.Collect(maps.Values(k.d.Config.Images)), func(m schema.Image) bool { return m.Suspend != nil }) {
		return
	}
	free := k.d
	free.Config.Settings.Suspend, free.Config.Images = nil, maps.Clone(k.d.Config.Images)
	for name, image := range free.Config.Images {
		image.Suspend = nil
		free.Config.Images[name] = image
	}
	without := map[ident.CopyRef]model.Op{}
	for _, a := range plan.NewRound(free, k.o).Plan().Actions {
		if !a.Idle() {
			without[a.CopyRef()] = a.Op
		}
	}
	for _, a := range k.p.Actions {
		if a.Idle() || k.goesOn(a) {
			continue
		}
		key := a.CopyRef()
		deletes := a.Op == model.Cleanup || a.Op == model.Evict
		k.forbid(IsSuspended(k.d.Config, a.Image, k.o.Now) && (deletes || !k.o.Running[key]), "%s of %s, which is suspended", a.Op, key)
		user := k.suspendedUser(key)
		k.forbid(deletes && user != "", "%s of %s, which is the source of %s", a.Op, key, user)
		// A copy that is kept for a suspended image is still maintained.
		stays := user != "" && (a.Op == model.Adopt || a.Op == model.Verify || a.Op == model.Repair)
		stays = stays || a.Op == model.Verify && k.d.Verify[key] // a copy that is not deleted now may be verified
		k.forbid(!a.Scrub && !stays && without[key] != a.Op, "%s of %s, without a suspension %q", a.Op, key, without[key])
	}
}

// suspendedUser returns a suspended image that has no ready copy but could be synced from this copy;
// "" if there is none.
func (k *checker) suspendedUser(key ident.CopyRef) string {
	c := k.o.Disks[key.Disk].Copies[key.ID]
	for name, image := range k.d.Config.Images {
		source := c.State == model.Ready && !image.Checksum.IsZero() && (c.SHA512 == image.Checksum || c.SHA256 == image.Checksum)
		if source && image.ID != key.ID && IsSuspended(k.d.Config, name, k.o.Now) && len(k.readyCopies(image)) == 0 {
			return name
		}
	}
	return ""
}

// IsSuspended reports whether an image is suspended at a given time. The image need not be declared.
func IsSuspended(config schema.Config, name string, now time.Time) bool {
	for _, s := range []*schema.Suspension{config.Settings.Suspend, config.Images[name].Suspend} {
		if s != nil && (s.Until.IsZero() || s.Until.After(now)) {
			return true
		}
	}
	return false
}

// checkTarget checks that a new copy is on an allowed disk, and that its source is a copy with the
// right bytes.
func (k *checker) checkTarget(a plan.Action) {
	key := a.CopyRef()
	image, declared := k.d.Config.Images[a.Image]
	k.forbid(!declared || image.ID != key.ID, "%s of an image that is not declared: %s", a.Op, key)
	node := k.d.Config.Nodes[key.Disk.Node]
	one := node.Disks[key.Disk.Disk]
	matches := slices.Contains(MatchingDisks(k.d.Config, image), key.Disk)
	named := slices.Contains(image.Disks, key.Disk)
	_, needed := k.o.Disks[key.Disk].Needs[key.ID]
	c := k.o.Disks[key.Disk].Copies[key.ID]
	needed = needed && image.FollowReplicas && (c.State == "" || c.State == model.Pending)
	k.forbid(a.Needed != needed, "%s of %s: needed %v, want %v", a.Op, key, a.Needed, needed)
	k.forbid(!needed && (!matches && !named || node.EvictionRequested || one.EvictionRequested), "%s on a disk that is not desired: %s", a.Op, key)
	k.forbid(!needed && !k.o.Running[key] && (!node.AllowScheduling || !one.AllowScheduling), "%s on a disk or node where scheduling is disabled: %s", a.Op, key)
	k.forbid(!k.o.Running[key] && k.o.Disks[key.Disk].Space.Free <= one.StorageReserved, "%s on a full disk: %s", a.Op, key)
	if a.Op != model.Sync && (a.Op != model.Clone || a.From == (ident.CopyRef{}) && k.o.Running[key]) {
		return
	}
	from := k.sourceOf(a)
	c = k.o.Disks[from.Disk].Copies[from.ID]
	ok := c.State == model.Ready && !c.Leaving && k.o.Disks[from.Disk].Problem == "" && k.responds(from.Disk.Node)
	ok = ok && (from.Disk.Node == k.d.Node && a.LocalSource == from || a.LocalSource == ident.CopyRef{} && !c.ManifestDigest.IsZero())
	// A running sync continues if its source temporarily does not respond.
	ok = ok || k.o.Running[key] && c.State == model.Ready && from.ID == image.ID
	same := from.ID == image.ID && image.Checksum.IsZero() || !image.Checksum.IsZero() && (c.SHA512 == image.Checksum || c.SHA256 == image.Checksum)
	if clone := image.Source.Clone; clone != nil {
		source, declared := k.d.Config.Images[clone.BackingImage]
		plain := declared && image.Checksum.IsZero() && clone.Encryption == schema.EncryptionIgnore && len(k.readyCopies(image)) == 0
		for _, key := range k.readyCopies(source) {
			same = same || plain && c.SHA512 == k.o.Disks[key.Disk].Copies[key.ID].SHA512
		}
		if a.Op == model.Clone {
			same = declared && from.ID == source.ID && from.Disk.Node == k.d.Node
		}
	}
	k.forbid(!ok || !same || a.From != from || from == key, "%s of %s from %s", a.Op, key, from)
	for _, b := range k.p.Actions {
		k.forbid((b.Op == model.Cleanup || b.Op == model.Evict) && b.CopyRef() == from, "%s of %s, which is the source of a sync", b.Op, from)
	}
}

// sourceOf returns the copy that a sync reads, or the zero value if the copy does not exist.
func (k *checker) sourceOf(a plan.Action) ident.CopyRef {
	if _, there := k.o.Disks[a.From.Disk].Copies[a.From.ID]; there {
		return a.From
	}
	return ident.CopyRef{}
}

// responds reports whether the state of a node is current.
func (k *checker) responds(node string) bool {
	p, known := k.o.Peers[node]
	return node == k.d.Node || known && p.Queried && p.Problem == ""
}

// counts reports whether a deletion may rely on copies of a node.
func (k *checker) counts(node string) bool {
	return node == k.d.Node || k.responds(node) && k.d.Digest != "" && k.o.Peers[node].ConfigDigest == k.d.Digest
}

// checkDeletions checks that every copy that the plan deletes may be deleted.
func (k *checker) checkDeletions() {
	for _, a := range k.p.Actions {
		if a.Op != model.Cleanup && a.Op != model.Evict {
			continue
		}
		key := a.CopyRef()
		_, declared := k.d.Config.Images[a.Image]
		if a.Op == model.Evict {
			node := k.d.Config.Nodes[a.Node]
			k.forbid(!declared || !node.EvictionRequested && !node.Disks[a.Disk].EvictionRequested, "evict of %s without a requested eviction", key)
		} else if !k.isOldPart(key) {
			k.checkInterval(key)
		}
		if !declared {
			k.checkOrphan(key)
		}
	}
}

// isOldPart reports whether a copy is only a partial file of an undeclared generation.
func (k *checker) isOldPart(key ident.CopyRef) bool {
	image, declared := k.d.Config.Images[key.ID.Name]
	return declared && image.ID != key.ID && k.o.Disks[key.Disk].Copies[key.ID].State == model.Pending
}

// earliestTime is before this program existed: no record has an earlier time.
var earliestTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// checkInterval checks that a copy has been unused for the clean-up interval.
func (k *checker) checkInterval(key ident.CopyRef) {
	wait := k.d.Config.Settings.CleanupWaitInterval
	if wait == 0 || k.d.Cleanup[key] {
		return
	}
	c := k.o.Disks[key.Disk].Copies[key.ID]
	k.forbid(k.o.Disks[key.Disk].ClockStepped, "cleanup of %s although the clock stepped", key)
	k.forbid(c.InUseRecorded, "cleanup of %s although the end of its last use is not recorded", key)
	k.forbid(c.ClockNode != "" && c.ClockNode != k.d.Node, "cleanup of %s, based on the clock of %s", key, c.ClockNode)
	k.forbid(c.SurplusSince.IsZero(), "cleanup of %s without a recorded start of its surplus time", key)
	for _, since := range []time.Time{c.SurplusSince, c.LastUsed} {
		if since.IsZero() {
			continue
		}
		k.forbid(since.Before(earliestTime) || since.After(k.o.Now), "cleanup of %s, based on an impossible time: %s", key, since)
		k.forbid(k.o.Now.Sub(since) < wait, "cleanup of %s, %s after %s", key, k.o.Now.Sub(since), since)
	}
}

// checkOrphan checks the deletion of a copy of an undeclared image: its removal is confirmed, the
// prune limit is respected, and it is known that no node uses it.
func (k *checker) checkOrphan(key ident.CopyRef) {
	orphans, confirmed := map[string]bool{}, true
	for ref, seen := range k.o.Disks {
		for id, c := range seen.Copies {
			_, declared := k.d.Config.Images[id.Name]
			declaration, invalid := k.d.Invalid[id.Name]
			if seen.Problem == "" && c.Owned && hadBytes(c) && !k.isUsed(id) && !declared && !(invalid && !declaration.Stale) {
				orphans[id.Name] = true
				confirmed = confirmed && slices.Contains(k.d.Config.Settings.PruneConfirmed, id)
			}
			k.forbid(id.Name == key.ID.Name && seen.Problem == "" && c.UsedBy != "", "cleanup of %s, which is in use on %s", key, ref)
		}
	}
	declaration, invalid := k.d.Invalid[key.ID.Name]
	k.forbid(invalid && !declaration.Stale, "cleanup of %s, which has an invalid declaration", key)
	k.forbid(k.d.Removed == nil || !k.d.Removed(key.ID.Name), "cleanup of %s before its removal is confirmed", key)
	over := len(orphans) > 1 && k.d.Config.Settings.PruneLimit.Exceeded(len(k.d.Config.Images), len(orphans))
	k.forbid(over && !confirmed && hadBytes(k.o.Disks[key.Disk].Copies[key.ID]), "cleanup of %s over the prune limit", key)
	for node, n := range k.d.Config.Nodes {
		for name := range n.Disks {
			seen, known := k.o.Disks[ident.DiskRef{Node: node, Disk: name}]
			k.forbid(!known || seen.Problem != "" || !k.counts(node), "cleanup of %s while its use on %s/%s is unknown", key, node, name)
		}
	}
}

// InUse returns why a copy of the node of d is in use; "": it is not.
func InUse(d plan.Desired, o plan.Observed, key ident.CopyRef) string {
	c := o.Disks[key.Disk].Copies[key.ID]
	if c.UsedBy != "" {
		return c.UsedBy
	}
	for ref, seen := range o.Disks {
		switch other := seen.Copies[key.ID]; {
		case ref.Node == key.Disk.Node && seen.Problem == "" && seen.UsageUnknown != "":
			return "any copy of the node may be in use"
		case ref == key.Disk || c.State == model.Pending || d.Config.Images[key.ID.Name].ID == key.ID:
		case seen.Needs[key.ID].By != "" && (other.State != model.Ready || other.Leaving || seen.Problem != ""):
			return fmt.Sprintf("a replica on %s needs it", ref)
		}
	}
	return ""
}

// isSilent reports whether a disk is not known to have what was last seen there.
func isSilent(o plan.Observed, ref ident.DiskRef) bool {
	p, other := o.Peers[ref.Node]
	return o.Disks[ref].Problem != "" || other && !p.Responds()
}

// isUsed reports whether an orphan does not count for the prune limit.
func (k *checker) isUsed(id ident.ID) bool {
	for ref, seen := range k.o.Disks {
		if one := seen.Copies[id]; seen.Needs[id].By != "" && (one.State != model.Ready || one.Leaving || isSilent(k.o, ref)) {
			return true
		}
		for other, c := range seen.Copies {
			if other.Name == id.Name && seen.Problem == "" && c.UsedBy != "" {
				return true
			}
		}
	}
	return false
}

// checkNeedsKnown checks that it is known whether replicas need a generation that is not declared, before it is deleted.
func (k *checker) checkNeedsKnown(key ident.CopyRef) {
	if k.d.Config.Images[key.ID.Name].ID == key.ID || k.o.Disks[key.Disk].Copies[key.ID].State == model.Pending {
		return
	}
	for node, n := range k.d.Config.Nodes {
		p := k.o.Peers[node]
		own := node == k.d.Node
		k.forbid(!own && p.Omitted > 0, "deletion of %s, and needs of %s are left out", key, node)
		k.forbid(!own && !p.Responds() && p.LastResponse.IsZero(), "deletion of %s before %s has responded", key, node)
		for name := range n.Disks {
			seen, known := k.o.Disks[ident.DiskRef{Node: node, Disk: name}]
			k.forbid(!own && !p.Responds() && seen.Needs[key.ID].By != "", "deletion of %s, and a copy on %s/%s that is in use may be the same file", key, node, name)
			k.forbid(!known || seen.Problem != "" && (own || seen.Needs == nil), "deletion of %s while the needs on %s/%s are unknown", key, node, name)
		}
	}
}

// hadBytes reports whether a folder has a file or a partial file, or had a file before. A folder with
// only a record does not count for the prune limit.
func hadBytes(c model.Copy) bool {
	hasFile := c.State != model.Pending || c.Size > 0 || c.PartBytes > 0
	hadFile := !c.SHA512.IsZero() || !c.VerifiedAt.IsZero() || !c.DamagedAt.IsZero() || !c.LastUsed.IsZero()
	return hasFile || hadFile || c.UsedBy != ""
}

// checkImage checks all actions for one declared image together.
func (k *checker) checkImage(image schema.Image) {
	ready := k.readyCopies(image)
	conflict := false
	for _, key := range ready {
		differs := k.o.Disks[key.Disk].Copies[key.ID].SHA512 != k.o.Disks[ready[0].Disk].Copies[ready[0].ID].SHA512
		conflict = conflict || image.Checksum.IsZero() && differs
	}
	var created, first, all int
	var deleted []ident.CopyRef
	for _, a := range k.p.Actions {
		if a.Image != image.ID.Name {
			continue
		}
		if all++; k.goesOn(a) {
			continue
		}
		switch a.Op {
		case model.Download, model.Upload, model.Export, model.Restore, model.Clone:
			created++
			first++
		case model.Sync:
			created++
		case model.Cleanup, model.Evict:
			if a.Op == model.Evict {
				k.checkReadBack(a.CopyRef(), ready)
			}
			if !k.isOldPart(a.CopyRef()) { // an old partial file does not count as a copy
				deleted = append(deleted, a.CopyRef())
			}
		}
	}
	k.forbid(first > 1 || len(ready) == 0 && created > 1, "%d disks create the first copy of %s at the same time", created, image.ID)
	k.forbid(first > 0 && len(ready) > 0, "a first copy of %s, which has ready copies", image.ID)
	k.forbid(conflict && created+len(deleted) > 0, "copies of %s are created or deleted although its ready copies differ", image.ID)
	k.forbid(created > 0 && len(ready) > 0 && k.d.Config.Settings.ConcurrentReplenishPerNodeLimit == 0, "a second copy of %s although the limit is 0", image.ID)
	k.checkEnoughCopies(image, ready, deleted)
	elsewhere := slices.ContainsFunc(MatchingDisks(k.d.Config, image), func(ref ident.DiskRef) bool { return ref.Node != k.d.Node })
	k.forbid(k.d.Allowed != schema.ObserveOnly && all == 0 && !elsewhere && len(ready) == 0, "no action for %s, which has no ready copy", image.ID)
}

// checkReadBack checks that a copy that remains was read in full since the eviction of a ready copy began (S5).
func (k *checker) checkReadBack(evicted ident.CopyRef, ready []ident.CopyRef) {
	c := k.o.Disks[evicted.Disk].Copies[evicted.ID]
	read := slices.ContainsFunc(ready, func(key ident.CopyRef) bool {
		at := k.o.Disks[key.Disk].Copies[key.ID].ReadBackAt
		if key.Disk.Node != k.d.Node {
			at = at.Add(10 * time.Second) // the clocks differ
		}
		return key != evicted && !at.Before(c.SurplusSince) && !at.Before(c.LastUsed) && at.Before(k.o.Now.Add(time.Minute))
	})
	k.forbid(slices.Contains(ready, evicted) && !read, "eviction of %s, and no copy that remains was read back in full", evicted)
}

// checkEnoughCopies checks the remaining copies after all deletions of the plan.
func (k *checker) checkEnoughCopies(image schema.Image, ready, deleted []ident.CopyRef) {
	if len(deleted) == 0 {
		return
	}
	matching := MatchingDisks(k.d.Config, image)
	required := image.Copies
	if image.AllDisks {
		required = len(matching)
	}
	k.forbid(len(matching) == 0, "a deletion of %s, which no disk matches", image.ID)
	onDesired, left := 0, 0
	for _, key := range ready {
		if slices.Contains(deleted, key) || key.Disk.Node == k.d.Node && k.o.Running[key] || !k.counts(key.Disk.Node) || k.o.Disks[key.Disk].Copies[key.ID].Leaving {
			continue // a job on a ready copy of this node may be its deletion
		}
		left++
		node := k.d.Config.Nodes[key.Disk.Node]
		_, declared := node.Disks[key.Disk.Disk]
		named := declared && slices.Contains(image.Disks, key.Disk) && !node.EvictionRequested && !node.Disks[key.Disk.Disk].EvictionRequested
		if named || slices.Contains(matching, key.Disk) {
			onDesired++
		}
	}
	k.forbid(onDesired < max(1, min(required, len(matching))), "%d copies of %s remain on desired disks", onDesired, image.ID)
	k.forbid(slices.ContainsFunc(deleted, func(key ident.CopyRef) bool { return slices.Contains(ready, key) }) && left < required, "%d copies of %s remain of %d, but %d are desired", left, image.ID, len(ready), required)
}

// readyCopies returns the copies of an image that count as ready.
func (k *checker) readyCopies(image schema.Image) []ident.CopyRef {
	var keys []ident.CopyRef
	for ref, seen := range k.o.Disks {
		c, there := seen.Copies[image.ID]
		right := image.Checksum.IsZero() || c.SHA512 == image.Checksum || c.SHA256 == image.Checksum
		if there && seen.Problem == "" && c.State == model.Ready && right && (!c.Leaving || ref.Node == k.d.Node) && k.responds(ref.Node) {
			keys = append(keys, ident.CopyRef{Disk: ref, ID: image.ID})
		}
	}
	return keys
}

// MatchingDisks returns the disks that match the selectors of an image and are not evicted, in no
// particular order.
func MatchingDisks(c schema.Config, image schema.Image) []ident.DiskRef {
	var refs []ident.DiskRef
	for nodeName, node := range c.Nodes {
		for name, d := range node.Disks {
			ok := !node.EvictionRequested && !d.EvictionRequested
			for _, want := range image.NodeSelector {
				ok = ok && slices.Contains(node.Tags, want)
			}
			for _, want := range image.DiskSelector {
				ok = ok && slices.Contains(d.Tags, want)
			}
			if ok {
				refs = append(refs, ident.DiskRef{Node: nodeName, Disk: name})
			}
		}
	}
	return refs
}

// checkFirstCopy checks an action that creates the first copy of an image, from its source or from
// another image.
func (k *checker) checkFirstCopy(a plan.Action) {
	key := a.CopyRef()
	image := k.d.Config.Images[a.Image]
	if image.ID != key.ID || a.Op == model.Sync && (!image.Checksum.IsZero() || k.sourceOf(a).ID == image.ID) {
		return
	}
	if image.Checksum.IsZero() {
		k.checkPeersQueried(a)
	}
	k.forbid(a.Op == model.Export && k.o.CannotPrepare[key.ID] != "" && !k.o.Running[key], "export of %s: %s", key, k.o.CannotPrepare[key.ID])
	started := k.o.Disks[key.Disk].Copies[key.ID].PartKind == model.PartFromUpload
	k.forbid(a.Op == model.Upload && (k.d.Uploads == nil || !k.d.Uploads[key] && !started && !k.o.Running[key]), "upload of %s that no client has started", key)
	if image.Source.Clone != nil {
		k.checkClone(a)
	}
	if a.Op == model.Sync || a.Op == model.Clone && image.Source.Clone.Encryption == schema.Encrypt {
		recent := k.recentDigests(image.ID)
		k.forbid(len(recent) > 0 && !recent[a.SourceDigest], "%s of %s, which had another digest within the recovery interval", a.Op, key)
	}
}

// checkPeersQueried checks that no peer can have a copy with the established digest of an image
// without a checksum: each peer responds, or has not responded for the recovery interval.
func (k *checker) checkPeersQueried(a plan.Action) {
	for node := range k.d.Config.Nodes {
		p, known := k.o.Peers[node]
		if node != k.d.Node && known && !k.responds(node) {
			k.forbid(!p.Queried || p.UnreachableFor(k.o.Now) < k.d.Config.Settings.RecoveryWaitInterval, "%s of %s before node %s has responded", a.Op, a.CopyRef(), node)
		}
	}
}

// checkClone checks the source of a clone.
func (k *checker) checkClone(a plan.Action) {
	source, declared := k.d.Config.Images[k.d.Config.Images[a.Image].Source.Clone.BackingImage]
	if !declared {
		return
	}
	suspect := plan.Suspects(k.o.Failures)
	k.forbid(a.From != (ident.CopyRef{}) && suspect[k.sourceOf(a)], "%s of %s from a suspected copy", a.Op, a.CopyRef())
	if !source.Checksum.IsZero() || !k.d.Config.Images[a.Image].Checksum.IsZero() {
		return
	}
	digests := map[ident.Digest]bool{}
	for _, key := range k.readyCopies(source) {
		if c := k.o.Disks[key.Disk].Copies[key.ID]; !c.Leaving && !suspect[key] {
			digests[c.SHA512] = true
		}
	}
	k.forbid(len(digests) > 1, "%s of %s although the ready copies of its source differ", a.Op, a.CopyRef())
}

// recentDigests returns the digests of copies that failed within the recovery interval.
func (k *checker) recentDigests(id ident.ID) map[ident.Digest]bool {
	digests := map[ident.Digest]bool{}
	for _, seen := range k.o.Disks {
		c, there := seen.Copies[id]
		age := k.o.Now.Sub(c.DamagedAt)
		if there && seen.Problem == "" && c.State == model.Failed && !c.SHA512.IsZero() && !c.DamagedAt.IsZero() && age >= 0 && age < k.d.Config.Settings.RecoveryWaitInterval {
			digests[c.SHA512] = true
		}
	}
	return digests
}
