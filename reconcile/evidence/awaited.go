package evidence

import (
	"maps"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// Awaited is for how long this node has waited for copies on other nodes: see plan.Plan.Awaited.
type Awaited map[ident.CopyRef]awaitedCopy

type awaitedCopy struct {
	total  time.Duration
	last   time.Time // steady; the last round that waited
	active bool      // the last round waited
}

// Note adds the time since the last round to the copies for which both rounds waited. The time for one
// disk of a node counts for its other disks, too: otherwise this node would wait for each disk in turn.
// Note forgets a copy if the image has another generation now, or if another node has a ready copy of the
// image. A ready copy on the awaited node itself does not count, because it may be a false claim.
func (a Awaited) Note(d plan.Desired, o plan.Observed, p plan.Plan, now time.Time) {
	type nodeImage struct {
		node string
		id   ident.ID
	}
	longest := map[nodeImage]time.Duration{}
	for ref, one := range a {
		key := nodeImage{ref.Disk.Node, ref.ID}
		longest[key] = max(longest[key], one.total)
	}
	waiting := map[ident.CopyRef]bool{}
	for _, ref := range p.Awaited {
		waiting[ref] = true
		one := a[ref]
		if one.active {
			one.total += now.Sub(one.last)
		}
		a[ref] = awaitedCopy{max(one.total, longest[nodeImage{ref.Disk.Node, ref.ID}]), now, true}
	}
	maps.DeleteFunc(a, func(ref ident.CopyRef, one awaitedCopy) bool {
		one.active = waiting[ref]
		a[ref] = one
		_, declared := d.Disk(ref.Disk)
		return !declared || d.Config.Images[ref.ID.Name].ID != ref.ID || hasReadyElsewhere(o, ref)
	})
}

// hasReadyElsewhere reports whether a node other than the node of the copy has a ready copy of the image.
func hasReadyElsewhere(o plan.Observed, ref ident.CopyRef) bool {
	for on, seen := range o.Disks {
		if c, exists := seen.Copies[ref.ID]; exists && on.Node != ref.Disk.Node && c.State == model.Ready {
			return true
		}
	}
	return false
}

// Durations returns the total times, without the copies that Note forgets: in the round in which an image
// becomes ready, this node does not wait for other nodes any more.
func (a Awaited) Durations(o plan.Observed) map[ident.CopyRef]time.Duration {
	all := make(map[ident.CopyRef]time.Duration, len(a))
	for ref, one := range a {
		if !hasReadyElsewhere(o, ref) {
			all[ref] = one.total
		}
	}
	return all
}
