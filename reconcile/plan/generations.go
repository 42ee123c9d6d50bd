package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// keptGenerations returns the copies on disks of this node that keepGenerations keeps (V6). They are not
// surplus, and count for nothing. It is nil if there is none.
//
// Each disk that is ranked for the image or named by it keeps the older ready generations that were
// replaced last. A disk whose eviction is requested, or that the selectors do not match any more, keeps
// none. It is not known whether a copy in the state unknown is ready: it is kept like a ready one, and
// does not count as one of those that are kept.
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
		slices.SortFunc(refs, s.ix.compareGenerations)
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

// compareGenerations orders the copies of older generations on a disk, the newest one first: the one
// that was replaced last. If two were replaced at the same time, the one that was verified last is newer.
func (ix *Round) compareGenerations(a, b ident.CopyRef) int {
	now, x, y := ix.Observed.Now, ix.copyAt(a), ix.copyAt(b)
	return cmp.Or(replacedAt(y, now).Compare(replacedAt(x, now)), y.VerifiedAt.Compare(x.VerifiedAt), ident.ID.Compare(a.ID, b.ID))
}

// replacedAt returns when another generation was declared in place of the copy. A missing or implausible
// time counts as now, which newUsage records: such a copy is one of the newest.
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
