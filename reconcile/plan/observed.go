package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Observed is what was seen at one moment.
type Observed struct {
	Now time.Time
	// Disks are those of this node, and those of the others as these said last.
	Disks map[schema.DiskRef]Disk
	// Peers are the other declared nodes, by name.
	Peers map[string]Peer
	// Failures are what failed before; nothing here means that nothing did. Those of
	// other nodes are there if they failed under the same configuration.
	Failures map[CopyRef]Failure
	// Running is the work under way, here and on other nodes. It counts on the space
	// it was promised when it began.
	Running map[CopyRef]bool
	// Syncing is what of that are syncs to disks of this node.
	Syncing map[CopyRef]bool
	// BeingRead are copies on this node that work under way reads.
	BeingRead map[CopyRef]bool
	// CannotPrepare are images of which this node cannot make the first copy, as what it would
	// be made of is not here, and why.
	CannotPrepare map[disk.ID]string
	// BackedUp are images of which a copy here says that a whole backup was seen where it is
	// declared.
	BackedUp map[disk.ID]bool
}

// Peer is what is known of another node by asking it, and nobody else.
type Peer struct {
	// Asked: at least one question has ended, well or not, since this process began.
	Queried bool
	// Problem says why it does not answer; "" when what it said last stands.
	Problem string
	// UnreachableFor is for how long it has not answered, at least: since its last answer, or
	// since this process began. 0 when Problem is "".
	UnreachableFor time.Duration
	// ConfigDigest is the digest of its configuration, "" while anything of it is broken.
	ConfigDigest string
	// LastResponse is when it last gave a sign of life, by this node's clock, and of a silent one
	// when the last question was asked that it answered; zero: it never answered. It is
	// shown, and tells which of several saved states of a silent node is newer.
	LastResponse time.Time
	// unasked: it was not asked since the copy was withdrawn that is decided on, so that
	// nothing there counts for that copy's removal.
	unconfirmed bool
}

// Responds reports whether what the peer said last stands.
func (p Peer) Responds() bool { return p.Queried && p.Problem == "" }

// Disk is one disk as it was seen.
type Disk struct {
	Path string
	UUID string
	// Problem says why the disk cannot be used. Nothing is known of its copies
	// then, and nothing is done to them.
	Problem    string
	ProblemFor time.Duration // for how long it has had a problem, for all that is known
	Space      disk.Space
	Copies     map[disk.ID]Copy
	Unmanaged  []string // what is not ours and is left alone
	// ClockStepped says that the wall clock was set since the times beside the copies
	// were written, so that intervals that go by it have to begin anew.
	ClockStepped bool
	// UsageUnknown says why it cannot be told what the replicas on the disk use. All its
	// copies then count as used, until a person has looked.
	UsageUnknown string
}

// Copy is a copy on a disk, and what uses it.
type Copy struct {
	disk.Copy
	// UsedBy says why the copy counts as used; "" when nothing uses it.
	UsedBy string
	// Leaving: it was withdrawn, and may be gone the next moment. Nobody counts on it.
	Leaving bool
	// Rejects says why a disk of another node takes no copy, as that node sees it.
	Rejects string
	// Later: it takes one as soon as there is a first copy.
	RejectsForNow bool
}

// FromPeers reports whether the part came from other nodes: no first copy was begun with it.
func (c Copy) FromPeers() bool { return strings.HasPrefix(c.PartSourceID, disk.PartFromPeers) }

// Ready returns the copy of id on the disk, if it is ready.
func (d Disk) Ready(id disk.ID) (Copy, bool) {
	c, ok := d.Copies[id]
	return c, ok && c.State == disk.Ready && d.Problem == ""
}

// MarkLeaving shows a copy as leaving if what is done to it deletes it.
func (d Disk) MarkLeaving(key CopyRef, kind Op) {
	if c, there := d.Copies[key.ID]; there && kind.Deletes() {
		c.Leaving = true
		d.Copies[key.ID] = c
	}
}

// LostFile reports whether a disk that can be read has no file of the copy.
func (o Observed) LostFile(key CopyRef) bool {
	seen, known := o.Disks[key.Disk]
	c, there := seen.Copies[key.ID]
	return known && seen.Problem == "" && (!there || c.State == disk.Pending)
}

// IsOtherDisk reports whether a disk that can be read is another one than was.
func (o Observed) IsOtherDisk(ref schema.DiskRef, was string) bool {
	seen, known := o.Disks[ref]
	return known && seen.Problem == "" && was != "" && seen.UUID != was
}

func (o Observed) HasCopy(key CopyRef) bool {
	_, there := o.Disks[key.Disk].Copies[key.ID]
	return there
}

// AnyReady reports whether any disk, of whatever node, has a ready copy.
func (o Observed) AnyReady(id disk.ID) bool {
	for _, seen := range o.Disks {
		if _, ready := seen.Ready(id); ready {
			return true
		}
	}
	return false
}

// hasDuplicateDisks reports whether any two disks have the same identity.
func (o Observed) hasDuplicateDisks() bool {
	seen := make(map[string]bool, len(o.Disks))
	for _, d := range o.Disks {
		if d.UUID != "" && seen[d.UUID] {
			return true
		}
		seen[d.UUID] = true
	}
	return false
}

// RejectDuplicateDisks finds disks with the same identity on two nodes that both answer, this
// one included: a cloned machine. Nobody can tell which of them is meant.
func (o Observed) RejectDuplicateDisks() {
	if !o.hasDuplicateDisks() {
		return
	}
	first := map[string]schema.DiskRef{}
	for _, ref := range slices.SortedFunc(maps.Keys(o.Disks), CompareDisks) {
		uuid := o.Disks[ref].UUID
		if p, other := o.Peers[ref.Node]; uuid == "" || other && !p.Responds() {
			continue
		}
		twin, taken := first[uuid]
		if !taken {
			first[uuid] = ref
			continue
		}
		if twin.Node == ref.Node {
			continue // that node refuses them by itself
		}
		problem := fmt.Sprintf("%s and %s have the same diskUUID %s: one machine is a clone of the other; give one disk a new identity: remove its longhorn-disk.cfg and run disk init", twin, ref, uuid)
		for _, clone := range []schema.DiskRef{twin, ref} {
			seen := o.Disks[clone]
			o.Disks[clone] = Disk{Path: seen.Path, UUID: seen.UUID, Problem: problem}
		}
	}
}

// SuspectMessage is said of a copy that is not counted on before it has been read.
const SuspectMessage = "a copy that was made of it has other bytes"
