package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const (
	gib      = 1 << 30
	diskSize = 8 * gib
)

var startTime = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// cluster is many nodes with disks, a network between them and an origin, in memory.
// One seed is one run: nothing in it follows from anything but its dice.
type cluster struct {
	rng
	suspensions     rng // for suspensions
	seed            uint64
	now             time.Duration // true time, since worldStart
	queue           queue
	fibers          map[*fiber]bool
	running         *fiber   // nil: none
	names           []string // of all nodes, sorted
	nodes           map[string]*node
	disks           map[schema.DiskRef]*Disk // which disk is where
	links           map[route]*link
	sendsWrongBytes map[string]bool // nodes that send other bytes than they should

	served      map[string]string          // letter of the bytes behind an origin
	replicas    map[string]map[string]bool // nodes that have a usable replica of a volume
	offline     bool                       // the origins that are not in the cluster
	reads       []read                     // of an origin
	encryptions int                        // counts what was encrypted
	uploaded    map[string]bool            // images that somebody uploads when all faults are over

	declarations []*declaration // what was declared, the newest last
	digests      map[string]string
	rankings     map[rankKey]*[]schema.DiskRef
	hashes       map[string]uint64
	library      *Library
	histories    map[*Copy]*copyHistory

	deletions    []*deletion // that have begun and not ended
	losses       []loss
	decisions    []decision
	healed       bool // no more faults
	healedAt     time.Duration
	quick        bool // a configuration is everywhere in seconds
	pairs        map[string]int
	publications int
	diskCount    int // that there were, ever
	done         map[plan.Op]int
	begunJobs    int    // actions, of all nodes
	trace        *trace // nil: nobody reads it
	violations   []string
}

// read is a download that began.
type read struct {
	at   time.Duration
	id   disk.ID
	node string
	done bool
}

// loss is a ready copy that went by something else than our deletion.
type loss struct {
	at     time.Duration
	key    plan.CopyRef
	digest string
}

func newCluster(seed uint64, least, most int, told bool) *cluster {
	c := &cluster{
		seed: seed, rng: rng{rand.New(rand.NewPCG(seed, 3))}, suspensions: rng{rand.New(rand.NewPCG(seed, 4))}, nodes: map[string]*node{}, fibers: map[*fiber]bool{}, disks: map[schema.DiskRef]*Disk{},
		links: map[route]*link{}, sendsWrongBytes: map[string]bool{}, served: map[string]string{}, replicas: map[string]map[string]bool{}, uploaded: map[string]bool{}, digests: map[string]string{},
		rankings: map[rankKey]*[]schema.DiskRef{}, hashes: map[string]uint64{}, pairs: map[string]int{}, library: NewLibrary(), histories: map[*Copy]*copyHistory{}, done: map[plan.Op]int{},
	}
	if told {
		c.trace = &trace{}
	}
	for i := range least + c.IntN(most-least+1) {
		c.names = append(c.names, fmt.Sprintf("node%02d", i+1))
	}
	for _, name := range c.names {
		c.nodes[name] = &node{c: c, name: name}
	}
	c.declare(c.firstConfig())
	for _, name := range c.names {
		for d := range c.latest().config.Nodes[name].Disks {
			c.disks[schema.DiskRef{Node: name, Disk: d}] = nil
		}
	}
	for i, ref := range c.diskRefs() {
		c.disks[ref] = NewDisk(newUUID(i), c.library, diskSize)
	}
	c.diskCount = len(c.disks)
	for _, name := range c.names {
		c.after(c.between(0, 2*time.Minute), func() { c.nodes[name].start() })
	}
	return c
}

func newUUID(n int) string { return fmt.Sprintf("disk-%04d", n) }

// diskRefs are where disks are, sorted.
func (c *cluster) diskRefs() []schema.DiskRef {
	return slices.SortedFunc(maps.Keys(c.disks), plan.CompareDisks)
}

// copyAt is the folder of a copy, nil when there is none.
func (c *cluster) copyAt(key plan.CopyRef) *Copy {
	if d := c.disks[key.Disk]; d != nil && d.Attached {
		return d.Copies[key.ID]
	}
	return nil
}

// copyOn is the slot if that disk is there.
func (c *cluster) copyOn(uuid string, key plan.CopyRef) *Copy {
	if d := c.disks[key.Disk]; d != nil && d.UUID == uuid {
		return c.copyAt(key)
	}
	return nil
}

// digest returns the digest of a content.
func (c *cluster) digest(content string) disk.Digest { return c.library.Properties(content).SHA512 }

// contentOf returns the content with a digest.
func (c *cluster) contentOf(digest disk.Digest) string {
	content, known := c.library.WithSHA512(digest)
	if !known {
		return "nothing that is known"
	}
	return content
}

// copyHistory is what happened to a copy, by the true time. No manager knows it.
type copyHistory struct {
	ownedAt  time.Duration // when the folder became an owned one
	failedAt time.Duration // when the copy became failed
	// failedAtTrueTime: at failedAt the wall clock of the node was right.
	failedAtTrueTime bool
	usedAt           time.Duration // when a round last observed that the copy is in use
	usedFrom         time.Duration // when the present use began
	// surplusAt is the first moment at which no round had to desire the copy any more, under a
	// valid configuration; zero while the copy is desired.
	surplusAt time.Duration
	// excused: the end of a process lost what it knew about the usage of the copy.
	excused bool
	// client uploads the partial file; nil if it is from another source.
	client *uploader
}

// history returns the history of a copy.
func (c *cluster) history(s *Copy) *copyHistory {
	if c.histories[s] == nil {
		c.histories[s] = &copyHistory{}
	}
	return c.histories[s]
}

// own makes a folder an owned one.
func (c *cluster) own(s *Copy) {
	if !s.Owned {
		s.Own()
		c.history(s).ownedAt = c.now
	}
}

// folder returns the folder of a copy. It creates the folder if there is none.
func (c *cluster) folder(d *Disk, id disk.ID) *Copy {
	s := d.Folder(id)
	s.PartialTotal = gib
	return s
}

// setClient empties the partial file of a copy. From now on a client uploads it; nil: none does.
func (c *cluster) setClient(s *Copy, client *uploader) {
	c.history(s).client, s.Partial, s.PartialSource = client, 0, ""
	if client != nil {
		s.PartialSource = disk.PartFromUpload
	}
}
