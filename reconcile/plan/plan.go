package plan

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Plan says what has to happen on the disks of d.Node. It depends on d and o
// alone and reads no clock. Two plans from equal values are equal.
func (d Desired) Plan(o Observed) Plan {
	if d.Allowed == schema.ObserveOnly {
		return d.NewPlan([]Action{})
	}
	p := d.NewPlan(d.NewIndex(o).plan(maps.Values(d.Config.Images)))
	p.Suspended = d.Suspensions(o.Now)
	return p
}

// plan gives the actions for these images, and for what is not declared.
func (s *index) plan(images iter.Seq[schema.Image]) []Action {
	actions := []Action{}
	for image := range images {
		actions = append(actions, s.NewImagePlanner(image).plan()...)
	}
	for name := range s.desired.Invalid {
		if why := s.desired.invalidReason(name); why != "" {
			actions = append(actions, NewAction(Blocked, CopyRef{schema.DiskRef{Node: s.desired.Node}, disk.ID{Name: name}}, why, 0))
		}
	}
	actions = append(actions, s.planOrphans()...)
	actions = append(actions, s.scrub(actions)...)
	return keepSources(actions)
}

// keepSources keeps the copies that others are to be made from.
func keepSources(actions []Action) []Action {
	readBy := map[CopyRef]string{}
	for _, a := range actions {
		if reader := a.CopyRef().String(); a.LocalSource != (CopyRef{}) && (readBy[a.LocalSource] == "" || reader < readBy[a.LocalSource]) {
			readBy[a.LocalSource] = reader
		}
	}
	for i, a := range actions {
		reader := readBy[a.CopyRef()]
		if reader != "" && (a.Op == Cleanup || a.Op == Evict) {
			actions[i] = NewAction(Wait, a.CopyRef(), fmt.Sprintf("%s, but is copied to %s first", a.Reason, reader), 0).asWaitFor(a.Op, false)
		}
	}
	return actions
}

// plan gives the actions for one image on this node's disks.
func (v imagePlanner) plan() []Action {
	return v.ix.applySuspension(v.ix.desired.SuspensionOf(v.image, v.ix.observed.Now), v.planUnsuspended())
}

// planUnsuspended is what would be planned without a suspension.
func (v imagePlanner) planUnsuspended() []Action {
	settling := v.inspectCopies()
	if conflict := v.conflict(); conflict != "" {
		return append(slices.Collect(maps.Values(settling)), v.blocked(schema.DiskRef{}, conflict))
	}
	actions := v.planSurplus(settling)
	for _, ref := range v.Placement.Targets {
		if _, first := settling[ref]; first || !v.ix.desired.Owns(ref) {
			continue
		}
		if a, needed := v.planTarget(ref, settling); needed {
			actions = append(actions, a.asWaitFor(v.methodFor(ref), v.waitsForUpload()))
		}
	}
	if v.Placement.missing > 0 || v.Placement.ranked.Len() == 0 {
		actions = append(actions, v.shortage())
	}
	if a, due := v.backup(settling); due {
		actions = append(actions, a)
	}
	actions = append(actions, v.rejectedCleanups()...)
	for _, ref := range v.image.Disks {
		if a, refused := v.rejectedNamedDisk(ref); refused {
			actions = append(actions, a)
		}
	}
	return append(actions, slices.Collect(maps.Values(settling))...)
}

// rejectedCleanups tells that what is wanted is not cleaned up, even if somebody asks.
func (v imagePlanner) rejectedCleanups() []Action {
	var actions []Action
	for _, ref := range v.Placement.Targets {
		if key := (CopyRef{ref, v.image.ID}); v.ix.desired.Owns(ref) && v.ix.desired.Cleanup[key] && v.ix.copyAt(key).State == disk.Ready {
			actions = append(actions, v.ix.keep(key, "its clean-up was asked for, but the image is wanted on this disk"))
		}
	}
	return actions
}

