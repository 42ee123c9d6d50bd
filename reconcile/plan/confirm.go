package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// A copy is deleted in four steps (D1 to D4). The pure parts are in this file, the rest is in
// package reconcile:
//
//	withdraw   the holder publishes the copy as leaving; no node counts it any more
//	query      the holder queries the nodes that NodesToQuery returns, directly, and then
//	           requests the proofs that ProofRequests returns (proof.go)
//	confirm    WithResponses replaces earlier observations by the responses, and
//	           ConfirmDeletion plans once more with the result
//	delete     the holder deletes the copy, or cancels the withdrawal
//
// Each holder withdraws before it queries. If two holders withdraw at the same time, at least
// one of them therefore observes that the other copy is leaving, and cancels.

// NodesToQuery returns the nodes that must confirm the deletion a, sorted: the nodes whose
// copies it counts on, and for an orphan all other nodes.
func (d Desired) NodesToQuery(o Observed, a Action) []string {
	ix := newIndex(d, o)
	image, declared := d.Config.Images[a.Image]
	if !declared {
		return ix.otherNodes()
	}
	nodes := map[string]bool{}
	s := newImageState(ix, image)
	for _, ref := range s.ready {
		if !d.Owns(ref.Disk) && s.countable(ref) {
			nodes[ref.Disk.Node] = true
		}
	}
	return slices.Sorted(maps.Keys(nodes))
}

// Response is the response of a node to a query about the images of one name.
type Response struct {
	ConfigDigest string // as Peer.ConfigDigest
	// Disks are the disks of that node with the copies of that name only.
	Disks map[schema.DiskRef]Disk
	// Proofs are the outcomes of the requested proofs. A copy that is missing has proven nothing.
	Proofs map[CopyRef]Proof
}

// WithResponses returns o with the responses about the images of that name. The queries must
// have started after the withdrawal. Earlier observations do not count any more: a node that
// was queried and did not respond is unreachable, and a node that was not queried confirms
// nothing. A copy on another node counts only if it has proven that it has its bytes. Evidence
// against the deletion still counts, from every node.
func (o Observed) WithResponses(name string, queried []string, responses map[string]Response) Observed {
	o.Peers, o.Disks = maps.Clone(o.Peers), maps.Clone(o.Disks)
	o.proofs = map[CopyRef]Proof{}
	for node, peer := range o.Peers {
		response, responded := responses[node]
		maps.Copy(o.proofs, response.Proofs)
		switch {
		case responded:
			peer = Peer{Queried: true, ConfigDigest: response.ConfigDigest, Omitted: peer.Omitted}
		case slices.Contains(queried, node):
			peer = Peer{Queried: true, Problem: "it did not respond to a query", UnreachableFor: peer.UnreachableFor}
		default:
			peer.unconfirmed = true
		}
		o.Peers[node] = peer
	}
	for ref, seen := range o.Disks {
		if peer, other := o.Peers[ref.Node]; !other || peer.unconfirmed {
			continue
		}
		response, responded := responses[ref.Node]
		now, published := response.Disks[ref]
		if responded && !published {
			delete(o.Disks, ref)
			continue
		}
		o.Disks[ref] = seen.withResponse(name, now, responded)
	}
	o.MarkDisputedDisks()
	return o
}

// withResponse returns the disk with its copies of one name replaced by those in the response,
// which is the argument now. Without a response, the earlier copies of that name count as leaving.
func (d Disk) withResponse(name string, now Disk, responded bool) Disk {
	if responded {
		d.UUID, d.Problem, d.ReadOnly, d.UsageUnknown = now.UUID, now.Problem, now.ReadOnly, now.UsageUnknown
	}
	d.Copies = maps.Clone(d.Copies)
	for id, c := range d.Copies {
		if id.Name != name {
			continue
		}
		if responded {
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

// ConfirmDeletion returns nil if the withdrawn copy of a may be deleted according to o, which
// WithResponses returned. Otherwise the error says why not.
func (d Desired) ConfirmDeletion(o Observed, a Action) error {
	if d.Allowed == schema.ObserveOnly {
		return errors.New("not deleted: the manager is in observe-only mode")
	}
	ix := newIndex(d, o)
	ix.proofsWaived = !needsProofs(o, a)
	var actions []Action
	if image, declared := d.Config.Images[a.Image]; declared {
		actions = newImagePlanner(ix, image).plan()
	} else {
		actions = planOrphans(ix)
	}
	for _, now := range actions {
		switch {
		case now.CopyRef() != a.CopyRef():
		case now.Op == a.Op:
			return nil
		case now.Op.Deletes():
			return fmt.Errorf("not deleted: the reason changed to: %s", now.Text)
		default:
			return fmt.Errorf("not deleted: %s", now.Text)
		}
	}
	return errors.New("not deleted: no longer surplus")
}
