package reconcile

import (
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// Desired is what the configuration says, and how far it may be acted on.
type Desired struct {
	// Node is the node that plans for its own disks.
	Node string
	// Picked are the node's disks that are its to look after, by name; nil: all of
	// them. The others are as those of another node.
	Picked map[string]bool
	// Config has this node among its nodes.
	Config schema.Config
	// Digest is that of the configuration as it was declared, "" while anything of it
	// is broken. Nodes that have the same one plan alike.
	Digest string
	// Revision is the commit that the configuration is of, "" if that is not known.
	Revision string
	May      schema.Allowed
	// Offline says that May is less than the configuration allows because nobody
	// else is asked.
	Offline bool
	// Held are images of which something is wrong, by name.
	Held map[string]schema.Held
	// Unsure says of images that are not declared what may be meant to declare them, by name.
	Unsure map[string]schema.Skipped
	// Removed reports whether it is confirmed that the configuration has no image of
	// that name any more; nil: an image that is not in Config has been removed.
	Removed func(name string) bool
	// Verify are ready copies that somebody asked to have read again.
	Verify map[Key]bool
	// Cleanup are surplus copies that somebody asked to have removed before their
	// interval is over.
	Cleanup map[Key]bool
	// Uploads are copies on this node that a client has begun to upload; nil: nobody
	// can, as in a run that does not stay.
	Uploads map[Key]bool

	// Only is a plan of which nothing else is done; nil: whatever is planned is done.
	Only *Saved

	ranks *ranks // of Config; nil: they are worked out anew each time
}

// whyNot says when nothing is deleted, for messages.
func (d Desired) whyNot() string {
	if d.Offline {
		return "without asking the other nodes (--offline)"
	}
	return "while the configuration has errors"
}

// mine reports whether a disk is this process's to look after.
func (d Desired) mine(ref schema.DiskRef) bool {
	return ref.Node == d.Node && (d.Picked == nil || d.Picked[ref.Disk])
}

// holds says why an image that cannot be understood is left alone.
func (d Desired) holds(name string) string {
	if h, held := d.Held[name]; held && !h.Stale {
		return "its declaration is broken: " + h.Why.String()
	}
	return ""
}

// gone reports whether it is sure that name is not declared any more.
func (d Desired) gone(name string) bool {
	_, declared := d.Config.Images[name]
	return !declared && d.holds(name) == "" && (d.Removed == nil || d.Removed(name))
}

// Observed is what was seen at one moment.
type Observed struct {
	Now time.Time
	// Disks are those of this node, and those of the others as these said last.
	Disks map[schema.DiskRef]Disk
	// Peers are the other declared nodes, by name.
	Peers map[string]Peer
	// Tries are what failed before; nothing here means that nothing did. Those of
	// other nodes are there if they failed under the same configuration.
	Tries map[Key]Try
	// Running is the work under way, here and on other nodes. It counts on the space
	// it was promised when it began.
	Running map[Key]bool
	// Syncing is what of that are syncs to disks of this node.
	Syncing map[Key]bool
	// Read are copies on this node that work under way reads.
	Read map[Key]bool
	// Unable are images of which this node cannot make the first copy, as what it would
	// be made of is not here, and why.
	Unable map[disk.ID]string
	// BackedUp are images of which a copy here says that a whole backup was seen where it is
	// declared.
	BackedUp map[disk.ID]bool
}

// Peer is what is known of another node by asking it, and nobody else.
type Peer struct {
	// Asked: at least one question has ended, well or not, since this process began.
	Asked bool
	// Problem says why it does not answer; "" when what it said last stands.
	Problem string
	// Silent is for how long it has not answered, at least: since its last answer, or
	// since this process began. 0 when Problem is "".
	Silent time.Duration
	// Config is the digest of its configuration, "" while anything of it is broken.
	Config string
	// Last is when it last gave a sign of life, by this node's clock, and of a silent one
	// when the last question was asked that it answered; zero: it never answered. It is
	// shown, and tells which of several saved states of a silent node is newer.
	Last time.Time
	// unasked: it was not asked since the copy was withdrawn that is decided on, so that
	// nothing there counts for that copy's removal.
	unasked bool
}

// answers reports whether what the peer said last stands.
func (p Peer) answers() bool { return p.Asked && p.Problem == "" }

// Disk is one disk as it was seen.
type Disk struct {
	Path string
	UUID string
	// Problem says why the disk cannot be used. Nothing is known of its copies
	// then, and nothing is done to them.
	Problem string
	Away    time.Duration // for how long it has had a problem, for all that is known
	Space   disk.Space
	Copies  map[disk.ID]Copy
	Foreign []string // what is not ours and is left alone
	// ClockStepped says that the wall clock was set since the times beside the copies
	// were written, so that intervals that go by it have to begin anew.
	ClockStepped bool
	// Unclear says why it cannot be told what the replicas on the disk use. All its
	// copies then count as used, until a person has looked.
	Unclear string
}

// Copy is a copy on a disk, and what uses it.
type Copy struct {
	disk.Copy
	// Using says why the copy counts as used; "" when nothing uses it.
	Using string
	// Leaving: it was withdrawn, and may be gone the next moment. Nobody counts on it.
	Leaving bool
	// Refuses says why a disk of another node takes no copy, as that node sees it.
	Refuses string
	// Later: it takes one as soon as there is a first copy.
	Later bool
}

// pulled reports whether the part came from other nodes: no first copy was begun with it.
func (c Copy) pulled() bool { return strings.HasPrefix(c.PartSourceID, peer.PartFromPeers) }

// Try is what is remembered of a failure until the next attempt.
type Try struct {
	Kind     Kind // of the action that failed; "": of whatever is tried
	Attempts int
	Since    time.Time // of the first failure in a row
	Until    time.Time // of the next attempt
	Message  string
	// Final means that only another declaration helps.
	Final bool
	// Space is how many bytes the disk has to have free for the next attempt; it
	// comes as soon as they are there.
	Space int64
	// Disk says that the trouble is the disk's and not the source's.
	Disk bool
	// Link says that it may be this node's way to the source, so that another node
	// may have more luck.
	Link bool
	// Unrepairable: a repair of the copy failed, so it has to be replaced.
	Unrepairable bool
	// Suspects are ready copies that were read and gave other bytes than their own,
	// as long as they have not been verified since.
	Suspects []Key
}

// ready returns the copy of id on the disk, if it is ready.
func (d Disk) ready(id disk.ID) (Copy, bool) {
	c, ok := d.Copies[id]
	return c, ok && c.State == disk.Ready && d.Problem == ""
}

// withdraw shows a copy as leaving if what is done to it deletes it.
func (d Disk) withdraw(key Key, kind Kind) {
	if c, there := d.Copies[key.ID]; there && kind.drops() {
		c.Leaving = true
		d.Copies[key.ID] = c
	}
}
