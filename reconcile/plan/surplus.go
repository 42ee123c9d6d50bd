package plan

import (
	"fmt"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// surplusPlanner plans what happens to the surplus copies of one image on this node.
type surplusPlanner struct {
	imagePlanner
	kept map[ident.CopyRef]bool // by keepGenerations
	// count has the ready copies that remain after the deletions that are already planned.
	count readyCount
}

// readyCount has the numbers of ready copies of the declared generation that count for a deletion.
type readyCount struct {
	total  int // on any disk
	placed int // on ranked disks and disks that the image names
}

// planSurplus returns the actions for the surplus copies of the image on this node. A file that
// is deleted, or kept until a known time, needs no inspection: planSurplus removes it from
// inspections. If a requested clean-up is rejected, the plan says why, also beside another action on the copy.
func planSurplus(image imagePlanner, inspections map[ident.DiskRef]Action) []Action {
	p := surplusPlanner{imagePlanner: image}
	surplus := p.copies()
	if len(surplus) == 0 {
		return nil
	}
	var actions []Action
	p.count, p.kept = countReady(p.state), keptGenerations(p.state)
	for _, ref := range surplus {
		a := p.planSurplusCopy(ref)
		rejected := p.ix.Desired.Cleanup[ref] && a.Idle()
		if inspection, inspected := inspections[ref.Disk]; inspected && ref.ID == p.state.image.ID {
			if !p.state.mismatch[ref].IsZero() || p.ix.suspects[ref] || p.ix.Desired.Verify[ref] || a.Idle() && a.Until.IsZero() || needsManifest(image, inspection, a) {
				if rejected {
					actions = append(actions, a)
				}
				continue
			}
			delete(inspections, ref.Disk)
		}
		if c := p.ix.copyAt(ref); ref.ID != p.state.image.ID && p.ix.Desired.Verify[ref] && c.State == model.Ready && a.Idle() {
			if rejected {
				actions = append(actions, a)
			}
			a = p.ix.attempt(model.Verify, ref, Suspected, c.Size)
		}
		actions = append(actions, a)
		if a.Op.Deletes() {
			p.count = p.countWithout(ref)
		}
	}
	return actions
}

// needsManifest reports whether a copy must be verified before its deletion, which counts on copies on
// other nodes: they prove that they have its bytes, and for that this node needs the chunk manifest that
// the verification makes. If the verification has failed, the deletion goes on without it.
func needsManifest(image imagePlanner, inspection, deletion Action) bool {
	ref := deletion.CopyRef()
	missing := image.missingOnOwnDisks(ref)
	return !deletion.Idle() && !inspection.Idle() && image.ix.copyAt(ref).ManifestDigest.IsZero() && image.ix.Observed.Failures[ref].Attempts == 0 &&
		(missing.placed > 0 || missing.total > 0)
}

// copies returns the surplus copies of this node: the owned copies on disks that are not
// targets, and those of other generations. The worst ranked ones are first, so that the
// better ranked ones are kept.
func (p *surplusPlanner) copies() []ident.CopyRef {
	var refs []ident.CopyRef
	for _, ref := range p.ix.ownCopies(p.state.image.ID.Name) {
		if p.ix.copyAt(ref).Owned && !(ref.ID == p.state.image.ID && p.placement.isTarget(ref.Disk)) {
			refs = append(refs, ref)
		}
	}
	p.placement.ranked.order(refs)
	slices.Reverse(refs)
	return refs
}

func countReady(s *imageState) readyCount {
	var n readyCount
	for _, ref := range s.ready {
		if !s.countable(ref) {
			continue
		}
		n.total++
		if s.isEligible(ref.Disk) {
			n.placed++
		}
	}
	return n
}

// countWithout returns the count after the copy ref is deleted.
func (p *surplusPlanner) countWithout(ref ident.CopyRef) readyCount {
	n := p.count
	if !p.state.counts(ref) {
		return n
	}
	n.total--
	if p.state.isEligible(ref.Disk) {
		n.placed--
	}
	return n
}

// planSurplusCopy returns the deletion of a surplus copy, or why it is kept. Every deletion of a copy
// of a declared image comes from here: add a rule to the second switch. What keepGenerations keeps is
// no surplus copy, and no other rule matters. A deletion from here can still
// become a wait: in planDeletion below, while another copy is created from it (keepSources), while
// copies of the image differ (conflict), and while the image is suspended.
func (p *surplusPlanner) planSurplusCopy(ref ident.CopyRef) Action {
	if p.kept[ref] {
		return p.keptByWish(ref)
	}
	d, c := p.ix.Desired, p.ix.copyAt(ref)
	op, reason := model.Cleanup, model.Reason{Code: CodeSurplus, Text: "surplus copy"}
	oldPart := ref.ID != p.state.image.ID && c.State == model.Pending // no job resumes it
	switch {
	case oldPart:
		reason = model.Reason{Code: CodeOldGeneration, Text: "partial file of an older generation"}
	case ref.ID != p.state.image.ID:
		reason = model.Reason{Code: CodeOldGeneration, Text: "older generation"}
	case d.evicting(ref.Disk):
		op, reason = model.Evict, model.Reason{Code: CodeEviction, Text: "eviction of the disk is requested"}
	case !p.state.matches(ref.Disk):
		reason = model.Reason{Code: CodeSurplus, Text: "the disk does not match the selectors"}
	case c.State == model.Pending:
		reason = model.Reason{Code: CodeIncomplete, Text: "partial file on a disk that is not desired"}
	}
	rest, ready := p.countWithout(ref), slices.Contains(p.state.ready, ref)
	end, use := p.ix.intervalEnd(ref), p.ix.inUse(ref)
	unknown := model.Reason{}
	if ref.ID != p.state.image.ID && !oldPart {
		unknown = p.ix.unknownUsage(CodeOldGeneration)
		if maybe := p.ix.neededBy(ref, true); unknown.IsZero() && maybe != "" {
			unknown = because(CodeUsageUnknown, "%s unless it has another file, which only a response of its node shows", maybe)
		}
	}
	switch {
	case d.Allowed != schema.Everything:
		return wait(ref, d.deletionsOff(reason)).asWaitFor(op, true)
	case use != "":
		return keepInUse(p.ix, ref, reason.With(CodeInUse, ", but %s", use)).asWaitFor(op, true)
	case p.placement.ranked.len() == 0:
		none := noRankedDisk(d.Config.Nodes, p.state.image)
		return blocked(ref, none.With(none.Code, ": every copy is kept")).asWaitFor(op, true)
	case oldPart: // it is not ready, so its deletion does not reduce the number of ready copies
	case rest.placed < p.placement.requiredCopies(), ready && rest.total < p.placement.copies:
		return p.keepNeeded(ref, op, reason).asWaitFor(op, p.placement.missing > 0)
	case op == model.Cleanup && !d.Cleanup[ref] && end.After(p.ix.Observed.Now):
		return waitUntil(ref, reason.With(CodeCleanupInterval, "; deleted after the clean-up interval"), end).asWaitFor(op, false)
	case !unknown.IsZero():
		return blocked(ref, reason.With(CodeUsageUnknown, ", but it is not known whether it is in use: %s", unknown.Text)).asWaitFor(op, true)
	}
	a := planDeletion(p.ix, op, ref, reason)
	if a.Idle() {
		return a
	}
	if a = p.readBack(a); a.Idle() {
		return a
	}
	return p.readFirst(a)
}

// keepNeeded keeps a copy until enough others are ready. The action is blocked if the disk is to
// be evicted and no other disk can take the copy.
func (p *surplusPlanner) keepNeeded(ref ident.CopyRef, op model.Op, reason model.Reason) Action {
	required := fmt.Sprintf("%d copies are ready", p.placement.requiredCopies())
	if p.placement.requiredCopies() == 1 {
		required = "one copy is ready"
	}
	ignored, tooFew := "", CodeTooFewReady // ignored is appended to the text of the reason
	reasons := append(p.ix.ignoredPeers(), p.disputedDisks()...)
	if unproven := p.state.unprovenCopies(); len(unproven) > 0 {
		reasons, tooFew = slices.Concat(unproven, reasons), CodeUnproven
	}
	if len(reasons) > 0 {
		ignored = " (" + JoinMax(reasons, "; ", 3) + ")"
	}
	switch {
	case ref.ID != p.state.image.ID:
		return wait(ref, reason.With(tooFew, "; kept until %s of the declared generation%s", required, ignored))
	case p.placement.missing > 0:
		a := wait(ref, reason.With(CodeTooFewDisks, "; kept, because no disk can take %d of %d copies%s", p.placement.missing, p.placement.copies, ignored))
		if op == model.Evict {
			a.Op = model.Blocked
		}
		return a
	}
	return wait(ref, reason.With(tooFew, "; kept until %s on other disks%s", required, ignored))
}

// disputedDisks returns why a deletion does not count on some ready copies.
func (p *surplusPlanner) disputedDisks() (reasons []string) {
	for _, ref := range p.state.ready {
		if p.ix.Observed.Disks[ref.Disk].Disputed != "" {
			reasons = append(reasons, fmt.Sprintf("the copy on %s does not count: another disk has the same diskUUID", ref.Disk))
		}
	}
	return reasons
}

// planDeletion returns the deletion of a copy, or a wait: for the next attempt after a failure,
// for a job that reads the copy, or for a suspended image that will be created from the copy.
// It is blocked while the disk is disputed, and waits while the disk is read-only.
func planDeletion(ix *Round, op model.Op, ref ident.CopyRef, reason model.Reason) Action {
	if disputed := ix.Observed.Disks[ref.Disk].Disputed; disputed != "" {
		return blocked(ref, reason.With(CodeDiskDisputed, ", but %s", disputed)).asWaitFor(op, true)
	}
	if ix.Observed.Disks[ref.Disk].ReadOnly {
		return waitForWrites(op, ref, reason)
	}
	if f := ix.Observed.Failures[ref]; f.AppliesTo(op) && f.RetryAt.After(ix.Observed.Now) {
		return waitUntil(ref, because(CodeRetry, "%s", f.Message), f.RetryAt).asWaitFor(op, false)
	}
	if ix.Observed.BeingRead[ref] { // even by a job that would read another copy if it started now
		return wait(ref, reason.With(CodeBeingRead, ", but a running job reads it")).asWaitFor(op, false)
	}
	if image := ix.neededBySuspended(ref); image != "" {
		return wait(ref, reason.With(CodeSourceOfSuspended, ", but image %s, which is suspended, will be created from it", image))
	}
	c := ix.copyAt(ref)
	return NewAction(op, ref, reason, c.RealSize+c.PartBytes)
}
