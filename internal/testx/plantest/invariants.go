package plantest

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// CheckPlan fails the test when the plan does what a manager never does. The
// rules are written down here a second time, without the planner's code.
func CheckPlan(t testing.TB, d plan.Desired, o plan.Observed, p plan.Plan) {
	t.Helper()
	for _, v := range violations(d, o, p) {
		t.Errorf("never: %s", v)
	}
}

func violations(d plan.Desired, o plan.Observed, p plan.Plan) []string {
	j := &invariants{d: d, o: o, p: p}
	j.actions()
	j.deletions()
	j.suspended()
	for _, image := range d.Config.Images {
		j.image(image)
	}
	return j.found
}

// invariants looks at one plan.
type invariants struct {
	d     plan.Desired
	o     plan.Observed
	p     plan.Plan
	found []string
}

func (j *invariants) never(broken bool, format string, args ...any) {
	if broken {
		j.found = append(j.found, fmt.Sprintf(format, args...))
	}
}

// actions checks each action on its own.
func (j *invariants) actions() {
	busy := map[plan.CopyRef]plan.Op{}
	j.never(j.d.Allowed == schema.ObserveOnly && len(j.p.Actions) > 0, "an action while nothing may be done")
	for _, a := range j.p.Actions {
		j.never(a.Reason == "", "no reason for %+v", a)
		j.never(!a.Until.IsZero() && !a.Until.After(j.o.Now), "a wait for what is over: %+v", a)
		if a.Op == plan.Wait || a.Op == plan.Blocked {
			continue
		}
		key := a.CopyRef()
		j.never(busy[key] != "", "%s and %s of %s at once", busy[key], a.Op, key)
		busy[key] = a.Op
		seen, known := j.o.Disks[key.Disk]
		j.never(!known || seen.Problem != "" || key.Disk.Node != j.d.Node, "%s on a disk that is not to be touched: %s", a.Op, key)
		c, there := seen.Copies[key.ID]
		file := there && c.State != disk.Pending
		t := j.o.Failures[key]
		concerns := t.Op == "" || t.Op == a.Op
		concerns = concerns && a.Op != plan.Upload // the next file is another one
		j.never(concerns && t.Final && a.Op != plan.Cleanup && a.Op != plan.Evict, "%s of %s again, which is final", a.Op, key)
		j.never(concerns && t.NeedsSpace == 0 && t.RetryAt.After(j.o.Now), "%s of %s before its time", a.Op, key)
		switch a.Op {
		case plan.Adopt, plan.Verify:
			j.never(!file || j.d.Config.Images[a.Image].ID != key.ID, "%s of what is not there or not declared: %s", a.Op, key)
		case plan.Repair:
			j.never(c.State != disk.Failed || c.ManifestDigest.IsZero() || !c.Owned || j.d.Config.Images[a.Image].ID != key.ID, "repair of %s, which is %s", key, c.State)
		case plan.Download, plan.Upload, plan.Export, plan.Restore, plan.Clone, plan.Sync:
			j.never(file && (c.State != disk.Failed || c.UsedBy != "" || !c.Owned), "%s over %s copy %s (used: %q)", a.Op, c.State, key, c.UsedBy)
			j.target(a)
			j.first(a)
		case plan.Backup:
			_, due := j.d.Config.Images[a.Image]
			j.never(!due || c.State != disk.Ready || c.Leaving || j.o.BackedUp[key.ID], "backup of %s copy %s", c.State, key)
		case plan.Cleanup, plan.Evict:
			j.never(!there || !c.Owned, "%s of what is not ours: %s", a.Op, key)
			j.never(c.UsedBy != "", "%s of %s, which is in use", a.Op, key)
			j.never(j.d.Allowed != schema.Everything, "%s while the configuration is broken", a.Op)
		default:
			j.never(true, "action %s is not known", a.Op)
		}
	}
}

