package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/disk/ident"
)

// Observed is the observed state at one moment: the disks of this node, and what the other
// nodes published.
type Observed struct {
	Now time.Time // wall clock of this node
	// Disks are the disks of this node, and those of the other nodes as they last responded.
	Disks map[ident.DiskRef]Disk
	// Peers are the other declared nodes, by name.
	Peers map[string]Peer
	// Failures are the failed copies. Those of other nodes are included if they have the same
	// configuration, or if the fault is the disk's or the network's.
	Failures map[ident.CopyRef]Failure
	// Awaited is for how long this node has waited for copies on other nodes, while no copy of their
	// images was ready: see Plan.Awaited.
	Awaited map[ident.CopyRef]time.Duration
	// Running are the copies on which a job runs, on any node. A job reserved its space when
	// it started.
	Running map[ident.CopyRef]bool
	// Jobs are the running jobs of this node. Their copies are in Running, too.
	Jobs map[ident.CopyRef]Job
	// BeingRead are copies on this node that running jobs read.
	BeingRead map[ident.CopyRef]bool
	// CannotPrepare are the images whose first copy this node cannot create, because it has
	// no replica of the volume, with the reason.
	CannotPrepare map[ident.ID]string
	// BackedUp are the images with a complete backup at the declared target, according to the
	// record of a copy on this node.
	BackedUp map[ident.ID]bool
	// ReadManifests has the SHA-512 of the bytes that a chunk manifest describes, by the digest of
	// the manifest, as far as this node has read them from another node.
	ReadManifests map[ident.Digest]ident.Digest
	// Unanswered are copies on other nodes that did not answer the last request for a proof, or were not
	// sent in full. Others are asked first.
	Unanswered map[ident.CopyRef]bool
	// proofs are the proofs of the copies. It is nil unless a deletion is confirmed.
	proofs map[ident.CopyRef]Proof
}

// Peer is the observed state of another node, from its own responses.
type Peer struct {
	// Queried: at least one query has ended, with or without success, since this process
	// started.
	Queried bool
	// Problem is why it does not respond; "": its last response is current.
	Problem string
	// UnreachableFor is how long it has not responded, at least: since its last response, or
	// since this process started. It is 0 when Problem is empty.
	UnreachableFor time.Duration
	// ConfigDigest is its config digest, "" while its configuration is invalid.
	ConfigDigest string
	// OtherConfigFor is how long, at least, it has had another config digest than this node, or
	// none: since this process first observed it. It is 0 while the digests are the same, and while
	// this node has none.
	OtherConfigFor time.Duration
	// LastResponse is the time of its last response by this node's clock; for an unreachable
	// node, the start of the last query that it answered. Zero: it never responded.
	LastResponse time.Time
	// Outdated: its last response leaves out what it published about disks that are declared since.
	// The next response takes a moment.
	Outdated bool
	// Omitted is how many of its copies of images that are not declared, or of other generations, are
	// left out, because it publishes more of them than the configuration can mean.
	Omitted int
	// unconfirmed: a deletion is being confirmed, and this node was not queried after the
	// withdrawal of the copy. Nothing on this node counts in favour of the deletion.
	unconfirmed bool
}

// Responds reports whether the last response of the peer is current.
func (p Peer) Responds() bool { return p.Queried && p.Problem == "" }

// incomplete returns why not all orphans of the peer with this name are known.
func (p Peer) incomplete(name string) Reason {
	if p.Omitted == 0 {
		return Reason{}
	}
	return because(CodeUsageUnknown, "node %s publishes %d copies of undeclared images and old generations more than this node keeps: delete or declare them, or name them in pruneConfirmed", name, p.Omitted)
}

// Disk is the observed state of one disk.
type Disk struct {
	Path string
	UUID string
	// Problem is why the disk cannot be used; "": it can. With a problem nothing is known of
	// its copies, and nothing is done to them.
	Problem    string
	ProblemFor time.Duration // how long the disk has had a problem, at least
	// ReadOnly: the file system is read-only. Copies are observed and served, and nothing is written.
	ReadOnly bool
	// Disputed is why it is not known which disk this is: see MarkDisputedDisks. "": it is known.
	Disputed  string
	Space     disk.Space
	Copies    map[ident.ID]Copy
	Unmanaged []string // names of files that this program does not own and leaves alone
	// ClockStepped: the wall clock was set since the times beside the copies were recorded,
	// so that their clean-up intervals restart.
	ClockStepped bool
	// Demands are the images that replicas on the disk name, whether they have a copy there or not. Those of another node's
	// disk with a problem are from its last listing, and nil if it had none since this process started.
	Demands map[ident.ID]Demand
	// UsageUnknown is why it is not known which copies are in use (U2); "": it is known. All
	// copies of its node then count as in use (U7), until a person repairs the metadata.
	UsageUnknown string
}

