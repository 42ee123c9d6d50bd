package simulation

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/internal/testx/plantest"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/schema"
)

const (
	gib       = 1 << 30
	driveSize = 8 * gib
)

var worldStart = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// cluster is many nodes with disks, a network between them and an origin, in memory.
// One seed is one run: nothing in it follows from anything but its dice.
type cluster struct {
	rng
	suspensions rng // for suspensions
	seed        uint64
	now         time.Duration // true time, since worldStart
	queue       queue
	fibers      map[*fiber]bool
	running     *fiber   // nil: none
	names       []string // of all nodes, sorted
	nodes       map[string]*node
	disks       map[schema.DiskRef]*Disk // which disk is where
	links       map[link]*wire
	lying       map[string]bool // nodes that send other bytes than they should

	serves   map[string]string          // letter of the bytes behind an origin
	replicas map[string]map[string]bool // nodes that have a usable replica of a volume
	offline  bool                       // the origins that are not in the cluster
	reads    []read                     // of an origin
	salts    int                        // counts what was encrypted
	promised map[string]bool            // images that somebody uploads when all faults are over

	declarations []*declaration // what was declared, the newest last
	digests      map[string]string
	rankings     map[rankKey]*[]schema.DiskRef
	hashes       map[string]uint64
	letters      map[string]disk.Digest
	manifest     map[string]disk.Digest

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
	begun        int    // actions, of all nodes
	trace        *trace // nil: nobody reads it
	violations   []string
}

// Disk is one disk, wherever it is.
type Disk struct {
	UUID         string
	Attached     bool
	UsersUnknown bool  // a replica's metadata cannot be read
	ReadOnly     bool  // nothing can be written, and marks neither
	FailsWrites  bool  // whatever is written fails, but for marks and deletions
	OtherFiles   int64 // by others
	Copies       map[disk.ID]*Copy
}

// Copy is one image folder, and what is true of it whatever a manager knows.
type Copy struct {
	File       string // of the bytes in the file; "": no file
	Changed    bool   // the evidence does not fit any more
	Owned      bool
	Recorded   string // letter that the record vouches for
	Failure    string
	VerifiedAt time.Time
	Partial    int64
	Users      int
	Usage      plan.Usage
	made       time.Duration // when the manager made or adopted it
	used       time.Duration // when the manager last saw it used
	from       *uploader     // of the part
	pulled     bool          // the part came from other nodes
	failedAt   time.Duration // when it became failed
	soberly    bool          // by a clock that was never set
	DamagedAt  time.Time     // by the wall clock of the node, as the record has it
	Aside      bool          // renamed, on its way out
	// wanted is the last moment at which its manager had to want it, and unwanted the
	// first after that at which it did not have to, under a valid configuration.
	wanted, unwanted time.Duration
	usedFrom         time.Duration // when the use that goes on began
	born             time.Duration // when the folder became ours
	excused          bool          // what a manager knew of it was lost with it
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
		links: map[link]*wire{}, lying: map[string]bool{}, serves: map[string]string{}, replicas: map[string]map[string]bool{}, promised: map[string]bool{}, digests: map[string]string{},
		rankings: map[rankKey]*[]schema.DiskRef{}, hashes: map[string]uint64{}, pairs: map[string]int{}, letters: map[string]disk.Digest{}, manifest: map[string]disk.Digest{}, done: map[plan.Op]int{},
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
	for i, ref := range c.places() {
		c.disks[ref] = &Disk{UUID: newUUID(i), Attached: true, Copies: map[disk.ID]*Copy{}}
	}
	c.diskCount = len(c.disks)
	for _, name := range c.names {
		c.after(c.between(0, 2*time.Minute), func() { c.nodes[name].start() })
	}
	return c
}

func newUUID(n int) string { return fmt.Sprintf("disk-%04d", n) }

// places are where disks are, sorted.
func (c *cluster) places() []schema.DiskRef {
	return slices.SortedFunc(maps.Keys(c.disks), plan.CompareDisks)
}

func (d *Disk) ids() []disk.ID { return slices.SortedFunc(maps.Keys(d.Copies), plan.CompareIDs) }

func (d *Disk) free() int64 {
	free := driveSize - d.OtherFiles
	for _, s := range d.Copies {
		free -= s.Partial
		if s.File != "" {
			free -= gib
		}
	}
	return max(0, free)
}

// Ready reports whether the copy is ready in truth: nothing that a look can see
// speaks against it.
func (s *Copy) Ready() bool {
	return s != nil && s.File != "" && s.Owned && !s.Changed && s.Failure == "" && !s.Aside
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

func (c *cluster) seesCopy(id disk.ID, s *Copy) disk.Copy {
	v := disk.Copy{
		ID: id, State: disk.Pending, Owned: s.Owned, HasCfg: true, PartBytes: s.Partial, VerifiedAt: s.VerifiedAt, DamagedAt: s.DamagedAt,
		InUseRecorded: s.Usage.InUse, LastUsed: s.Usage.LastUsed, SurplusSince: s.Usage.SurplusSince, ClockNode: s.Usage.By,
	}
	if s.Partial > 0 || s.from != nil {
		v.PartTotal = gib
	}
	switch {
	case s.from != nil:
		v.PartSourceID = disk.PartFromUpload
	case s.pulled && s.Partial > 0:
		v.PartSourceID = disk.PartFromPeers
	}
	if s.File == "" {
		return v
	}
	v.Size, v.RealSize, v.State = gib, gib, disk.Ready
	if s.Owned && s.Recorded != "" && !s.Changed {
		v.SHA512, v.ManifestDigest = c.digest(s.Recorded), c.manifestDigest(s.Recorded)
	}
	switch {
	case !s.Owned:
		v.State, v.Message = disk.Unknown, "not verified yet"
	case s.Changed:
		v.State, v.Message = disk.Unknown, "changed"
	case s.Failure != "":
		v.State, v.Message = disk.Failed, s.Failure
	}
	return v
}

func (s *Copy) using(d *Disk) string {
	switch {
	case s.Users > 0:
		return "used by a replica"
	case d.UsersUnknown:
		return "cannot determine what is in use"
	}
	return ""
}

func (c *cluster) digest(letter string) disk.Digest {
	return remembered(c.letters, letter, disk.SHA512)
}

func (c *cluster) manifestDigest(letter string) disk.Digest {
	return remembered(c.manifest, letter, disk.SHA256)
}

func remembered(known map[string]disk.Digest, letter string, a disk.Algorithm) disk.Digest {
	if _, ok := known[letter]; !ok {
		known[letter] = plantest.Digest(a, letter)
	}
	return known[letter]
}