// suspended checks what is done about images that are suspended, and that a suspension
// takes actions away and never makes one.
func (j *invariants) suspended() {
	if j.d.Config.Settings.Suspend == nil && !slices.ContainsFunc(slices.Collect(maps.Values(j.d.Config.Images)), func(m schema.Image) bool { return m.Suspend != nil }) {
		return
	}
	free := j.d
	free.Config.Settings.Suspend, free.Config.Images = nil, maps.Clone(j.d.Config.Images)
	for name, image := range free.Config.Images {
		image.Suspend = nil
		free.Config.Images[name] = image
	}
	without := map[plan.CopyRef]plan.Op{}
	for _, a := range free.Plan(j.o).Actions {
		if !a.Idle() {
			without[a.CopyRef()] = a.Op
		}
	}
	for _, a := range j.p.Actions {
		if a.Idle() {
			continue
		}
		key := a.CopyRef()
		drops := a.Op == plan.Cleanup || a.Op == plan.Evict
		j.never(IsSuspended(j.d.Config, a.Image, j.o.Now) && (drops || !j.o.Running[key]), "%s of %s, which is suspended", a.Op, key)
		other := j.awaiting(key)
		j.never(drops && other != "", "%s of %s, which %s is to be made of", a.Op, key, other)
		stays := other != "" && (a.Op == plan.Adopt || a.Op == plan.Verify || a.Op == plan.Repair) // as it stays, it is looked after
		j.never(!a.Scrub && !stays && without[key] != a.Op, "%s of %s, and without a suspension it would be %q", a.Op, key, without[key])
	}
}

// awaiting names an image that is suspended, has no ready copy, and can be made of this one.
func (j *invariants) awaiting(key plan.CopyRef) string {
	c := j.o.Disks[key.Disk].Copies[key.ID]
	for name, image := range j.d.Config.Images {
		source := c.State == disk.Ready && !image.Checksum.IsZero() && (c.SHA512 == image.Checksum || c.SHA256 == image.Checksum)
		if source && image.ID != key.ID && IsSuspended(j.d.Config, name, j.o.Now) && len(j.readyOf(image)) == 0 {
			return name
		}
	}
	return ""
}

// IsSuspended reports whether an image, declared or not, is suspended.
func IsSuspended(config schema.Config, name string, now time.Time) bool {
	for _, s := range []*schema.Suspension{config.Settings.Suspend, config.Images[name].Suspend} {
		if s != nil && (s.Until.IsZero() || s.Until.After(now)) {
			return true
		}
	}
	return false
}

// target checks that a copy is made where one may be made, and of the right bytes.
func (j *invariants) target(a plan.Action) {
	key := a.CopyRef()
	image, declared := j.d.Config.Images[a.Image]
	j.never(!declared || image.ID != key.ID, "%s of what is not declared: %s", a.Op, key)
	node := j.d.Config.Nodes[key.Disk.Node]
	one := node.Disks[key.Disk.Disk]
	matches := slices.Contains(MatchingDisks(j.d.Config, image), key.Disk)
	named := slices.Contains(image.Disks, key.Disk)
	j.never(!matches && !named || node.EvictionRequested || one.EvictionRequested, "%s to where it does not belong: %s", a.Op, key)
	j.never(!node.AllowScheduling || !one.AllowScheduling, "%s to where nothing is scheduled: %s", a.Op, key)
	j.never(!j.o.Running[key] && j.o.Disks[key.Disk].Space.Free <= one.StorageReserved, "%s to a full disk: %s", a.Op, key)
	if a.Op != plan.Sync && (a.Op != plan.Clone || a.From == (plan.CopyRef{}) && j.o.Running[key]) {
		return
	}
	from := j.source(a)
	c := j.o.Disks[from.Disk].Copies[from.ID]
	ok := c.State == disk.Ready && !c.Leaving && j.o.Disks[from.Disk].Problem == "" && j.speaks(from.Disk.Node)
	ok = ok && (from.Disk.Node == j.d.Node && a.LocalSource == from || a.LocalSource == plan.CopyRef{} && !c.ManifestDigest.IsZero())
	ok = ok || j.o.Running[key] && c.State == disk.Ready && from.ID == image.ID // it goes on though nothing is heard for a moment
	same := from.ID == image.ID && image.Checksum.IsZero() || !image.Checksum.IsZero() && (c.SHA512 == image.Checksum || c.SHA256 == image.Checksum)
	if clone := image.Source.Clone; clone != nil {
		source, declared := j.d.Config.Images[clone.BackingImage]
		plain := declared && image.Checksum.IsZero() && clone.Encryption == schema.EncryptionIgnore && len(j.readyOf(image)) == 0
		for _, key := range j.readyOf(source) {
			same = same || plain && c.SHA512 == j.o.Disks[key.Disk].Copies[key.ID].SHA512
		}
		if a.Op == plan.Clone {
			same = declared && from.ID == source.ID && from.Disk.Node == j.d.Node
		}
	}
	j.never(!ok || !same || a.From != from || from == key, "%s of %s from %s", a.Op, key, from)
	for _, b := range j.p.Actions {
		j.never((b.Op == plan.Cleanup || b.Op == plan.Evict) && b.CopyRef() == from, "%s of %s, which is read", b.Op, from)
	}
}