// Copy is the observed state of a copy.
type Copy struct {
	disk.Copy
	// UsedBy describes the replica on its disk that names the copy, or the process that has it open; "": there is none.
	UsedBy string
	// Leaving: it is withdrawn and may be deleted at any moment. Nobody counts on it.
	Leaving bool
	// SameAs is the disk of this node with the same folder of the copy, by a bind mount: this copy is not another one, and
	// counts for nothing. Zero: there is none.
	SameAs ident.DiskRef
	// Rejects is the reason, published by its node, why a disk of another node does not take the
	// copy; "": no rejection is published.
	Rejects string
	// Published is the reason, published by its node, why nothing is done for the copy now. It is zero for
	// a copy of this node.
	Published Reason
	// RejectsForNow: the disk takes a copy once a first copy exists.
	RejectsForNow bool
	// Unproven: its node claims that it is ready, and has sent other bytes, or none, to this node. Its State is
	// unknown then.
	Unproven bool
}

// FromPeers reports whether the partial file came from other nodes. Such a file does not start a
// first copy.
func (c Copy) FromPeers() bool { return strings.HasPrefix(c.PartSourceID, disk.PartFromPeers) }

// neverHadBytes reports whether the folder has a record only: no attempt to create the copy stored
// bytes that a later one keeps, and no file of it was ever verified. A copy in use has had a file.
func (c Copy) neverHadBytes() bool {
	return c.State == disk.Pending && c.Size == 0 && c.PartBytes == 0 && c.SHA512.IsZero() &&
		c.VerifiedAt.IsZero() && c.DamagedAt.IsZero() && c.LastUsed.IsZero() && c.UsedBy == ""
}

// readOnlyText is what people read about a disk with ReadOnly.
const readOnlyText = "its file system is read-only"

// Faults returns what is wrong with the disk, for people.
func (d Disk) Faults() []string {
	var faults []string
	if d.Problem != "" {
		faults = append(faults, d.Problem)
	}
	if d.ReadOnly {
		faults = append(faults, readOnlyText)
	}
	if d.Disputed != "" {
		faults = append(faults, d.Disputed)
	}
	if d.UsageUnknown != "" {
		faults = append(faults, d.UsageUnknown)
	}
	return faults
}

// Ready returns a copy on the disk, and whether it is ready.
func (d Disk) Ready(id ident.ID) (Copy, bool) {
	c, ok := d.Copies[id]
	return c, ok && c.State == disk.Ready && d.Problem == ""
}

// MarkLeaving changes the observed copy to leaving if the operation deletes it.
func (d Disk) MarkLeaving(ref ident.CopyRef, op Op) {
	if c, exists := d.Copies[ref.ID]; exists && op.Deletes() {
		c.Leaving = true
		d.Copies[ref.ID] = c
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
	return known && seen.Problem == "" && (!exists || c.State == disk.Pending)
}

// IsOtherDisk reports whether a readable disk has another uuid than before, which is the argument
// was.
func (o Observed) IsOtherDisk(ref ident.DiskRef, was string) bool {
	seen, known := o.Disks[ref]
	return known && seen.Problem == "" && was != "" && seen.UUID != was
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

// MarkSameCopies sets Copy.SameAs of the copies on the disks of this node.
func (o Observed) MarkSameCopies() {
	first := map[disk.FolderID]ident.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), ident.DiskRef.Compare) {
		for id, c := range o.Disks[ref].Copies {
			if other, shared := first[c.Folder]; shared {
				c.SameAs = other
				o.Disks[ref].Copies[id] = c
			} else if c.Folder != (disk.FolderID{}) {
				first[c.Folder] = ref
			}
		}
	}
}