// inspectCopies says, for each disk where it is so, what has to be found out or decided
// about the file that lies there before anything else is done with it.
func (v imagePlanner) inspectCopies() map[schema.DiskRef]Action {
	settling := map[schema.DiskRef]Action{}
	for _, key := range v.ix.ownByName[v.image.ID.Name] {
		if key.ID != v.image.ID {
			continue
		}
		ref, c := key.Disk, v.ix.copyAt(key)
		switch {
		case c.State == disk.Unknown && !c.Owned:
			settling[ref] = v.attempt(Adopt, ref, "a file is there: "+c.Message, c.Size)
		case c.State == disk.Unknown:
			settling[ref] = v.attempt(Verify, ref, c.Message, c.Size)
		case c.State == disk.Ready && v.ix.desired.Verify[key]:
			settling[ref] = v.attempt(Verify, ref, "asked for", c.Size)
		case c.State == disk.Ready && v.ix.suspects[key]:
			settling[ref] = v.attempt(Verify, ref, SuspectMessage, c.Size)
		case c.State == disk.Failed && v.repairable(key):
			settling[ref] = v.repair(key)
		case c.State == disk.Failed && c.UsedBy != "":
			settling[ref] = v.blocked(ref, fmt.Sprintf("the copy failed (%s) and cannot be replaced: %s", c.Message, c.UsedBy))
		case v.mismatch[key] == needsSHA256:
			settling[ref] = v.attempt(Verify, ref, needsSHA256, c.Size)
		case v.mismatch[key] != "":
			settling[ref] = v.blocked(ref, v.mismatch[key])
		case c.State == disk.Ready && !c.HasCfg:
			settling[ref] = v.attempt(Adopt, ref, "backing.cfg is missing or is not about the file", 0)
		case c.State == disk.Ready && c.ManifestDigest.IsZero():
			settling[ref] = v.attempt(Verify, ref, "its chunk manifest is missing", c.Size)
		}
	}
	return settling
}

// conflict says when two ready copies differ, so that nobody can tell which of
// them is the image.
func (v imagePlanner) conflict() string {
	if !v.image.Checksum.IsZero() || len(v.ready) < 2 {
		return ""
	}
	first := v.ix.copyAt(v.ready[0])
	for _, key := range v.ready[1:] {
		if c := v.ix.copyAt(key); c.SHA512 != first.SHA512 {
			if of := v.image.Source.Clone; of != nil && of.Encryption == schema.Encrypt { // which takes no checksum
				return fmt.Sprintf("copies differ, those of %s and %s, as each was encrypted by itself: to have it encrypted anew, declare another uuid", v.ready[0].Disk, key.Disk)
			}
			return fmt.Sprintf("copies differ: to keep that of %s, declare checksum: %q; to keep that of %s, declare checksum: %q",
				v.ready[0].Disk, first.SHA512, key.Disk, c.SHA512)
		}
	}
	return ""
}

// shortage tells that fewer disks can take a copy than are wanted. As long as
// nothing is wrong with a disk it does not keep the plan from being empty: there
// is nothing that would be done.
func (v imagePlanner) shortage() Action {
	reason := fmt.Sprintf("no disk can take %d of %d copies", v.Placement.missing, v.Placement.copies)
	if v.Placement.ranked.Len() == 0 {
		reason = v.noRankedDisk()
	}
	by, wrong := map[string][]string{}, len(v.Placement.Targets) == 0 || v.Placement.ranked.Len() == 0
	for ref, r := range v.Placement.Rejected {
		if v.matches(ref) {
			by[r.Reason] = append(by[r.Reason], ref.String())
			wrong = wrong || r.isFault()
		}
	}
	var why []string
	for reason, disks := range by {
		slices.Sort(disks)
		why = append(why, fmt.Sprintf("%s: %s", joinWords(disks), reason))
	}
	if len(why) > 0 {
		slices.Sort(why)
		reason += " (" + strings.Join(why, "; ") + ")"
	}
	a := v.blocked(schema.DiskRef{}, reason)
	if !wrong {
		a.Op = Wait
	}
	return a
}

