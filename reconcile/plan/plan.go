package plan

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Plan is the list of actions that lead from the observed to the desired state, sorted by
// image, disk and operation. A dry run prints the same value that a daemon executes.
type Plan struct {
	Actions []Action `json:"actions"`
	Summary Summary  `json:"summary"`
	// Suspended lists the suspensions in effect: that of the settings first, then by image.
	Suspended []Suspension `json:"suspended,omitempty"`
	// Digest is the config digest, "" while any part of the configuration is invalid.
	Digest string `json:"digest,omitempty"`
	// Revision is the commit of the configuration, "" when it is not known.
	Revision string `json:"revision,omitempty"`
}

// Summary counts the actions of a plan. Sizes are in bytes.
type Summary struct {
	Counts map[Op]int `json:"counts"`
	// TransferBytes is the known size of all first copies, syncs and backups.
	TransferBytes int64 `json:"transferBytes"`
	// UnknownSizes is the number of transfers with an unknown size.
	UnknownSizes int `json:"unknownSizes"`
	// FreedBytes is what clean-ups and evictions free.
	FreedBytes int64 `json:"freedBytes"`
}

// newPlan returns a plan of these actions, which it sorts.
func (d Desired) newPlan(actions []Action) Plan {
	slices.SortFunc(actions, func(a, b Action) int {
		return cmp.Or(cmp.Compare(a.Image, b.Image), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Disk, b.Disk),
			cmp.Compare(a.UUID, b.UUID), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Reason.Text, b.Reason.Text))
	})
	p := Plan{Actions: actions, Summary: Summary{Counts: map[Op]int{}}, Digest: d.Digest, Revision: d.Revision}
	for _, a := range actions {
		s := &p.Summary
		s.Counts[a.Op]++
		switch {
		case (a.Op.CreatesCopy() || a.Op == Backup) && a.Bytes == UnknownBytes:
			s.UnknownSizes++
		case a.Op.CreatesCopy(), a.Op == Backup:
			s.TransferBytes += a.Bytes
		case a.Op.Deletes():
			s.FreedBytes += a.Bytes
		}
	}
	return p
}

// Empty reports whether the plan changes nothing: it has only waits (R4).
func (p Plan) Empty() bool {
	return !slices.ContainsFunc(p.Actions, func(a Action) bool { return a.Op != Wait })
}

// Without returns the plan without the actions that base has, too: the same operation on the
// same copy.
func (p Plan) Without(base Plan) Plan {
	type operation struct {
		ref      CopyRef
		op, next Op
	}
	planned := map[operation]bool{}
	for _, a := range base.Actions {
		planned[operation{a.CopyRef(), a.Op, a.Next}] = true
	}
	actions := slices.DeleteFunc(slices.Clone(p.Actions), func(a Action) bool { return planned[operation{a.CopyRef(), a.Op, a.Next}] })
	return Desired{Digest: p.Digest, Revision: p.Revision}.newPlan(actions)
}

// Plan returns the actions on the disks of d.Node. It is a pure function of d and o and reads
// no clock (R2).
func (d Desired) Plan(o Observed) Plan {
	if d.Allowed == schema.ObserveOnly {
		return d.newPlan([]Action{})
	}
	p := d.newPlan(d.newIndex(o).plan(maps.Values(d.Config.Images)))
	p.Suspended = d.suspensions(o.Now)
	return p
}

// plan returns the actions for these images and for the orphans.
func (ix *index) plan(images iter.Seq[schema.Image]) []Action {
	actions := []Action{} // never null in JSON
	for image := range images {
		actions = append(actions, ix.newImagePlanner(image).plan()...)
	}
	for name := range ix.desired.Invalid {
		if reason := ix.desired.invalidReason(name); !reason.IsZero() {
			actions = append(actions, NewAction(Blocked, CopyRef{schema.DiskRef{Node: ix.desired.Node}, disk.ID{Name: name}}, reason, 0))
		}
	}
	actions = append(actions, ix.planOrphans()...)
	actions = append(actions, ix.scrub(actions)...)
	return keepSources(actions)
}