// MarkDisputedDisks marks the disks with a uuid that disks of two nodes have, which both respond and
// can use their disk; this node is one of the nodes. One machine is a clone of the other, or a node
// claims a disk that it does not have, and no node knows which disk the configuration declares (I10).
// A claim takes no disk out of service: each node uses its own disk. But the two may be one disk, so
// that nothing is deleted from a disputed disk, and no deletion counts on a copy there.
func (o Observed) MarkDisputedDisks() {
	byUUID := make(map[string]ident.DiskRef, len(o.Disks)) // one disk of each uuid
	var disputed map[string][]ident.DiskRef                // the disks of the uuids with several
	for ref, seen := range o.Disks {
		if p, other := o.Peers[ref.Node]; seen.UUID == "" || seen.Problem != "" || other && !p.Responds() {
			continue
		}
		twin, duplicate := byUUID[seen.UUID]
		if !duplicate {
			byUUID[seen.UUID] = ref
			continue
		}
		if disputed == nil {
			disputed = map[string][]ident.DiskRef{}
		}
		if len(disputed[seen.UUID]) == 0 {
			disputed[seen.UUID] = append(disputed[seen.UUID], twin)
		}
		disputed[seen.UUID] = append(disputed[seen.UUID], ref)
	}
	for uuid, refs := range disputed {
		slices.SortFunc(refs, ident.DiskRef.Compare)
		if refs[0].Node == refs[len(refs)-1].Node {
			continue // that node rejects its own duplicates
		}
		names := make([]string, len(refs))
		for i, ref := range refs {
			names[i] = ref.String()
		}
		for _, ref := range refs {
			seen := o.Disks[ref]
			seen.Disputed = fmt.Sprintf("%s have the same diskUUID %s: one machine is a clone of another, so that nothing is deleted there, and no deletion counts on their copies; give one disk a new identity: remove its longhorn-disk.cfg and run disk init", strings.Join(names, " and "), uuid)
			o.Disks[ref] = seen
		}
	}
}

// Suspected is the reason to verify a copy before it is read or counted on again.
var Suspected = Reason{CodeSuspect, "a copy that was made of it has other bytes"}

// Fault is the cause of a failure. It decides which node or disk may succeed instead.
type Fault uint8

const (
	// FaultSource: the upstream or its bytes. No other node retries.
	FaultSource Fault = iota
	// FaultNetwork: the source, or this node's connection to it. Another node may succeed.
	FaultNetwork
	// FaultDisk: the disk. Another disk may succeed.
	FaultDisk
)

// FaultOf returns the fault for the two flags by which JSON documents encode it.
func FaultOf(disk, network bool) Fault {
	switch {
	case disk:
		return FaultDisk
	case network:
		return FaultNetwork
	}
	return FaultSource
}

// Failure describes the failed attempts of one copy since the last success. It is kept in
// memory until the next success, and lost with the process.
type Failure struct {
	Op       Op // the operation that failed; "": any
	Fault    Fault
	Attempts int
	Since    time.Time // the first failed attempt
	RetryAt  time.Time // the next attempt
	Message  string
	// Final: only another declaration helps, as far as it is known. RetryAt is zero then, or the time of
	// one of the rare attempts that find out whether the source has changed.
	Final bool
	// NeedsSpace is how many bytes must be free on the disk for the next attempt, which
	// starts as soon as they are. 0: space is not the cause.
	NeedsSpace int64
	// Unrepairable: a repair of the copy failed, so that it must be replaced.
	Unrepairable bool
	// Suspects are ready copies that gave wrong bytes when they were read, and that have not
	// been verified since.
	Suspects []ident.CopyRef
}

// AppliesTo reports whether the failure concerns the operation.
func (f Failure) AppliesTo(op Op) bool { return f.Op == "" || f.Op == op }

// delays reports whether the failure delays the operation at the time now. After a lack of
// space, only the second attempt starts without delay as soon as there is enough space. Later
// ones wait, because another job may use the same space each time.
func (f Failure) delays(op Op, now time.Time) bool {
	switch {
	case !f.AppliesTo(op):
		return false
	case f.Final && f.RetryAt.IsZero():
		return true
	case f.Final:
		return f.RetryAt.After(now)
	case f.NeedsSpace > 0 && f.Attempts < 2:
		return false
	}
	return f.RetryAt.After(now)
}

// OnWallClock translates the times of f from the steady clock to the wall clock. now and wall
// are the same moment on both clocks.
func (f Failure) OnWallClock(now, wall time.Time) Failure {
	for _, at := range []*time.Time{&f.Since, &f.RetryAt} {
		if !at.IsZero() {
			*at = wall.Add(at.Sub(now))
		}
	}
	return f
}