// noRankedDisk says why no disk is ranked.
func (v imagePlanner) noRankedDisk() string {
	var evicted []string
	for name, node := range v.ix.desired.Config.Nodes {
		for d, declared := range node.Disks { // none of which has a rank, so what matches is evicted
			if hasAll(node.Tags, v.image.NodeSelector) && hasAll(declared.Tags, v.image.DiskSelector) {
				evicted = append(evicted, schema.DiskRef{Node: name, Disk: d}.String())
			}
		}
	}
	if len(evicted) == 0 {
		return "no disk matches the selectors"
	}
	slices.Sort(evicted)
	return fmt.Sprintf("every disk that matches is to be evicted (%s)", joinWords(evicted))
}

// joinWords names a few of sorted words.
func joinWords(words []string) string {
	const most = 5
	if more := len(words) - most; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(words[:most], ", "), more)
	}
	return strings.Join(words, ", ")
}

// rejectedNamedDisk tells of a disk of this node that the image names and that gets
// no copy.
func (v imagePlanner) rejectedNamedDisk(ref schema.DiskRef) (a Action, refused bool) {
	r, refused := v.Placement.Rejected[ref]
	told := v.Placement.missing > 0 && v.matches(ref) || v.ix.copyAt(CopyRef{ref, v.image.ID}).Owned && r.Intended
	if !refused || told || !v.ix.desired.Owns(ref) {
		return Action{}, false
	}
	a = v.blocked(ref, "the image names this disk, but "+r.Reason)
	if r.Intended {
		a.Op = Wait
	}
	return a, true
}

func NewAction(kind Op, key CopyRef, reason string, bytes int64) Action {
	return Action{Op: kind, Image: key.ID.Name, UUID: key.ID.UUID, Node: key.Disk.Node, Disk: key.Disk.Disk, Reason: reason, Bytes: bytes}
}

func (v imagePlanner) blocked(ref schema.DiskRef, reason string) Action {
	if ref.Node == "" {
		ref.Node = v.ix.desired.Node
	}
	return NewAction(Blocked, CopyRef{ref, v.image.ID}, reason, 0)
}

func (v imagePlanner) wait(ref schema.DiskRef, reason string) Action {
	return NewAction(Wait, CopyRef{ref, v.image.ID}, reason, 0)
}

// attempt is the action, or what it has to wait for because it failed before.
func (v imagePlanner) attempt(kind Op, ref schema.DiskRef, reason string, bytes int64) Action {
	key := CopyRef{ref, v.image.ID}
	t := v.ix.observed.Failures[key]
	turn := (kind == Sync && t.Op == Repair || kind == Repair && t.Op == Sync) && t.RetryAt.After(v.ix.observed.Now)
	if turn || t.Delays(kind, v.ix.observed.Now) {
		return v.backOff(ref, t)
	}
	return NewAction(kind, key, reason, bytes)
}

func (v imagePlanner) backOff(ref schema.DiskRef, t Failure) Action {
	if t.Final {
		return v.blocked(ref, t.Message)
	}
	a := v.wait(ref, t.Message)
	a.Until = t.RetryAt
	return a
}

func FormatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// Without are the actions of p that base has not: it has no action of that kind on that
// copy.
func (p Plan) Without(base Plan) Plan {
	type act struct {
		key  CopyRef
		kind Op
		then Op
	}
	has := map[act]bool{}
	for _, a := range base.Actions {
		has[act{a.CopyRef(), a.Op, a.Next}] = true
	}
	actions := slices.DeleteFunc(slices.Clone(p.Actions), func(a Action) bool { return has[act{a.CopyRef(), a.Op, a.Next}] })
	return Desired{Digest: p.Digest, Revision: p.Revision}.NewPlan(actions)
}

// Missing counts the copies that this node's disks should have and that are not
// ready, whatever they wait for. A disk that is wanting is none of them, nor is
// anything as long as too much of the configuration is not known.
func (d Desired) Missing(o Observed) int {
	if d.Allowed == schema.ObserveOnly {
		return 0
	}
	missing, now := 0, d.NewIndex(o)
	for _, image := range d.Config.Images {
		for _, ref := range now.NewImagePlanner(image).Placement.Targets {
			if _, ready := o.Disks[ref].Ready(image.ID); d.Owns(ref) && !ready {
				missing++
			}
		}
	}
	return missing
}
