package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// imagePlanner plans one declared image on the disks of this node, from the observed state of
// the image and its placement. targetPlanner and surplusPlanner do the two large parts.
type imagePlanner struct {
	ix        *Round
	state     *imageState
	placement placement
}

// newImagePlanner returns the planner of an image. It is valid until the next call, which may
// reuse the memory of its ranking.
func newImagePlanner(ix *Round, image schema.Image) imagePlanner {
	s := newImageState(ix, image)
	ranked := ix.ranked.rank(image, ix.scratch)
	ix.scratch = ranked.disks
	pl := place(s, ranked)
	ranked.order(s.ready)
	return imagePlanner{ix: ix, state: s, placement: pl}
}

// plan returns the actions for the image on the disks of this node.
func (p imagePlanner) plan() []Action {
	suspension := p.ix.Desired.SuspensionOf(p.state.image, p.ix.Observed.Now)
	return suspend(p.planUnsuspended(), suspension)
}

// planUnsuspended returns the plan as it would be without a suspension. Its order matters: an
// existing file is inspected before anything is transferred to its disk.
func (p imagePlanner) planUnsuspended() []Action {
	inspections := p.inspectCopies()
	if reason := p.conflict(); !reason.IsZero() {
		return append(slices.Collect(maps.Values(inspections)), blocked(p.onNoDisk(), reason))
	}
	actions := planSurplus(p, inspections)
	for _, ref := range p.placement.targets {
		if _, inspected := inspections[ref]; inspected || !p.ix.Desired.Owns(ref) {
			continue
		}
		if on := p.state.on(ref); p.ix.copyAt(on).State != model.Ready {
			actions = append(actions, newTargetPlanner(p, on).plan(inspections))
		}
	}
	if p.placement.missing > 0 || p.placement.ranked.len() == 0 {
		actions = append(actions, p.shortage())
	} else if a, delayed := p.delayedElsewhere(); delayed {
		actions = append(actions, a)
	}
	if a, needed := p.backup(inspections); needed && !slices.ContainsFunc(actions, func(other Action) bool { return !other.Idle() && other.CopyRef() == a.CopyRef() }) {
		actions = append(actions, a)
	}
	actions = append(actions, p.rejectedCleanups()...)
	for _, ref := range p.state.image.Disks {
		if a, rejected := p.rejectedNamedDisk(ref); rejected {
			actions = append(actions, a)
		}
	}
	actions = append(actions, p.unmetNeeds()...)
	return slices.AppendSeq(actions, maps.Values(inspections))
}

// delayedElsewhere returns a wait for the first target on a node with another configuration: the plan
// of that node does not say why its copy is missing. delayed is false if there is none. While no copy
// is ready, only the targets before the first target of this node count.
func (p imagePlanner) delayedElsewhere() (a Action, delayed bool) {
	for _, ref := range p.placement.targets {
		if p.ix.Desired.Owns(ref) {
			if len(p.state.ready) == 0 {
				return Action{}, false
			}
			continue
		}
		if reason, end := delay(p.state, ref); reason.Code == CodePeerConfig {
			text := because(reason.Code, "a copy is missing on %s, and %s; if this lasts for the recovery interval, the next ranked disk gets it", ref, reason.Text)
			return waitUntil(p.onNoDisk(), text, end), true
		}
	}
	return Action{}, false
}

// onNoDisk returns the reference of an action that concerns the image on this node and no
// particular disk.
func (p imagePlanner) onNoDisk() ident.CopyRef {
	return p.state.on(ident.DiskRef{Node: p.ix.Desired.Node})
}

// inspectCopies returns an action for each disk of this node whose existing file must be
// verified, repaired, adopted or decided about before anything else happens to it.
func (p imagePlanner) inspectCopies() map[ident.DiskRef]Action {
	actions := map[ident.DiskRef]Action{}
	for _, ref := range p.ix.ownCopies(p.state.image.ID.Name) {
		if ref.ID != p.state.image.ID {
			continue
		}
		if a, needed := p.inspect(ref); needed {
			actions[ref.Disk] = a
		}
	}
	return actions
}

