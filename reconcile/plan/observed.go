package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

// Observed is the observed state at one moment: the disks of this node, and what the other
// nodes published.
type Observed struct {
	Now time.Time // wall clock of this node
	// Disks are the disks of this node, and the disks in the last responses of the other nodes.
	Disks map[ident.DiskRef]model.Disk
	// Peers are the other declared nodes, by name.
	Peers map[string]model.Peer
	// Failures are the failures, by copy. A failure on another node is included if that node has
	// the same configuration, or if the fault is the disk's or the network's.
	Failures map[ident.CopyRef]model.Failure
	// Awaited has, for each copy on another node, how long this node has waited for it while no copy of the image was ready:
	// see Plan.Awaited.
	Awaited map[ident.CopyRef]time.Duration
	// Running are the copies on which a job runs, on any node. A job reserved its space when
	// it started.
	Running map[ident.CopyRef]bool
	// Jobs are the running jobs of this node. Their copies are in Running, too.
	Jobs map[ident.CopyRef]Job
	// BeingRead are copies on this node that running jobs read.
	BeingRead map[ident.CopyRef]bool
	// CannotPrepare has the images whose first copy this node cannot create, because it has
	// no replica of the volume. The value is the reason.
	CannotPrepare map[ident.ID]string
	// BackedUp are the images with a complete backup at the declared target, according to the
	// record of a copy on this node.
	BackedUp map[ident.ID]bool
	// ReadManifests has, by the digest of a chunk manifest, the SHA-512 of the bytes that the manifest
	// describes. This node has read these bytes from another node.
	ReadManifests map[ident.Digest]ident.Digest
	// Unanswered are copies on other nodes that did not answer the last request for a proof, or were not
	// sent in full. Other copies are asked first.
	Unanswered map[ident.CopyRef]bool
	// unconfirmed are the nodes that were not queried after the withdrawal of a copy. The deletion counts on no copy on
	// these nodes. It is nil unless a deletion is being confirmed.
	unconfirmed map[string]bool
	// proofs are the proofs of the copies. It is nil unless a deletion is being confirmed.
	proofs map[ident.CopyRef]Proof
}

// incompletePeer returns why not all orphans of the peer with this name are known.
func incompletePeer(p model.Peer, name string) model.Reason {
	if p.Omitted == 0 {
		return model.Reason{}
	}
	return because(CodeUsageUnknown, "node %s publishes too many copies of undeclared images and older generations, and %d were not read: delete or declare them, or name them in pruneConfirmed", name, p.Omitted)
}

// neverHadBytes reports whether the folder has only a record. No attempt to create the copy stored
// bytes that a later attempt can use, and no file was ever verified. A copy in use has had a file.
func neverHadBytes(c model.Copy) bool {
	return c.State == model.Pending && c.Size == 0 && c.PartBytes == 0 && c.SHA512.IsZero() &&
		c.VerifiedAt.IsZero() && c.DamagedAt.IsZero() && c.LastUsed.IsZero() && c.UsedBy == ""
}

// SetLeaving changes the observed copy to leaving if the operation deletes it.
func (o Observed) SetLeaving(ref ident.CopyRef, op model.Op) {
	if c, exists := o.Disks[ref.Disk].Copies[ref.ID]; exists && op.Deletes() {
		c.Leaving = true
		o.Disks[ref.Disk].Copies[ref.ID] = c
	}
}

// DropJob removes a job of this node from the observation.
func (o Observed) DropJob(ref ident.CopyRef) {
	delete(o.Running, ref)
	delete(o.Jobs, ref)
}

// LostFile reports whether a readable disk has no file of the copy any more.
func (o Observed) LostFile(ref ident.CopyRef) bool {
	seen, known := o.Disks[ref.Disk]
	c, exists := seen.Copies[ref.ID]
	return known && seen.Problem == "" && (!exists || c.State == model.Pending)
}

// IsOtherDisk reports whether a disk is readable and its uuid differs from its earlier one.
func (o Observed) IsOtherDisk(ref ident.DiskRef, earlier string) bool {
	seen, known := o.Disks[ref]
	return known && seen.Problem == "" && earlier != "" && seen.UUID != earlier
}

// HasCopy reports whether a folder of the copy was observed.
func (o Observed) HasCopy(ref ident.CopyRef) bool {
	_, exists := o.Disks[ref.Disk].Copies[ref.ID]
	return exists
}

// AnyReady reports whether any disk of any node has a ready copy.
func (o Observed) AnyReady(id ident.ID) bool {
	for _, seen := range o.Disks {
		if _, ready := seen.Ready(id); ready {
			return true
		}
	}
	return false
}

// FindSameCopies sets Copy.SameAs of the copies on the disks of this node.
func (o Observed) FindSameCopies() {
	first := map[model.FolderID]ident.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		for id, c := range o.Disks[ref].Copies {
			if other, shared := first[c.Folder]; shared {
				c.SameAs = other
				o.Disks[ref].Copies[id] = c
			} else if c.Folder != (model.FolderID{}) {
				first[c.Folder] = ref
			}
		}
	}
}

// FindDisputedDisks sets Disputed of disks of two nodes with the same uuid. It looks at usable disks of
// this node and of nodes that respond. One machine is a clone of the other, or a node claims a disk that
// it does not have. No node knows which disk the configuration declares (I10). A claim takes no disk out
// of service: each node uses its own disk. But the two may be one disk. Therefore nothing is deleted from
// a disputed disk, and no deletion counts on a copy there.
func (o *Observed) FindDisputedDisks() {
	byUUID := map[string][]ident.DiskRef{}
	for ref, seen := range o.Disks {
		if p, other := o.Peers[ref.Node]; seen.UUID != "" && seen.Problem == "" && (!other || p.Responds()) {
			byUUID[seen.UUID] = append(byUUID[seen.UUID], ref)
		}
	}
	cloned := false
	for uuid, refs := range byUUID {
		slices.SortFunc(refs, ident.DiskRef.Compare)
		if refs[0].Node == refs[len(refs)-1].Node {
			continue // that node rejects its own duplicates
		}
		if !cloned {
			o.Disks, cloned = maps.Clone(o.Disks), true // the map may be shared
		}
		names := make([]string, len(refs))
		for i, ref := range refs {
			names[i] = ref.String()
		}
		for _, ref := range refs {
			seen := o.Disks[ref]
			seen.Disputed = fmt.Sprintf("%s have the same diskUUID %s, and nothing is deleted there: to give one a new identity, remove its longhorn-disk.cfg and run disk init", strings.Join(names, " and "), uuid)
			o.Disks[ref] = seen
		}
	}
}

// Suspected is the reason to verify a copy before it is read or counted on again.
var Suspected = model.Reason{Code: CodeSuspect, Text: "a copy that was made of it has other bytes"}
