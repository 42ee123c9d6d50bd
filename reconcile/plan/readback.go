package plan

import (
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// The copy that replaces an evicted one is read back in full, once, before the evicted one goes (S5): its bytes were
// compared when they arrived, and a proof is one chunk, which finds the loss of a part by chance only. Every
// node knows from the configuration which disks are evicted. So the node of the replacing copy plans its
// verification, and the holder waits until that node has published it.

// clockTolerance is by how much the clocks of two nodes may differ without being known. The holder tolerates twice as
// much as the node that reads: otherwise it could wait for a read that this node has done.
const clockTolerance = 5 * time.Second

// readBackGap is how long a node does not read a copy again for another node. Two nodes that show one folder write one
// record, so that its copy becomes surplus again and again.
const readBackGap = time.Minute

// replacement returns the copy that replaces evicted ones; false: not enough copies are ready yet. When a disk leaves
// the ranking, the others keep their order, so that the new one is the last of the desired ranked disks.
func (p imagePlanner) replacement() (by ident.CopyRef, found bool) {
	best, n := 1, 0
	for _, ref := range p.state.ready { // best ranked first
		class := 0
		switch ranked := p.state.matches(ref.Disk); {
		case p.ix.copyAt(ref).SameAs != (ident.DiskRef{}):
		case ranked && p.placement.isTarget(ref.Disk):
			class = 2
		case p.state.isEligible(ref.Disk):
			class = 1
		}
		if class > 0 {
			n++
		}
		if class >= best {
			by, best = ref, class
		}
	}
	return by, n >= p.placement.requiredCopies()
}

// evictedFor returns the evicted copy that the copy by replaces, and for which it is not read back yet.
func (p imagePlanner) evictedFor(by ident.CopyRef) (evicted ident.CopyRef, unread bool) {
	if p.ix.Desired.Allowed != schema.Everything {
		return ident.CopyRef{}, false // nothing is deleted now
	}
	age := p.ix.Observed.Now.Sub(p.ix.copyAt(by).ReadBackAt)
	i := slices.IndexFunc(p.state.ready, func(ref ident.CopyRef) bool {
		c, recent := p.ix.copyAt(ref), ref.Disk.Node != by.Disk.Node && age >= 0 && age < readBackGap
		return p.ix.Desired.evicting(ref.Disk) && !c.Leaving && c.UsedBy == "" && !recent && !p.ix.readBackFor(ref, by, clockTolerance)
	})
	if replaces, found := p.replacement(); i < 0 || !found || replaces != by {
		return ident.CopyRef{}, false
	}
	return p.state.ready[i], true
}

// readBackFor reports whether the copy by was read in full since an evicted one became surplus and was last used.
// tolerance is that for the clock of another node.
func (ix *Round) readBackFor(evicted, by ident.CopyRef, tolerance time.Duration) bool {
	c, read := ix.copyAt(evicted), ix.copyAt(by).ReadBackAt
	since := c.SurplusSince
	if ix.Desired.Owns(evicted.Disk) && since.IsZero() {
		since = ix.Observed.Now // it will be recorded
	}
	if c.LastUsed.After(since) {
		since = c.LastUsed
	}
	if by.Disk.Node != evicted.Disk.Node {
		since = since.Add(-tolerance)
	}
	wrong := read.After(ix.Observed.Now.Add(tolerance)) // the clock that gave it
	return !read.IsZero() && !read.Before(since) && !wrong
}

// readBack returns the deletion of an evicted copy, or the wait for the read of the copy that replaces it.
func (p *surplusPlanner) readBack(deletion Action) Action {
	ref := deletion.CopyRef()
	by, found := p.replacement()
	if deletion.Op != model.Evict || !slices.Contains(p.state.ready, ref) || !found || p.ix.readBackFor(ref, by, 2*clockTolerance) {
		return deletion
	}
	return wait(ref, deletion.With(CodeReadBack, "; kept until the copy on %s, which replaces it, has been read back in full", by.Disk)).asWaitFor(model.Evict, false)
}