// source is the copy that a sync names.
func (j *invariants) source(a plan.Action) plan.CopyRef {
	if _, there := j.o.Disks[a.From.Disk].Copies[a.From.ID]; there {
		return a.From
	}
	return plan.CopyRef{}
}

// speaks reports whether what is known of a node is what it says now.
func (j *invariants) speaks(node string) bool {
	p, asked := j.o.Peers[node]
	return node == j.d.Node || asked && p.Queried && p.Problem == ""
}

// counted reports whether a deletion may count on what is known of a node.
func (j *invariants) counted(node string) bool {
	return node == j.d.Node || j.speaks(node) && j.d.Digest != "" && j.o.Peers[node].ConfigDigest == j.d.Digest
}

// deletions checks when a copy may go.
func (j *invariants) deletions() {
	for _, a := range j.p.Actions {
		if a.Op != plan.Cleanup && a.Op != plan.Evict {
			continue
		}
		key := a.CopyRef()
		_, declared := j.d.Config.Images[a.Image]
		if a.Op == plan.Evict {
			node := j.d.Config.Nodes[a.Node]
			j.never(!declared || !node.EvictionRequested && !node.Disks[a.Disk].EvictionRequested, "evict of %s, which nobody asked for", key)
		} else if !j.part(key) {
			j.interval(key)
		}
		if !declared {
			j.vanished(key)
		}
	}
}

// part reports whether there is only a part, of a generation that nobody makes any more.
func (j *invariants) part(key plan.CopyRef) bool {
	image, declared := j.d.Config.Images[key.ID.Name]
	return declared && image.ID != key.ID && j.o.Disks[key.Disk].Copies[key.ID].State == disk.Pending
}

// born is before the program was built.
var born = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

func (j *invariants) interval(key plan.CopyRef) {
	wait := j.d.Config.Settings.CleanupWaitInterval
	if wait == 0 || j.d.Cleanup[key] {
		return
	}
	c := j.o.Disks[key.Disk].Copies[key.ID]
	j.never(j.o.Disks[key.Disk].ClockStepped, "cleanup of %s although the clock stepped", key)
	j.never(c.InUseRecorded, "cleanup of %s, the use of which ended just now", key)
	j.never(c.ClockNode != "" && c.ClockNode != j.d.Node, "cleanup of %s by the clock of %s", key, c.ClockNode)
	j.never(c.SurplusSince.IsZero(), "cleanup of %s, of which nobody noted since when it is unwanted", key)
	for _, since := range []time.Time{c.SurplusSince, c.LastUsed} {
		if since.IsZero() {
			continue
		}
		j.never(since.Before(born) || since.After(j.o.Now), "cleanup of %s by a time that cannot be: %s", key, since)
		j.never(j.o.Now.Sub(since) < wait, "cleanup of %s, %s after %s", key, j.o.Now.Sub(since), since)
	}
}

