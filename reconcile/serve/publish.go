package serve

import (
	"fmt"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// State returns the state of this node for its peers. running are the operations of its jobs.
func State(now *plan.Round, p plan.Plan, running map[ident.CopyRef]model.Op) model.Node {
	d, o := now.Desired, now.Observed
	s := model.Node{Node: d.Node, Clock: o.Now, Disks: map[string]model.Disk{}}
	s.ConfigDigest, _ = d.PublishedDigest()
	published := publishedCopies(now, p, running)
	for ref, seen := range o.Disks {
		if d.Owns(ref) {
			one := model.Disk{UUID: seen.UUID, Problem: seen.Problem, ReadOnly: seen.ReadOnly, UsageUnknown: seen.UsageUnknown, Space: seen.Space}
			if seen.Problem == "" {
				one.Copies = published[ref]
			}
			s.Disks[ref.Disk] = one
		}
	}
	return s
}

// publishedCopies returns the copies on each disk of this node for its peers. An image without a copy
// on a disk is included if a job for it runs or failed there, if it waits, if the disk rejects it, or if
// replicas there need it, whether it is declared or not (U4).
func publishedCopies(now *plan.Round, p plan.Plan, running map[ident.CopyRef]model.Op) map[ident.DiskRef]model.Copies {
	d, o := now.Desired, now.Observed
	published := map[ident.DiskRef]model.Copies{}
	for ref, seen := range o.Disks {
		if d.Owns(ref) {
			published[ref] = make(model.Copies, len(seen.Copies))
			for id, c := range seen.Copies {
				discountSame(&c)
				published[ref][id] = c.ForPeers()
			}
		}
	}
	update := func(key ident.CopyRef, change func(*model.Copy)) {
		if copies, own := published[key.Disk]; own {
			c, exists := copies[key.ID]
			if !exists {
				c = model.Copy{ID: key.ID, State: model.Pending}
			}
			change(&c)
			copies[key.ID] = c.ForPeers()
		}
	}
	for ref, seen := range o.Disks {
		for id, need := range seen.Needs {
			update(ident.CopyRef{Disk: ref, ID: id}, func(c *model.Copy) { c.Need = &need })
		}
	}
	for key, op := range running {
		update(key, func(c *model.Copy) { c.Job, c.Leaving = op, op.Deletes() })
	}
	for key, f := range o.Failures {
		if f.Attempts > 0 { // otherwise only a deletion was cancelled, or a copy is suspected
			update(key, func(c *model.Copy) { c.Failure = &f })
		}
	}
	for key := range plan.Suspects(o.Failures) {
		update(key, func(c *model.Copy) {
			if c.State == model.Ready { // no peer may count on the copy or read it
				c.State, c.Message = model.Unknown, plan.Suspected.Text
			}
		})
	}
	for _, a := range p.Actions {
		if _, runs := running[a.CopyRef()]; a.Idle() && !runs {
			update(a.CopyRef(), func(c *model.Copy) { c.Reason = a.Reason })
		}
	}
	for key, reason := range now.Rejections() {
		update(key, func(c *model.Copy) {
			c.Rejection, c.RejectionTemporary = reason.Text, reason.Severity == plan.Temporary
		})
	}
	return published
}

// discountSame makes a copy unknown if another disk of this node shows it, too: other nodes would count one copy twice.
func discountSame(c *model.Copy) {
	if c.SameAs != (ident.DiskRef{}) && c.State == model.Ready {
		c.State, c.Message = model.Unknown, fmt.Sprintf("it is the copy on %s, because both disks show its folder", c.SameAs)
	}
	c.SameAs = ident.DiskRef{}
}
