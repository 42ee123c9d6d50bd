package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// surplusPlanner plans what happens to the surplus copies of one image on this node.
type surplusPlanner struct {
	imagePlanner
	kept    map[ident.CopyRef]bool // the copies that keepGenerations keeps
	deleted map[ident.CopyRef]bool // the copies whose deletion is already planned
}

// readyCount has the numbers of ready copies of the declared generation that count for a deletion.
type readyCount struct {
	total  int // on any disk
	placed int // on ranked disks and disks that the image names
}

// planSurplus returns the actions for the surplus copies of the image on this node. It removes the inspection of a file that is
// deleted, or kept until a known time. It drops a deletion if the inspection must come first. If a requested clean-up is rejected,
// the plan has the reason, even beside another action on the copy.
func planSurplus(image imagePlanner, inspections map[ident.DiskRef]Action) []Action {
	p := &surplusPlanner{imagePlanner: image, deleted: map[ident.CopyRef]bool{}}
	surplus := p.copies()
	if len(surplus) == 0 {
		return nil
	}
	var actions []Action
	p.kept = keptGenerations(p.state)
	for _, ref := range surplus {
		a := p.planSurplusCopy(ref)
		inspection, inspected := inspections[ref.Disk]
		inspected = inspected && ref.ID == p.state.image.ID
		inspect := inspected && (!p.state.mismatch[ref].IsZero() || p.ix.suspects[ref] || p.ix.Desired.Verify[ref] || a.Idle() && a.Until.IsZero() || needsManifest(image, inspection, a))
		c := p.ix.copyAt(ref)
		verify := ref.ID != p.state.image.ID && p.ix.Desired.Verify[ref] && c.State == model.Ready && a.Idle()
		if p.ix.Desired.Cleanup[ref] && a.Idle() && (inspect || verify) {
			actions = append(actions, a) // why the clean-up is rejected
		}
		switch {
		case inspect:
			continue
		case inspected:
			delete(inspections, ref.Disk)
		case verify:
			a = p.ix.attempt(model.Verify, ref, Suspected, c.Size)
		}
		actions = append(actions, a)
		p.deleted[ref] = a.Op.Deletes()
	}
	return actions
}

// needsManifest reports whether a copy must be verified before its deletion. If the deletion counts on
// copies on other nodes, these copies prove that they have its bytes. For the proofs this node needs the
// chunk manifest that the verification makes. If the verification has failed, the deletion goes on.
func needsManifest(image imagePlanner, inspection, deletion Action) bool {
	ref := deletion.CopyRef()
	missing := image.missingOnOwnDisks(ref)
	return !deletion.Idle() && !inspection.Idle() && image.ix.copyAt(ref).ManifestDigest.IsZero() && image.ix.Observed.Failures[ref].Attempts == 0 &&
		(missing.placed > 0 || missing.total > 0)
}

// copies returns the surplus copies of this node: the owned copies on disks that are not
// targets, and the owned copies of other generations. The worst ranked copies are first, so
// the better ranked copies stay if only some may be deleted.
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

// countReady counts the ready copies that count for a deletion and for which included is true.
func (s *imageState) countReady(included func(ident.CopyRef) bool) (n readyCount) {
	for _, ref := range s.ready {
		if !s.countable(ref) || !included(ref) {
			continue
		}
		n.total++
		if s.isEligible(ref.Disk) {
			n.placed++
		}
	}
	return n
}

// planSurplusCopy returns the deletion of a surplus copy, or why it is kept. A copy that keepGenerations keeps is no surplus copy.
func (p *surplusPlanner) planSurplusCopy(ref ident.CopyRef) Action {
	if p.kept[ref] {
		return p.keptByWish(ref)
	}
	c := p.ix.copyAt(ref)
	x := undesired{Round: p.ix, ref: ref, op: model.Cleanup, image: p, use: p.ix.inUse(ref), reason: model.Reason{Code: CodeSurplus, Text: "surplus copy"}}
	x.oldPart = ref.ID != p.state.image.ID && c.State == model.Pending
	switch {
	case x.oldPart:
		x.reason = model.Reason{Code: CodeOldGeneration, Text: "partial file of an older generation"}
	case ref.ID != p.state.image.ID:
		x.reason = model.Reason{Code: CodeOldGeneration, Text: "older generation"}
		x.unknown = p.ix.unknownUsage(CodeOldGeneration)
		if maybe := p.ix.neededBy(ref, true); x.unknown.IsZero() && maybe != "" {
			x.unknown = because(CodeUsageUnknown, "%s: it is not known whether the copy there is the same file as this one, until its node responds", maybe)
		}
	case p.ix.Desired.evicting(ref.Disk):
		x.op, x.reason = model.Evict, model.Reason{Code: CodeEviction, Text: "eviction of the disk is requested"}
	case !p.state.matches(ref.Disk):
		x.reason = model.Reason{Code: CodeSurplus, Text: "the disk does not match the selectors"}
	case c.State == model.Pending:
		x.reason = model.Reason{Code: CodeIncomplete, Text: "partial file on a disk that is not desired"}
	}
	return x.decide()
}

// tooFewReady reports whether the deletion of a copy would leave too few ready copies (S2, S4).
func (p *surplusPlanner) tooFewReady(ref ident.CopyRef) bool {
	rest := p.state.countReady(func(other ident.CopyRef) bool { return other != ref && !p.deleted[other] })
	return rest.placed < p.placement.requiredCopies() || slices.Contains(p.state.ready, ref) && rest.total < p.placement.copies
}