func (j *invariants) vanished(key plan.CopyRef) {
	gone, confirmed := map[string]bool{}, true
	for ref, seen := range j.o.Disks {
		for id, c := range seen.Copies {
			_, declared := j.d.Config.Images[id.Name]
			held, broken := j.d.Invalid[id.Name]
			if seen.Problem == "" && c.Owned && !declared && !(broken && !held.Stale) {
				gone[id.Name] = true
				confirmed = confirmed && slices.Contains(j.d.Config.Settings.PruneConfirmed, id)
			}
			j.never(id.Name == key.ID.Name && seen.Problem == "" && c.UsedBy != "", "cleanup of %s, which is used on %s", key, ref)
		}
	}
	held, broken := j.d.Invalid[key.ID.Name]
	j.never(broken && !held.Stale, "cleanup of %s, the declaration of which is broken", key)
	j.never(j.d.Removed != nil && !j.d.Removed(key.ID.Name), "cleanup of %s at the first look without it", key)
	over := len(gone) > 1 && j.d.Config.Settings.PruneLimit.Holds(len(j.d.Config.Images), len(gone))
	j.never(over && !confirmed, "cleanup of %s over the prune limit", key)
	for node, n := range j.d.Config.Nodes {
		for name := range n.Disks {
			seen, known := j.o.Disks[schema.DiskRef{Node: node, Disk: name}]
			j.never(!known || seen.Problem != "" || !j.counted(node), "cleanup of %s while nobody knows whether %s/%s uses it", key, node, name)
		}
	}
}

// image checks all that happens to one declared image.
func (j *invariants) image(image schema.Image) {
	ready := j.readyOf(image)
	conflict := false
	for _, key := range ready {
		differs := j.o.Disks[key.Disk].Copies[key.ID].SHA512 != j.o.Disks[ready[0].Disk].Copies[ready[0].ID].SHA512
		conflict = conflict || image.Checksum.IsZero() && differs
	}
	var made, first, about int
	var goes []plan.CopyRef
	for _, a := range j.p.Actions {
		if a.Image != image.ID.Name {
			continue
		}
		about++
		switch a.Op {
		case plan.Download, plan.Upload, plan.Export, plan.Restore, plan.Clone:
			made++
			first++
		case plan.Sync:
			made++
		case plan.Cleanup, plan.Evict:
			if !j.part(a.CopyRef()) { // no image has less by it
				goes = append(goes, a.CopyRef())
			}
		}
	}
	j.never(first > 1 || len(ready) == 0 && made > 1, "%d disks prepare %s at once", made, image.ID)
	j.never(first > 0 && len(ready) > 0, "a first copy of %s, which is ready", image.ID)
	j.never(conflict && made+len(goes) > 0, "work on %s, the copies of which differ", image.ID)
	j.never(made > 0 && len(ready) > 0 && j.d.Config.Settings.ConcurrentReplenishPerNodeLimit == 0, "a second copy of %s although the limit is 0", image.ID)
	j.keepsEnough(image, ready, goes)
	elsewhere := slices.ContainsFunc(MatchingDisks(j.d.Config, image), func(ref schema.DiskRef) bool { return ref.Node != j.d.Node })
	j.never(j.d.Allowed != schema.ObserveOnly && about == 0 && !elsewhere && len(ready) == 0, "no word about %s, which is nowhere ready", image.ID)
}

// keepsEnough checks what is left when everything goes at once that may go.
func (j *invariants) keepsEnough(image schema.Image, ready, goes []plan.CopyRef) {
	if len(goes) == 0 {
		return
	}
	places := MatchingDisks(j.d.Config, image)
	least := image.Copies
	if image.AllDisks {
		least = len(places)
	}
	j.never(len(places) == 0, "a deletion of %s, which no disk matches", image.ID)
	stand, left := 0, 0
	for _, key := range ready {
		if slices.Contains(goes, key) || key.Disk.Node == j.d.Node && j.o.Running[key] || !j.counted(key.Disk.Node) || j.o.Disks[key.Disk].Copies[key.ID].Leaving {
			continue // Running: it may be on its way out
		}
		left++
		node := j.d.Config.Nodes[key.Disk.Node]
		_, declared := node.Disks[key.Disk.Disk]
		named := declared && slices.Contains(image.Disks, key.Disk) && !node.EvictionRequested && !node.Disks[key.Disk.Disk].EvictionRequested
		if named || slices.Contains(places, key.Disk) {
			stand++
		}
	}
	j.never(stand < max(1, min(least, len(places))), "%d copies of %s are left where they should be", stand, image.ID)
	j.never(slices.ContainsFunc(goes, func(key plan.CopyRef) bool { return slices.Contains(ready, key) }) && left < least, "%d copies of %s are left of %d, %d are wanted", left, image.ID, len(ready), least)
}

