package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk/ident"
	"github.com/seed-26586806/backing-image-manager/disk/model"
)

const (
	gib      = 1 << 30
	diskSize = 8 * gib
)

// startTime is when a simulation begins.
var startTime = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// cluster is a simulated cluster: nodes with disks, a network between them, and the upstreams of
// images. It has what is true, whatever the managers know. All its random decisions follow from
// the seed.
type cluster struct {
	rng
	suspensions rng // decides about suspensions
	generations rng // decides about older generations
	needs       rng // decides about replicas that need an image without a copy
	adversity   rng // decides about compromised and skewed nodes
	seed        uint64

	// Time.
	now     time.Duration // true time, since startTime
	queue   queue
	fibers  map[*fiber]bool
	running *fiber // nil: none

	// Nodes, disks and the network.
	names           []string // of all nodes, sorted
	nodes           map[string]*node
	disks           map[ident.DiskRef]*Disk  // by the place where each is attached, or was
	sharing         map[ident.DiskRef]string // the node with a disk that shows the same folder
	diskCount       int                      // of all disks since the start
	library         *Library
	histories       map[*Copy]*copyHistory
	links           map[route]*link
	lastNeed        map[ident.CopyRef]time.Duration // when the last need of replicas without a copy ended
	sendsWrongBytes map[string]bool                 // nodes that send damaged chunks
	publications    int                             // states that were published

	// Upstreams.
	served      map[string]string          // the content of each upstream
	renewed     bool                       // see renewOften
	replicas    map[string]map[string]bool // the nodes with a usable replica of a volume
	offline     bool                       // no upstream outside of the cluster can be reached
	reads       []read                     // of upstreams
	encryptions int                        // each has another result
	uploaded    map[string]bool            // images that clients upload after all faults

	// Configurations.
	declarations []*declaration // all, the newest last
	digests      map[string]string
	rankings     map[rankKey]*[]ident.DiskRef
	hashes       map[string]uint64

	// Nodes that do not do what the others expect, besides the faults.
	adverse adversity
	liar    *liar           // nil: no node is compromised
	skewed  map[string]bool // nodes that do not follow the configuration

	// The rules.
	deletions  []*deletion // that run now
	losses     []loss
	decisions  []decision
	violations []string

	healed   bool // there are no more faults
	healedAt time.Duration
	quick    bool   // a configuration arrives everywhere within seconds
	racing   string // the image whose copies two nodes delete at the same time; "": none

	// Statistics.
	pairs     map[string]int
	done      map[model.Op]int
	begunJobs int
	trace     *trace // nil: nobody reads it
}

// read is the start of a transfer from an upstream. done: it has ended with a ready copy.
type read struct {
	at   time.Duration
	id   ident.ID
	node string
	done bool
}

// loss is the end of a ready copy by a fault.
type loss struct {
	at     time.Duration
	key    ident.CopyRef
	digest string
}

// newCluster returns a cluster of least to most nodes. With traced it records what happens.
func newCluster(seed uint64, least, most int, traced bool) *cluster {
	c := &cluster{
		seed: seed, rng: rng{rand.New(rand.NewPCG(seed, 3))}, suspensions: rng{rand.New(rand.NewPCG(seed, 4))}, adversity: rng{rand.New(rand.NewPCG(seed, 5))}, generations: rng{rand.New(rand.NewPCG(seed, 6))}, needs: rng{rand.New(rand.NewPCG(seed, 7))}, skewed: map[string]bool{}, fibers: map[*fiber]bool{},
		nodes: map[string]*node{}, disks: map[ident.DiskRef]*Disk{}, library: NewLibrary(), histories: map[*Copy]*copyHistory{},
		links: map[route]*link{}, sendsWrongBytes: map[string]bool{}, lastNeed: map[ident.CopyRef]time.Duration{},
		served: map[string]string{}, replicas: map[string]map[string]bool{}, uploaded: map[string]bool{},
		digests: map[string]string{}, rankings: map[rankKey]*[]ident.DiskRef{}, hashes: map[string]uint64{},
		pairs: map[string]int{}, done: map[model.Op]int{},
	}
	if traced {
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
			c.disks[ident.DiskRef{Node: name, Disk: d}] = nil
		}
	}
	for i, ref := range c.diskRefs() {
		c.disks[ref] = NewDisk(newUUID(i), c.library, diskSize)
		c.disks[ref].OtherHashes = seed%2 == 1 && i%2 == 1
	}
	c.diskCount = len(c.disks)
	for _, name := range c.names {
		c.after(c.between(0, 2*time.Minute), func() { c.nodes[name].start() })
	}
	c.adverse = c.drawAdversity()
	return c
}

func newUUID(n int) string { return fmt.Sprintf("disk-%04d", n) }

// diskRefs returns the places of all disks, sorted.
func (c *cluster) diskRefs() []ident.DiskRef {
	return slices.SortedFunc(maps.Keys(c.disks), ident.DiskRef.Compare)
}

// copyAt returns the folder of a copy on an attached disk, nil if there is none.
func (c *cluster) copyAt(key ident.CopyRef) *Copy {
	if d := c.disks[key.Disk]; d != nil && d.Attached {
		return d.Copies[key.ID]
	}
	return nil
}

// copyOn returns the folder of a copy if the disk with the uuid is at its place, otherwise nil.
func (c *cluster) copyOn(uuid string, key ident.CopyRef) *Copy {
	if d := c.disks[key.Disk]; d != nil && d.UUID == uuid {
		return c.copyAt(key)
	}
	return nil
}

// digest returns the digest of a content.
func (c *cluster) digest(content string) ident.Digest { return c.library.Properties(content).SHA512 }

// contentOf returns the content with a digest.
func (c *cluster) contentOf(digest ident.Digest) string {
	content, known := c.library.WithSHA512(digest)
	if !known {
		return "unknown content"
	}
	return content
}

// folder returns the folder of a copy. It creates the folder if there is none.
func (c *cluster) folder(d *Disk, id ident.ID) *Copy {
	s := d.Folder(id)
	s.PartialTotal = gib
	return s
}