// inspect returns what must happen to one existing file. The cases are ordered: the first
// that applies must be done before the others can be decided.
func (p imagePlanner) inspect(ref ident.CopyRef) (a Action, needed bool) {
	c, mismatch := p.ix.copyAt(ref), p.state.mismatch[ref]
	switch {
	case c.State == model.Unknown && !c.Owned:
		a = p.ix.attempt(model.Adopt, ref, because(CodeUnverifiedFile, "an unmanaged file exists: %s", c.Message), c.Size)
	case c.State == model.Unknown:
		a = p.ix.attempt(model.Verify, ref, because(CodeUnverifiedFile, "%s", c.Message), c.Size)
	case c.State == model.Ready && p.ix.Desired.Verify[ref]:
		a = p.ix.attempt(model.Verify, ref, because(CodeVerifyRequested, "requested"), c.Size)
	case c.State == model.Ready && p.ix.suspects[ref]:
		a = p.ix.attempt(model.Verify, ref, Suspected, c.Size)
	case c.State == model.Failed && isRepairable(p.state, ref):
		a = p.repair(ref)
	case c.State == model.Failed && p.ix.inUse(ref) != "":
		a = blocked(ref, because(CodeDamagedInUse, "the copy failed (%s) and cannot be replaced: %s", c.Message, p.ix.inUse(ref)))
	case mismatch.Code == CodeDigestUnknown:
		a = p.ix.attempt(model.Verify, ref, mismatch, c.Size)
	case !mismatch.IsZero():
		a = blocked(ref, mismatch)
	case c.State == model.Ready && !c.HasCfg:
		a = p.ix.attempt(model.Adopt, ref, because(CodeCfgMissing, "backing.cfg is missing or describes another file"), 0)
	case c.State == model.Ready && c.ManifestDigest.IsZero():
		a = p.ix.attempt(model.Verify, ref, because(CodeManifestMissing, "the chunk manifest is missing"), c.Size)
	default:
		evicted, unread := p.evictedFor(ref)
		if !unread {
			return Action{}, false
		}
		a = p.ix.attempt(model.Verify, ref, because(CodeReadBack, "it replaces the copy on %s, which is evicted: it is read back in full", evicted.Disk), c.Size)
	}
	return a, true
}

// repair returns the repair of a failed copy: it rewrites the damaged chunks in place.
func (p imagePlanner) repair(ref ident.CopyRef) Action {
	a := p.ix.attempt(model.Repair, ref, because(CodeCopyFailed, "%s", p.ix.copyAt(ref).Message), model.ChunkSize)
	if from := p.state.intact(ref); len(from) > 0 {
		return p.ix.withSource(a, from[0])
	}
	return a
}

// conflict returns a reason when two ready copies differ and no checksum decides (F6).
func (p imagePlanner) conflict() model.Reason {
	image, ready := p.state.image, p.state.ready
	if !image.Checksum.IsZero() || len(ready) < 2 {
		return model.Reason{}
	}
	first := p.ix.copyAt(ready[0])
	for _, ref := range ready[1:] {
		c := p.ix.copyAt(ref)
		if c.SHA512 == first.SHA512 {
			continue
		}
		if of := image.Source.Clone; of != nil && of.Encryption == schema.Encrypt { // such a clone has no checksum
			return because(CodeConflict, "the copies on %s and %s differ, because each was encrypted on its own: to encrypt again, declare another uuid", ready[0].Disk, ref.Disk)
		}
		return because(CodeConflict, "copies differ: to keep the one on %s, declare checksum: %q; to keep the one on %s, declare checksum: %q",
			ready[0].Disk, first.SHA512, ref.Disk, c.SHA512)
	}
	return model.Reason{}
}

// rejectedCleanups returns a wait for each copy on a desired disk whose clean-up was requested.
func (p imagePlanner) rejectedCleanups() []Action {
	var actions []Action
	for _, ref := range p.placement.targets {
		if on := p.state.on(ref); p.ix.Desired.Owns(ref) && p.ix.Desired.Cleanup[on] && p.ix.copyAt(on).State == model.Ready {
			actions = append(actions, wait(on, because(CodeDesired, "the requested clean-up is rejected: the image is desired on this disk")))
		}
	}
	return actions
}