// readyOf are the copies that may be counted on.
func (j *invariants) readyOf(image schema.Image) []plan.CopyRef {
	var keys []plan.CopyRef
	for ref, seen := range j.o.Disks {
		c, there := seen.Copies[image.ID]
		right := image.Checksum.IsZero() || c.SHA512 == image.Checksum || c.SHA256 == image.Checksum
		if there && seen.Problem == "" && c.State == disk.Ready && right && (!c.Leaving || ref.Node == j.d.Node) && j.speaks(ref.Node) {
			keys = append(keys, plan.CopyRef{Disk: ref, ID: image.ID})
		}
	}
	return keys
}

// MatchingDisks are the disks that may hold an image, in no order.
func MatchingDisks(c schema.Config, image schema.Image) []schema.DiskRef {
	var refs []schema.DiskRef
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
				refs = append(refs, schema.DiskRef{Node: nodeName, Disk: name})
			}
		}
	}
	return refs
}

// first checks what makes the first copy of an image, from its source or from another
// image.
func (j *invariants) first(a plan.Action) {
	key := a.CopyRef()
	image := j.d.Config.Images[a.Image]
	if image.ID != key.ID || a.Op == plan.Sync && (!image.Checksum.IsZero() || j.source(a).ID == image.ID) {
		return
	}
	if image.Checksum.IsZero() {
		j.heard(a)
	}
	j.never(a.Op == plan.Export && j.o.CannotPrepare[key.ID] != "" && !j.o.Running[key], "export of %s: %s", key, j.o.CannotPrepare[key.ID])
	begun := j.o.Disks[key.Disk].Copies[key.ID].PartSourceID == disk.PartFromUpload
	j.never(a.Op == plan.Upload && (j.d.Uploads == nil || !j.d.Uploads[key] && !begun && !j.o.Running[key]), "upload of %s, which nobody begins", key)
	if image.Source.Clone != nil {
		j.cloned(a)
	}
	if a.Op == plan.Sync || a.Op == plan.Clone && image.Source.Clone.Encryption == schema.Encrypt {
		last := j.bore(image.ID)
		j.never(len(last) > 0 && !last[a.SourceDigest], "%s of %s, which was something else just now", a.Op, key)
	}
}

// heard checks that nobody is waited for that may have what an image without a checksum
// is.
func (j *invariants) heard(a plan.Action) {
	for node := range j.d.Config.Nodes {
		p, asking := j.o.Peers[node]
		if node != j.d.Node && asking && !j.speaks(node) {
			j.never(!p.Queried || p.UnreachableFor < j.d.Config.Settings.RecoveryWaitInterval, "%s of %s, and nothing was heard of %s", a.Op, a.CopyRef(), node)
		}
	}
}

// cloned checks what an image is cloned from.
func (j *invariants) cloned(a plan.Action) {
	source, declared := j.d.Config.Images[j.d.Config.Images[a.Image].Source.Clone.BackingImage]
	if !declared {
		return
	}
	suspect := plan.Suspects(j.o.Failures)
	j.never(a.From != (plan.CopyRef{}) && suspect[j.source(a)], "%s of %s from what is suspected", a.Op, a.CopyRef())
	if !source.Checksum.IsZero() || !j.d.Config.Images[a.Image].Checksum.IsZero() {
		return
	}
	sums := map[disk.Digest]bool{}
	for _, key := range j.readyOf(source) {
		if c := j.o.Disks[key.Disk].Copies[key.ID]; !c.Leaving && !suspect[key] {
			sums[c.SHA512] = true
		}
	}
	j.never(len(sums) > 1, "%s of %s, and the copies of its source differ", a.Op, a.CopyRef())
}

// bore are the digests that failed copies had within the recovery interval.
func (j *invariants) bore(id disk.ID) map[disk.Digest]bool {
	sums := map[disk.Digest]bool{}
	for _, seen := range j.o.Disks {
		c, there := seen.Copies[id]
		age := j.o.Now.Sub(c.DamagedAt)
		if there && seen.Problem == "" && c.State == disk.Failed && !c.SHA512.IsZero() && !c.DamagedAt.IsZero() && age >= 0 && age < j.d.Config.Settings.RecoveryWaitInterval {
			sums[c.SHA512] = true
		}
	}
	return sums
}