// keepSources turns the deletion of a copy into a wait while another action reads the copy.
func keepSources(actions []Action) []Action {
	readBy := map[CopyRef]string{}
	for _, a := range actions {
		if reader := a.CopyRef().String(); a.LocalSource != (CopyRef{}) && (readBy[a.LocalSource] == "" || reader < readBy[a.LocalSource]) {
			readBy[a.LocalSource] = reader
		}
	}
	for i, a := range actions {
		if reader := readBy[a.CopyRef()]; reader != "" && a.Op.Deletes() {
			actions[i] = NewAction(Wait, a.CopyRef(), a.Reason.with(CodeSourceOfCopy, ", but %s is created from it first", reader), 0).asWaitFor(a.Op, false)
		}
	}
	return actions
}

// plan returns the actions for the image on the disks of this node.
func (p imagePlanner) plan() []Action {
	return p.ix.applySuspension(p.ix.desired.SuspensionOf(p.image, p.ix.observed.Now), p.planUnsuspended())
}

// planUnsuspended returns the plan as it would be without a suspension. Its order matters: an
// existing file is inspected before anything is transferred to its disk.
func (p imagePlanner) planUnsuspended() []Action {
	inspections := p.inspectCopies()
	if reason := p.conflict(); !reason.IsZero() {
		return append(slices.Collect(maps.Values(inspections)), p.blocked(schema.DiskRef{}, reason))
	}
	actions := p.planSurplus(inspections)
	for _, ref := range p.placement.targets {
		if _, inspected := inspections[ref]; inspected || !p.ix.desired.Owns(ref) {
			continue
		}
		if a, needed := p.planTarget(ref, inspections); needed {
			actions = append(actions, a.asWaitFor(p.methodFor(ref), p.waitsForUpload()))
		}
	}
	if p.placement.missing > 0 || p.placement.ranked.len() == 0 {
		actions = append(actions, p.shortage())
	}
	if a, needed := p.backup(inspections); needed {
		actions = append(actions, a)
	}
	actions = append(actions, p.rejectedCleanups()...)
	for _, ref := range p.image.Disks {
		if a, rejected := p.rejectedNamedDisk(ref); rejected {
			actions = append(actions, a)
		}
	}
	return append(actions, slices.Collect(maps.Values(inspections))...)
}

// inspectCopies returns an action for each disk of this node whose existing file must be
// verified, repaired, adopted or decided about before anything else happens to it.
func (p imagePlanner) inspectCopies() map[schema.DiskRef]Action {
	actions := map[schema.DiskRef]Action{}
	for _, copyRef := range p.ix.ownByName[p.image.ID.Name] {
		if copyRef.ID != p.image.ID {
			continue
		}
		ref, c := copyRef.Disk, p.ix.copyAt(copyRef)
		mismatch := p.mismatch[copyRef]
		switch {
		case c.State == disk.Unknown && !c.Owned:
			actions[ref] = p.attempt(Adopt, ref, because(CodeUnverifiedFile, "an unmanaged file exists: %s", c.Message), c.Size)
		case c.State == disk.Unknown:
			actions[ref] = p.attempt(Verify, ref, because(CodeUnverifiedFile, "%s", c.Message), c.Size)
		case c.State == disk.Ready && p.ix.desired.Verify[copyRef]:
			actions[ref] = p.attempt(Verify, ref, because(CodeVerifyRequested, "requested"), c.Size)
		case c.State == disk.Ready && p.ix.suspects[copyRef]:
			actions[ref] = p.attempt(Verify, ref, Suspected, c.Size)
		case c.State == disk.Failed && p.repairable(copyRef):
			actions[ref] = p.repair(copyRef)
		case c.State == disk.Failed && c.UsedBy != "":
			actions[ref] = p.blocked(ref, because(CodeDamagedInUse, "the copy failed (%s) and cannot be replaced: %s", c.Message, c.UsedBy))
		case mismatch.Code == CodeDigestUnknown:
			actions[ref] = p.attempt(Verify, ref, mismatch, c.Size)
		case !mismatch.IsZero():
			actions[ref] = p.blocked(ref, mismatch)
		case c.State == disk.Ready && !c.HasCfg:
			actions[ref] = p.attempt(Adopt, ref, because(CodeCfgMissing, "backing.cfg is missing or describes another file"), 0)
		case c.State == disk.Ready && c.ManifestDigest.IsZero():
			actions[ref] = p.attempt(Verify, ref, because(CodeManifestMissing, "the chunk manifest is missing"), c.Size)
		}
	}
	return actions
}

