package reconcile

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
)

// publish makes the state of this node available to its peers. A withdrawal ends only here, when
// peers see an observation that began after the end of the deletion.
func (r *Reconciler) publish(d plan.Desired, o plan.Observed, p plan.Plan) {
	r.system.Peers.Publish(publishedState(d, o, p, &r.jobs))
	r.served.leaving.keep(r.jobs.isDeleting)
}

// publishedState returns the state of this node for its peers.
func publishedState(d plan.Desired, o plan.Observed, p plan.Plan, running *jobs) peer.State {
	s := peer.State{Node: d.Node, Clock: o.Now, Disks: []peer.Disk{}}
	s.Config, _ = d.PublishedDigest()
	encoded := encodeCopies(d, o, p, running)
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		if !d.Owns(ref) {
			continue
		}
		one := diskToPeer(ref, o.Disks[ref])
		if one.Problem == "" {
			one.Copies = make([]peer.Copy, 0, len(encoded[ref]))
			for _, id := range slices.SortedFunc(maps.Keys(encoded[ref]), ident.ID.Compare) {
				one.Copies = append(one.Copies, *encoded[ref][id])
			}
		}
		s.Disks = append(s.Disks, one)
	}
	return s
}

// encodeCopies returns the copies on each disk of this node for its peers. An image without a copy
// on a disk is included if a job for it runs or failed there, if it waits, if the disk rejects it, or if
// replicas there need it, whether it is declared or not (U4).
func encodeCopies(d plan.Desired, o plan.Observed, p plan.Plan, running *jobs) map[ident.DiskRef]map[ident.ID]*peer.Copy {
	encoded := map[ident.DiskRef]map[ident.ID]*peer.Copy{}
	for ref, seen := range o.Disks {
		if d.Owns(ref) {
			encoded[ref] = make(map[ident.ID]*peer.Copy, len(seen.Copies))
			for id, c := range seen.Copies {
				wire := copyToPeer(c)
				encoded[ref][id] = &wire
			}
		}
	}
	update := func(key ident.CopyRef, change func(*peer.Copy)) {
		copies, ok := encoded[key.Disk]
		if !ok {
			return
		}
		c := copies[key.ID]
		if c == nil {
			absent := absentCopy(key.ID)
			c = &absent
			copies[key.ID] = c
		}
		change(c)
	}
	for ref, seen := range o.Disks {
		for id, demand := range seen.Demands {
			update(ident.CopyRef{Disk: ref, ID: id}, func(c *peer.Copy) { c.Demand, c.DemandSince = demand.By, demand.Since })
		}
	}
	for key, run := range running.running {
		update(key, func(c *peer.Copy) { c.Action, c.Leaving = string(run.task.Action.Op), running.isDeleting(key) })
	}
	for key, f := range o.Failures {
		if f.Attempts > 0 { // otherwise only a deletion was cancelled, or a copy is suspected
			update(key, func(c *peer.Copy) { c.Failure = failureToPeer(f, o.Now) })
		}
	}
	for key := range plan.Suspects(o.Failures) {
		update(key, func(c *peer.Copy) {
			if c.State == disk.Ready { // no peer may count on the copy or read it
				c.State, c.Message = disk.Unknown, plan.Suspected.Text
			}
		})
	}
	for _, a := range p.Actions {
		if a.Idle() && running.running[a.CopyRef()] == nil {
			update(a.CopyRef(), func(c *peer.Copy) { c.Reason, c.ReasonCode = a.Text, string(a.Code) })
		}
	}
	for key, reason := range d.Rejections(o) {
		update(key, func(c *peer.Copy) {
			c.Rejection, c.RejectionTemporary = reason.Text, reason.Severity == plan.Temporary
		})
	}
	return encoded
}

// absentCopy is the entry of an image that has no folder on a disk.
func absentCopy(id ident.ID) peer.Copy {
	return peer.Copy{Copy: disk.Copy{ID: id, State: disk.Pending}}
}

func diskToPeer(ref ident.DiskRef, seen plan.Disk) peer.Disk {
	return peer.Disk{
		Name: ref.Disk, UUID: seen.UUID, Problem: seen.Problem, ReadOnly: seen.ReadOnly, UsageUnknown: seen.UsageUnknown,
		Total: seen.Space.Total, Free: seen.Space.Free, Copies: []peer.Copy{},
	}
}

func copyToPeer(c plan.Copy) peer.Copy {
	wire := peer.Copy{Copy: c.Copy, UsedBy: c.UsedBy, FromPeers: c.FromPeers()}
	// These fields are for this node alone and have no JSON.
	wire.CfgExpected, wire.HasCfg, wire.BackupID = ident.Digest{}, false, ""
	wire.ClockNode, wire.InUseRecorded, wire.PartSourceID = "", false, ""
	if c.SameAs != (ident.DiskRef{}) {
		markSame(&wire, c.SameAs)
	}
	return wire
}

// markSame changes a copy that is the one on another disk of this node: other nodes would count one copy twice.
func markSame(c *peer.Copy, as ident.DiskRef) {
	if c.State == disk.Ready {
		c.State, c.Message = disk.Unknown, fmt.Sprintf("it is the copy on %s, because both disks show its folder", as)
	}
}

// failureToPeer returns a failure with times relative to now: the clocks of the nodes may differ.
func failureToPeer(f plan.Failure, now time.Time) *peer.Failure {
	wire := &peer.Failure{
		Action: string(f.Op), Message: f.Message, Attempts: f.Attempts, Final: f.Final, Disk: f.Fault == plan.FaultDisk, Link: f.Fault == plan.FaultNetwork,
		Since: min(0, f.Since.Sub(now).Seconds()),
	}
	if !f.RetryAt.IsZero() {
		wire.RetryIn = f.RetryAt.Sub(now).Seconds()
	}
	return wire
}