// keepNeeded returns the wait of a copy until enough other copies are ready. The action is blocked
// if the disk is to be evicted and no other disk can take the copy.
func (p *surplusPlanner) keepNeeded(x undesired) Action {
	required := fmt.Sprintf("%d copies are ready", p.placement.requiredCopies())
	if p.placement.requiredCopies() == 1 {
		required = "one copy is ready"
	}
	ignored, tooFew := "", CodeTooFewReady // ignored is appended to the text of the reason
	reasons := slices.Concat(p.ix.ignoredPeers(), p.disputedDisks(), p.markedCopies())
	if unproven := p.state.unprovenCopies(); len(unproven) > 0 {
		reasons, tooFew = slices.Concat(unproven, reasons), CodeUnproven
	}
	if len(reasons) > 0 {
		ignored = " (" + JoinMax(reasons, "; ", 3) + ")"
	}
	a := wait(x.ref, x.reason.With(tooFew, "; kept until %s on other disks%s", required, ignored))
	switch {
	case x.ref.ID != p.state.image.ID:
		a.Reason = x.reason.With(tooFew, "; kept until %s of the declared generation%s", required, ignored)
	case p.placement.missing > 0:
		a.Reason = x.reason.With(CodeTooFewDisks, "; kept, because %d of %d copies have no disk that can take them%s", p.placement.missing, p.placement.copies, ignored)
		if x.op == model.Evict {
			a.Op = model.Blocked
		}
	}
	return a.asWaitFor(x.op, p.placement.missing > 0)
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

// MarkedText is the message of a copy that leaves because of a mark in its folder (U5).
const MarkedText = "its folder has the mark of a deletion"

// markedCopies returns why a deletion does not count on copies whose folder has a mark. The mark of a node that was stopped
// during a deletion stays until a node with that folder starts.
func (p *surplusPlanner) markedCopies() (reasons []string) {
	for _, ref := range p.ix.peerCopies(p.state.image.ID.Name) {
		if c := p.ix.copyAt(ref); ref.ID == p.state.image.ID && c.Leaving && c.Message == MarkedText {
			reasons = append(reasons, fmt.Sprintf("the copy on %s does not count: %s; if no node deletes it, restart the manager of node %s", ref.Disk, MarkedText, ref.Disk.Node))
		}
	}
	return reasons
}

// keptGenerations returns the copies on disks of this node that keepGenerations keeps (V6), nil if there
// are none. These copies are not surplus, and no deletion counts on them.
//
// Each disk that is ranked for the image or named by it keeps the older ready generations that were
// replaced last. If two were replaced at the same time, the later verified generation is newer. A disk
// whose eviction is requested, or that the selectors do not match any more, keeps no older generation. A
// copy in the state unknown may be ready: it is kept, but does not count towards keepGenerations.
func keptGenerations(s *imageState) map[ident.CopyRef]bool {
	if s.image.KeepGenerations == 0 {
		return nil
	}
	older := map[ident.DiskRef][]ident.CopyRef{}
	for _, ref := range s.ix.ownCopies(s.image.ID.Name) {
		c := s.ix.copyAt(ref)
		if ref.ID != s.image.ID && c.Owned && (c.State == model.Ready || c.State == model.Unknown) && s.isEligible(ref.Disk) {
			older[ref.Disk] = append(older[ref.Disk], ref)
		}
	}
	var kept map[ident.CopyRef]bool
	for _, refs := range older {
		slices.SortFunc(refs, func(a, b ident.CopyRef) int { // the newest copy first
			x, y, now := s.ix.copyAt(a), s.ix.copyAt(b), s.ix.Observed.Now
			return cmp.Or(replacedAt(y, now).Compare(replacedAt(x, now)), y.VerifiedAt.Compare(x.VerifiedAt), ident.ID.Compare(a.ID, b.ID))
		})
		for ready, i := 0, 0; i < len(refs) && ready < s.image.KeepGenerations; i++ {
			if kept == nil {
				kept = map[ident.CopyRef]bool{}
			}
			kept[refs[i]] = true
			if s.ix.copyAt(refs[i]).State == model.Ready {
				ready++
			}
		}
	}
	return kept
}

// replacedAt returns when another generation was declared in place of the copy. A missing or implausible
// time counts as now. newUsage records the result, so this copy is then one of the newest.
func replacedAt(c model.Copy, now time.Time) time.Time {
	if implausible(c.ReplacedAt, now) {
		return now
	}
	return c.ReplacedAt
}

// keptByWish returns the wait of a copy that keepGenerations keeps.
func (p *surplusPlanner) keptByWish(ref ident.CopyRef) Action {
	reason := because(CodeGenerationKept, "older generation; kept by keepGenerations: %d", p.state.image.KeepGenerations)
	if p.ix.Desired.Cleanup[ref] {
		reason = reason.With(reason.Code, "; the requested clean-up is rejected")
	}
	return wait(ref, reason)
}

// keptBytes returns the space of the older generations that keepGenerations keeps on a disk of this node.
func keptBytes(s *imageState, on ident.DiskRef) int64 {
	var n int64
	for ref := range keptGenerations(s) {
		if ref.Disk == on {
			n += s.ix.copyAt(ref).RealSize
		}
	}
	return n
}