// conflict returns a reason when two ready copies differ and no checksum decides (F6).
func (p imagePlanner) conflict() Reason {
	if !p.image.Checksum.IsZero() || len(p.ready) < 2 {
		return Reason{}
	}
	first := p.ix.copyAt(p.ready[0])
	for _, ref := range p.ready[1:] {
		c := p.ix.copyAt(ref)
		if c.SHA512 == first.SHA512 {
			continue
		}
		if of := p.image.Source.Clone; of != nil && of.Encryption == schema.Encrypt { // such a clone has no checksum
			return because(CodeConflict, "the copies on %s and %s differ, because each was encrypted on its own: to encrypt again, declare another uuid", p.ready[0].Disk, ref.Disk)
		}
		return because(CodeConflict, "copies differ: to keep that of %s, declare checksum: %q; to keep that of %s, declare checksum: %q",
			p.ready[0].Disk, first.SHA512, ref.Disk, c.SHA512)
	}
	return Reason{}
}

// rejectedCleanups answers requests to clean up copies on desired disks.
func (p imagePlanner) rejectedCleanups() []Action {
	var actions []Action
	for _, ref := range p.placement.targets {
		if copyRef := p.on(ref); p.ix.desired.Owns(ref) && p.ix.desired.Cleanup[copyRef] && p.ix.copyAt(copyRef).State == disk.Ready {
			actions = append(actions, keep(copyRef, because(CodeDesired, "the requested clean-up is rejected: the image is desired on this disk")))
		}
	}
	return actions
}

// on returns the copy of the image on a disk.
func (p imagePlanner) on(ref schema.DiskRef) CopyRef { return CopyRef{ref, p.image.ID} }

func (p imagePlanner) blocked(ref schema.DiskRef, reason Reason) Action {
	if ref.Node == "" {
		ref.Node = p.ix.desired.Node
	}
	return NewAction(Blocked, p.on(ref), reason, 0)
}

func (p imagePlanner) wait(ref schema.DiskRef, reason Reason) Action {
	return NewAction(Wait, p.on(ref), reason, 0)
}

// attempt returns the operation, or a wait while an earlier failure delays it. Sync and repair
// of one copy take turns: the failure of one delays the other as well.
func (p imagePlanner) attempt(op Op, ref schema.DiskRef, reason Reason, bytes int64) Action {
	f := p.ix.observed.Failures[p.on(ref)]
	otherTurn := (op == Sync && f.Op == Repair || op == Repair && f.Op == Sync) && f.RetryAt.After(p.ix.observed.Now)
	if otherTurn || f.delays(op, p.ix.observed.Now) {
		return p.backOff(ref, f)
	}
	return NewAction(op, p.on(ref), reason, bytes)
}

// backOff returns the wait for the next attempt after f, or a blocked action if f is final.
func (p imagePlanner) backOff(ref schema.DiskRef, f Failure) Action {
	if f.Final {
		return p.blocked(ref, because(CodeRejected, "%s", f.Message))
	}
	a := p.wait(ref, because(CodeRetry, "%s", f.Message))
	a.Until = f.RetryAt
	return a
}

// FormatBytes returns a size with a binary unit, such as "1.5 GiB".
func FormatBytes(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }

// missing returns how many copies should be on this node's disks and are not ready. A missing
// disk does not count. In observe-only mode it returns 0, since the desired state is not known.
func (d Desired) missing(o Observed) int {
	if d.Allowed == schema.ObserveOnly {
		return 0
	}
	missing, ix := 0, d.newIndex(o)
	for _, image := range d.Config.Images {
		for _, ref := range ix.newImagePlanner(image).placement.targets {
			if _, ready := o.Disks[ref].Ready(image.ID); d.Owns(ref) && !ready {
				missing++
			}
		}
	}
	return missing
}