// backup returns the action that creates the declared backup of an image, unless a complete
// backup is known. The node with the best ranked ready copy creates the backup. If two nodes
// disagree about the best copy, both start the backup. Then the second node only reads the
// store, because a backup is written once.
func (p imagePlanner) backup(inspections map[ident.DiskRef]Action) (a Action, needed bool) {
	if p.state.image.Backup == nil || len(p.state.ready) == 0 || p.ix.Observed.BackedUp[p.state.image.ID] {
		return Action{}, false
	}
	ref := p.state.ready[0]
	c := p.ix.copyAt(ref)
	if _, inspected := inspections[ref.Disk]; inspected || !p.ix.Desired.Owns(ref.Disk) || c.Leaving {
		return Action{}, false
	}
	return p.ix.attempt(model.Backup, ref, model.Reason{Code: CodeBackupMissing, Text: "no complete backup was found at the target"}, c.RealSize), true
}

// FindBackedUp returns the images whose declared backup is complete according to the record of
// a ready copy on these disks.
func (o Observed) FindBackedUp(d Desired) map[ident.ID]bool {
	complete := map[ident.ID]bool{}
	for _, image := range d.Config.Images {
		if image.Backup == nil {
			continue
		}
		for _, seen := range o.Disks {
			if c, ready := seen.Ready(image.ID); ready && c.BackupID == BackupRecord(*image.Backup, image.ID, c.SHA512) {
				complete[image.ID] = true
			}
		}
	}
	return complete
}

// BackupRecord returns what the record of a copy has after a complete backup: a hash, because the
// address of a target may be confidential.
func BackupRecord(b schema.Backup, id ident.ID, digest ident.Digest) string {
	h := sha256.Sum256([]byte(strings.Join([]string{b.Target, id.Name, digest.String()}, "\x00")))
	return hex.EncodeToString(h[:16])
}

// ScrubRate is how many bytes per second a scrub reads: 64 MiB, which leaves the disk to others
// and still reads 5 TB a day.
const ScrubRate = 64 << 20

// planScrub returns the verification of the ready copy on this node whose last verification is the
// oldest, if that is older than scrubInterval. It returns nil while a scrub runs.
func planScrub(ix *Round, planned []Action) []Action {
	interval, now := ix.Desired.Config.Settings.ScrubInterval, ix.Observed.Now
	if interval == 0 {
		return nil
	}
	for ref, j := range ix.Observed.Jobs {
		if j.Action.Scrub && ix.Desired.Owns(ref.Disk) {
			return nil
		}
	}
	busy := map[ident.CopyRef]bool{}
	for _, a := range planned {
		busy[a.CopyRef()] = true
	}
	var next ident.CopyRef
	for _, image := range ix.Desired.Config.Images {
		if ix.Desired.SuspensionOf(image, now) != nil {
			continue
		}
		for _, on := range ix.ownDisks {
			ref := ident.CopyRef{Disk: on, ID: image.ID}
			c, last := ix.copyAt(ref), ix.copyAt(next)
			age := now.Sub(c.VerifiedAt)
			recent := age >= 0 && age < interval
			// On a read-only disk the scrub would begin again and again, because its time cannot be recorded.
			if c.State != model.Ready || recent || busy[ref] || ix.Observed.Disks[on].ReadOnly || ix.Observed.Failures[ref].Delays(model.Verify, now) {
				continue
			}
			if next == (ident.CopyRef{}) || cmp.Or(c.VerifiedAt.Compare(last.VerifiedAt), cmp.Compare(ref.String(), next.String())) < 0 {
				next = ref
			}
		}
	}
	if next == (ident.CopyRef{}) {
		return nil
	}
	c, reason := ix.copyAt(next), model.Reason{Code: CodeScrub, Text: "scrub: never verified since it was adopted"}
	if !c.VerifiedAt.IsZero() {
		reason = because(CodeScrub, "scrub: last verified %s", c.VerifiedAt.UTC().Format(time.RFC3339))
	}
	a := NewAction(model.Verify, next, reason, c.Size)
	a.Scrub = true
	return []Action{a}
}
