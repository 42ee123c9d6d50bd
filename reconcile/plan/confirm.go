package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A copy goes in four steps, of which the pure ones are here:
//
//	withdraw   the node tells whoever asks that the copy is leaving
//	ask        it asks the nodes that Asks names, itself and directly
//	decide     Heard overlays what was seen with what they answered, and Confirm
//	           plans once more on nothing but answers begun after the withdrawal
//	remove     disk.Remove, or the withdrawal is taken back
//
// Of two holders that withdraw at the same time, at least one sees the other leave:
// each withdraws before it asks.

// NodesToQuery returns the nodes that have to be asked before the copy of a goes, sorted:
// those whose copies it counts on; for an image that is not declared any more, all.
func (d Desired) NodesToQuery(o Observed, a Action) []string {
	s := d.NewIndex(o)
	image, declared := d.Config.Images[a.Image]
	if !declared {
		return s.otherNodes()
	}
	nodes := map[string]bool{}
	v := s.NewImagePlanner(image)
	for _, key := range v.ready {
		if !d.Owns(key.Disk) && v.counts(key) {
			nodes[key.Disk.Node] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// Response is what a node said about the images of one name when it was asked.
type Response struct {
	ConfigDigest string // as Peer.Config
	// Disks has the disks of that node, with the copies of that name only.
	Disks map[schema.DiskRef]Disk
}

// WithResponses returns o with what the nodes answered about the images of that name since
// the copy was withdrawn. Nothing that they said before counts any more: a node that
// was asked and did not answer is silent in it, and on a node that was not asked nothing
// is counted on; what speaks against the removal there does so all the same.
func (o Observed) WithResponses(name string, asked []string, answers map[string]Response) Observed {
	o.Peers, o.Disks = maps.Clone(o.Peers), maps.Clone(o.Disks)
	for node, peer := range o.Peers {
		answer, heard := answers[node]
		switch {
		case heard:
			peer = Peer{Queried: true, ConfigDigest: answer.ConfigDigest}
		case slices.Contains(asked, node):
			peer = Peer{Queried: true, Problem: "it did not answer when it was asked", UnreachableFor: peer.UnreachableFor}
		default:
			peer.unconfirmed = true
		}
		o.Peers[node] = peer
	}
	for ref, seen := range o.Disks {
		if peer, other := o.Peers[ref.Node]; !other || peer.unconfirmed {
			continue
		}
		answer, heard := answers[ref.Node]
		now, there := answer.Disks[ref]
		if heard && !there {
			delete(o.Disks, ref)
			continue
		}
		o.Disks[ref] = seen.withResponse(name, now, heard)
	}
	o.RejectDuplicateDisks()
	return o
}

// withResponse returns the disk with the copies of one name as now has them, or, where it was
// not heard, as none that stays.
func (d Disk) withResponse(name string, now Disk, heard bool) Disk {
	if heard {
		d.UUID, d.Problem, d.UsageUnknown = now.UUID, now.Problem, now.UsageUnknown
	}
	d.Copies = maps.Clone(d.Copies)
	for id, c := range d.Copies {
		if id.Name != name {
			continue
		}
		if heard {
			delete(d.Copies, id)
			continue
		}
		c.Leaving = true
		d.Copies[id] = c
	}
	for id, c := range now.Copies {
		if d.Copies == nil {
			d.Copies = map[disk.ID]Copy{}
		}
		d.Copies[id] = c
	}
	return d
}

// ConfirmDeletion returns nil when the withdrawn copy of a may go, by what Heard returned, and
// otherwise what speaks against it.
func (d Desired) ConfirmDeletion(o Observed, a Action) error {
	if d.Allowed == schema.ObserveOnly {
		return errors.New("too much of the configuration is not known")
	}
	s := d.NewIndex(o)
	var actions []Action
	if image, declared := d.Config.Images[a.Image]; declared {
		actions = s.NewImagePlanner(image).plan()
	} else {
		actions = s.planOrphans()
	}
	for _, now := range actions {
		switch {
		case now.CopyRef() != a.CopyRef():
		case now.Op == a.Op:
			return nil
		case now.Op.Deletes():
			return fmt.Errorf("it stays: by now it is to go for another reason: %s", now.Reason)
		default:
			return fmt.Errorf("it stays: %s", now.Reason)
		}
	}
	return errors.New("it stays: it is not surplus any more")
}
